"""Netlink in bytes for the way of a rescue, which has milliseconds: one request, its answer, at once."""

import itertools
import os
import socket
import struct
from typing import Final

from cedos.kernel.netlink import (
    NLM_F_ACK,
    NLM_F_REQUEST,
    NLMSG_DONE,
    NLMSG_ERROR,
    Message,
    message,
    messages,
)
from cedos.kernel.netlink_commands import open_socket

NLM_F_CREATE: Final = 0x400
# Flags within an attribute's type.
NESTED: Final = 0x8000
NETWORK_ORDER: Final = 0x4000

NETLINK_NETFILTER: Final = 12
_ANSWER_TIMEOUT_S: Final = 5.0
_RECEIVE_BYTES: Final = 1 << 16
_CODE: Final = struct.Struct("=i")
_NETFILTER: Final = struct.Struct("=BBH")  # family, version, resource


class Wire:
    """A netlink socket in the namespace of the thread that makes it.

    Raises:
        HostError: the kernel does not speak this protocol.
    """

    def __init__(self, protocol: int) -> None:
        self._socket = open_socket(protocol, 1 << 20)
        self._socket.settimeout(_ANSWER_TIMEOUT_S)
        self._sequences = itertools.count(1)

    def ask(self, kind: int, payload: bytes, flags: int = NLM_F_ACK) -> list[Message]:
        """Sends a request; the answers before its end, which is the first one without ACK.

        Raises:
            OSError: the kernel refused.
            TimeoutError: no answer within seconds.
        """
        sequence = next(self._sequences) & 0xFFFFFFFF
        self._socket.send(message(kind, flags | NLM_F_REQUEST, sequence, payload))
        answers: list[Message] = []
        while True:
            for answer in messages(self._socket.recv(_RECEIVE_BYTES)):
                if answer.sequence != sequence:
                    continue
                if answer.type in (NLMSG_ERROR, NLMSG_DONE):
                    if code := -_CODE.unpack_from(answer.payload)[0]:
                        raise OSError(code, os.strerror(code))
                    return answers
                answers.append(answer)
                if not flags & NLM_F_ACK:
                    return answers

    def close(self) -> None:
        """Closes the socket."""
        self._socket.close()


def netfilter(version: int) -> bytes:
    """The head of a message to a part of netfilter."""
    return _NETFILTER.pack(socket.AF_INET if version == 4 else socket.AF_INET6, 0, 0)

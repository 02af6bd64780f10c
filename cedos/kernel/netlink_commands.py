"""Netlink for commands: one request, its answer, at once. pyroute2 packs and parses the messages.

The kernel carries out a request inside `send` and has its answer ready when that returns, so asking
never waits for anybody. The sockets are our own: pyroute2's synchronous ones run an event loop, which
cannot be inside the daemon's, and its asynchronous ones end with the first event that is lost.
"""

import itertools
import os
import socket
import struct
import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any, Final

from pyroute2.netlink import (
    NETLINK_EXT_ACK,
    NETLINK_GET_STRICT_CHK,
    NLM_F_ACK,
    NLM_F_ACK_TLVS,
    NLM_F_DUMP,
    NLM_F_REQUEST,
    NLMSG_DONE,
    NLMSG_ERROR,
    SOL_NETLINK,
    nlmsg,
    nlmsgerr,
)
from pyroute2.netlink.marshal import Marshal

from cedos.errors import HostError
from cedos.kernel import netlink as octets

# A message of pyroute2's: header and fields by name, attributes by `attributes` and `get_attr`.
Message = Any

_ENDINGS: Final = (NLMSG_ERROR, NLMSG_DONE)
_CODE_BYTES: Final = 4
_HEADER_BYTES: Final = 16
_ERROR_MESSAGE: Final = 1  # NLMSGERR_ATTR_MSG
_RCVBUFFORCE: Final = 33
_ANSWER_TIMEOUT_S: Final = 5.0
RECEIVE_BYTES: Final = 1 << 18


class Ending(nlmsg):
    """What ends an answer: the error's number negated, 0 for success, and the kernel's words."""

    fields = nlmsgerr.fields
    prefix = nlmsgerr.prefix
    nla_map = nlmsgerr.nla_map


class Parser(Marshal):
    """Parses what the kernel sends.

    Args:
        default: the class of messages whose type is not in `classes`.
        classes: message type -> class.
    """

    # Errors are messages like others (`Ending`).
    error_type = -1

    def __init__(self, default: type, classes: Mapping[int, type] | None = None) -> None:
        super().__init__()
        self.default_message_class = default
        self.msg_map = dict.fromkeys(_ENDINGS, Ending) | dict(classes or {})

    def parse_one_message(
        self, key: int, flags: int, sequence_number: int, data: bytes, offset: int, length: int
    ) -> Message:
        """As `Marshal` does, which otherwise takes a failed dump's end for an error and its cause."""
        flags &= ~NLM_F_ACK_TLVS
        return super().parse_one_message(key, flags, sequence_number, data, offset, length)

    def messages(self, data: bytes) -> Iterator[Message]:
        """The messages of one datagram; what cannot be parsed is left out or ends them."""
        # A truncated header or field is not caught by the library.
        with suppress(struct.error):
            for message in self.parse(data):
                if message["header"].get("error") is None:
                    yield message


def attributes(message: Message) -> dict[str, Any]:
    """All attributes of a message or of another attribute, by name."""
    return {slot.name: slot.value for slot in message["attrs"]}


def open_socket(protocol: int, receive_bytes: int) -> socket.socket:
    """A bound socket in the calling thread's namespace; HostError where the kernel has none."""
    try:
        opened = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, protocol)
    except OSError as error:
        raise HostError(
            f"this kernel has no netlink protocol {protocol} ({error.strerror})"
        ) from error
    try:
        opened.setsockopt(socket.SOL_SOCKET, _RCVBUFFORCE, receive_bytes)
    except OSError:
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
    opened.bind((0, 0))
    return opened


class Commands:
    """Asks the kernel. The socket belongs to the namespace of the thread that makes it.

    Raises:
        HostError: the kernel does not speak this netlink protocol.
    """

    def __init__(self, protocol: int) -> None:
        self._socket = open_socket(protocol, 1 << 20)
        self._socket.settimeout(_ANSWER_TIMEOUT_S)
        self.port: int = self._socket.getsockname()[0]
        self._sequences = itertools.count(1)
        # Errors with the kernel's own words, and dumps that it filters; older ones have neither.
        for option in (NETLINK_EXT_ACK, NETLINK_GET_STRICT_CHK):
            with suppress(OSError):
                self._socket.setsockopt(SOL_NETLINK, option, 1)

    def ask(self, kind: int, flags: int, request: Message) -> list[Message]:
        """Sends one request (REQUEST and ACK are added) and returns the answers before its end.

        Raises:
            OSError: the kernel refused; the text is the kernel's own where it gives one.
            TimeoutError: no answer within seconds.
        """
        return self._ask(kind, flags | NLM_F_REQUEST | NLM_F_ACK, request, type(request))

    def dump(self, kind: int, request: Message, answer: type | None = None) -> list[Message]:
        """All messages of a dump, of class `answer` (None: the request's); errors as for `ask`."""
        return self._ask(kind, NLM_F_REQUEST | NLM_F_DUMP, request, answer or type(request))

    def tell(self, kind: int, flags: int, payload: bytes) -> None:
        """Sends a request that has no answer but its end; errors as for `ask`."""
        sequence = next(self._sequences) & 0xFFFFFFFF
        flags |= NLM_F_REQUEST | NLM_F_ACK
        self._socket.send(octets.message(kind, flags, sequence, payload))
        while True:
            for answer in octets.messages(self._socket.recv(RECEIVE_BYTES)):
                if answer.sequence == sequence and answer.type in _ENDINGS:
                    if code := -int.from_bytes(
                        answer.payload[:_CODE_BYTES], sys.byteorder, signed=True
                    ):
                        raise OSError(code, _said(answer) or os.strerror(code))
                    return

    def accepted(self, kind: int, payload: bytes) -> bool:
        """Whether the kernel answers a dump at all; its answers are not looked at."""
        sequence = next(self._sequences) & 0xFFFFFFFF
        self._socket.send(octets.message(kind, NLM_F_REQUEST | NLM_F_DUMP, sequence, payload))
        while True:
            for answer in octets.messages(self._socket.recv(RECEIVE_BYTES)):
                if answer.sequence == sequence and answer.type in _ENDINGS:
                    return not any(answer.payload[:_CODE_BYTES])

    def _ask(self, kind: int, flags: int, request: Message, answer: type) -> list[Message]:
        sequence = next(self._sequences) & 0xFFFFFFFF
        request["header"].update(type=kind, flags=flags, sequence_number=sequence)
        request.encode()
        self._socket.send(request.data)
        parser = Parser(answer)
        answers: list[Message] = []
        while True:
            for message in parser.messages(self._socket.recv(RECEIVE_BYTES)):
                header = message["header"]
                # What a request that timed out left behind has another sequence number.
                if header["sequence_number"] != sequence:
                    continue
                if header["type"] not in _ENDINGS:
                    answers.append(message)
                elif code := -message["error"]:
                    said = message.get_attr("NLMSGERR_ATTR_MSG")
                    raise OSError(code, said or os.strerror(code))
                else:
                    return answers

    def close(self) -> None:
        """Closes the socket."""
        self._socket.close()


def _said(ending: octets.Message) -> str:
    """The kernel's own words for a refusal, behind its code and the request's header."""
    words = octets.attributes(ending.payload, _CODE_BYTES + _HEADER_BYTES).get(_ERROR_MESSAGE, b"")
    return words.rstrip(b"\0").decode(errors="replace")

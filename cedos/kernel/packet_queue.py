"""Packets that wait for a verdict (linux/netfilter/nfnetlink_queue.h).

A rule of the packet filter puts packets into a queue by its number. The kernel sends them to the socket
that has bound the queue, and holds each until that socket gives its verdict. Both the process that opened
the socket and the one that sends need CAP_NET_ADMIN.
"""

import errno
import os
import socket
import struct
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Final, NamedTuple

from cedos.kernel.netlink import (
    NETLINK_NETFILTER,
    NLM_F_ACK,
    NLM_F_REQUEST,
    NLMSG_ERROR,
    attribute,
    attributes,
    message,
    messages,
    refusal,
)

_SUBSYSTEM: Final = 3 << 8
_PACKET, _VERDICT, _CONFIG = (_SUBSYSTEM | kind for kind in range(3))
_GENERIC: Final = struct.Struct("!BBH")  # family, version, the queue's number
_COMMAND, _PARAMETERS, _MOST = 1, 2, 3
_BIND, _COPY_PACKET = 1, 2
_COMMAND_FORM: Final = struct.Struct("!BxH")
_PARAMETERS_FORM: Final = struct.Struct("!IB")
_PACKET_HEADER, _VERDICT_HEADER, _PAYLOAD = 1, 2, 10
_TWO: Final = struct.Struct("!II")
_DROP, _ACCEPT = 0, 1
_WHOLE: Final = 0xFFFF
_MOST_WAITING: Final = 2048
_BUFFER_BYTES: Final = 1 << 21
_RECEIVE_BYTES: Final = 1 << 17
_SO_RCVBUFFORCE: Final = 33


class QueuedPacket(NamedTuple):
    """A packet from its IP header on, under the number by which its verdict is given."""

    number: int
    content: bytes


def open_queue(number: int) -> socket.socket:
    """Bind a queue to a new socket. Errors: OSError; EBUSY where another program has it."""
    opened = socket.socket(
        socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, NETLINK_NETFILTER
    )
    try:
        with suppress(PermissionError):
            opened.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, _BUFFER_BYTES)
        opened.bind((0, 0))
        opened.settimeout(2.0)
        # Bind the queue, copy whole packets, and let at most so many wait: the kernel drops further ones.
        for setting in (
            attribute(_COMMAND, _COMMAND_FORM.pack(_BIND, 0)),
            attribute(_PARAMETERS, _PARAMETERS_FORM.pack(_WHOLE, _COPY_PACKET)),
            attribute(_MOST, struct.pack("!I", _MOST_WAITING)),
        ):
            content = _GENERIC.pack(socket.AF_UNSPEC, 0, number) + setting
            opened.send(message(_CONFIG, NLM_F_REQUEST | NLM_F_ACK, 1, content))
            _await_acknowledgement(opened)
        opened.setblocking(False)
    except OSError:
        opened.close()
        raise
    return opened


def _await_acknowledgement(opened: socket.socket) -> None:
    while True:
        for answer in messages(opened.recv(_RECEIVE_BYTES)):
            if answer.type == NLMSG_ERROR:
                if (error := refusal(answer)) is not None:
                    raise error
                return


def read(opened: socket.socket, most: int) -> Iterator[QueuedPacket]:
    """Yield the packets that wait at the socket, without waiting for others."""
    for _ in range(most):
        try:
            data = opened.recv(_RECEIVE_BYTES)
        except BlockingIOError:
            return
        except OSError as error:
            # The kernel dropped some packets, which their senders repeat.
            if error.errno != errno.ENOBUFS:
                raise
            continue
        yield from parse(data)


def parse(data: bytes) -> Iterator[QueuedPacket]:
    """Yield the packets of one datagram."""
    for each in messages(data):
        if each.type == _PACKET:
            found = attributes(each.payload, _GENERIC.size)
            header = found.get(_PACKET_HEADER, b"")
            if len(header) >= 4:
                yield QueuedPacket(int.from_bytes(header[:4], "big"), found.get(_PAYLOAD, b""))


def decide(
    opened: socket.socket, queue: int, passed: Sequence[int], dropped: Sequence[int]
) -> None:
    """Let packets go on, and drop others. Errors: OSError."""
    head = _GENERIC.pack(socket.AF_UNSPEC, 0, queue)
    verdicts = b"".join(
        message(
            _VERDICT, NLM_F_REQUEST, 1, head + attribute(_VERDICT_HEADER, _TWO.pack(kind, each))
        )
        for kind, numbers in ((_ACCEPT, passed), (_DROP, dropped))
        for each in numbers
    )
    if os.write(opened.fileno(), verdicts) <= 0:
        raise OSError(errno.EIO, "no verdict could be given")

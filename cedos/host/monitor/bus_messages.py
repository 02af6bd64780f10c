"""A bus connection's socket that gives the library only messages which it can parse quickly.

Any user may send signals to this program's connection. The library would parse them all: 30 MB of numbers
took five seconds and 200 MB. Signals of services are for all, and have no receiver.
"""

import os
import socket
from array import array
from errno import EAGAIN
from typing import Any, Final, Literal

from dbus_fast import BusType, MessageType
from dbus_fast.aio import MessageBus

# The longest message of each type that is parsed. Calls are for services, which this program is not.
MOST_BYTES: Final = {
    MessageType.METHOD_RETURN.value: 1 << 20,
    MessageType.ERROR.value: 1 << 16,
    MessageType.SIGNAL.value: 1 << 14,
}
# The bytes that are read before other tasks have their turn.
_AT_ONCE: Final = 1 << 18
_START: Final = 16
_MOST_OF_A_HEAD: Final = 4096
_SIGNAL, _DESTINATION = MessageType.SIGNAL.value, 6


class BoundedSocket:
    """A connected socket without the messages that are too long or of another type."""

    def __init__(self, connected: socket.socket) -> None:
        self._socket = connected
        self._left = 0
        self._is_wanted = True
        self._read = 0

    def recvmsg(self, size: int, room: int) -> tuple[bytes, list[tuple[int, int, bytes]]]:
        """Return bytes of wanted messages, as a socket that does not block."""
        if self._read >= _AT_ONCE:
            self._read = 0
            raise _later()
        try:
            while True:
                if not self._left:
                    self._begin()
                most = min(size, self._left) if self._is_wanted else min(_AT_ONCE, self._left)
                data, ancillary, _, _ = self._socket.recvmsg(most, room)
                self._left -= len(data)
                self._read += len(data)
                if self._is_wanted or not data:
                    return data, ancillary
                _close_files(ancillary)
                if self._read >= _AT_ONCE:
                    raise _later()
        except BlockingIOError:
            self._read = 0
            raise

    def _begin(self) -> None:
        """Look at the head of the next message, which says how long it is, and to whom it was sent."""
        head = self._socket.recv(_MOST_OF_A_HEAD, socket.MSG_PEEK)
        if head and len(head) < _START:
            raise _later()
        order: Literal["little", "big"] = "little" if head[:1] == b"l" else "big"
        body, fields = (int.from_bytes(head[at : at + 4], order) for at in (4, 12))
        if head and len(head) < min(_START + fields, _MOST_OF_A_HEAD):
            raise _later()
        self._left = _START + -(-fields // 8) * 8 + body
        if not head:
            # The connection has ended, which the library is to notice.
            self._is_wanted = True
            return
        self._is_wanted = (
            self._left <= MOST_BYTES.get(head[1], 0)
            and _START + fields <= len(head)
            and (head[1] != _SIGNAL or not _has_destination(head[: _START + fields], order))
        )

    def __getattr__(self, name: str) -> Any:
        return getattr(self._socket, name)


class BoundedBus(MessageBus):
    """A connection to the system's bus that reads through a `BoundedSocket`."""

    def __init__(self, address: str | None) -> None:
        super().__init__(address, BusType.SYSTEM, negotiate_unix_fd=True)

    async def _authenticate(self) -> None:
        await super()._authenticate()
        assert self._sock is not None
        self._sock = BoundedSocket(self._sock)  # type: ignore[assignment]  # the library uses it as a socket


def _has_destination(head: bytes, order: Literal["little", "big"]) -> bool:
    """Return whether the head of a signal names a receiver."""
    at = _START
    while at < len(head):
        field, kind = head[at], head[at + 2 : at + 3]
        if field == _DESTINATION:
            return True
        at += 4  # the field, and its signature with a length and an end
        if kind == b"g":
            at += head[at] + 2
        else:
            number = int.from_bytes(head[at : at + 4], order)
            at += 4 if kind == b"u" else number + 5
        at += -at % 8
    return False


def _later() -> BlockingIOError:
    return BlockingIOError(EAGAIN, os.strerror(EAGAIN))


def _close_files(ancillary: list[tuple[int, int, bytes]]) -> None:
    for level, kind, data in ancillary:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            files = array("i")
            files.frombytes(data[: len(data) - len(data) % files.itemsize])
            for each in files:
                os.close(each)

"""A file descriptor that `select` finds readable and writable as it is told, for any thread.

One end of a pair of sockets is shown to the program. A byte written to the other end makes it readable;
filling its own buffer makes it not writable.
"""

import contextlib
import socket
from typing import Final

_LEAST: Final = 4_608
_JUNK: Final = bytes(8_192)


class Readiness:
    """Readable and writable as told; neither at first. Costs nothing before somebody asks for it."""

    def __init__(self) -> None:
        self._ends: tuple[socket.socket, socket.socket] | None = None  # shown and hidden
        self._readable = self._writable = self._closed = False

    @property
    def shown(self) -> bool:
        """Whether a program may be waiting for it."""
        return self._ends is not None and not self._closed

    def fileno(self) -> int:
        """What to give to `select`; -1 once closed. Never to be read or written."""
        if self._ends is None and not self._closed:
            shown, hidden = self._ends = socket.socketpair()
            for each in (shown, hidden):
                each.setblocking(False)
            shown.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _LEAST)
            if self._readable:
                hidden.send(b"r")
            if not self._writable:
                self._fill(shown)
        return -1 if self._ends is None else self._ends[0].fileno()

    def readable(self, yes: bool) -> None:
        if yes is self._readable:
            return
        self._readable = yes
        if self._ends is not None and not self._closed:
            shown, hidden = self._ends
            with contextlib.suppress(BlockingIOError):
                if yes:
                    hidden.send(b"r")
                else:
                    shown.recv(1)

    def writable(self, yes: bool) -> None:
        if yes is self._writable:
            return
        self._writable = yes
        if self._ends is not None and not self._closed:
            shown, hidden = self._ends
            if not yes:
                self._fill(shown)
                return
            with contextlib.suppress(BlockingIOError):
                while True:
                    hidden.recv(1 << 20)

    def give_away(self) -> tuple[int, socket.socket]:
        """The number that `fileno` told, now an end of a plain pair of sockets, and the other end.

        It tells nothing any more; whoever has them closes them.
        """
        self.fileno()
        assert self._ends is not None
        self.readable(False)
        self.writable(True)
        self._closed = True
        shown, hidden = self._ends
        self._ends = None
        most = hidden.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF)
        shown.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, most // 2)  # the kernel doubles it
        return shown.detach(), hidden

    @staticmethod
    def _fill(shown: socket.socket) -> None:
        with contextlib.suppress(BlockingIOError):
            while True:
                shown.send(_JUNK)

    def close(self) -> None:
        """Ends it; a thread that waits in `select` finds it readable."""
        self._closed = True
        for each in self._ends or ():
            each.close()

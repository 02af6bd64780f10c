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
    """Readable and writable as told; not readable and writable at first."""

    def __init__(self) -> None:
        self._shown, self._hidden = socket.socketpair()
        for each in (self._shown, self._hidden):
            each.setblocking(False)
        self._shown.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _LEAST)
        self._readable, self._writable = False, True

    def fileno(self) -> int:
        """What to give to `select`; -1 once closed. Never to be read or written."""
        return self._shown.fileno()

    def readable(self, yes: bool) -> None:
        """Whether `select` finds it readable from now on."""
        if yes is not self._readable and self.fileno() >= 0:
            self._readable = yes
            with contextlib.suppress(BlockingIOError):
                if yes:
                    self._hidden.send(b"r")
                else:
                    self._shown.recv(1)

    def writable(self, yes: bool) -> None:
        """Whether `select` finds it writable from now on."""
        if yes is not self._writable and self.fileno() >= 0:
            self._writable = yes
            with contextlib.suppress(BlockingIOError):
                while True:
                    if yes:
                        self._hidden.recv(1 << 20)
                    else:
                        self._shown.send(_JUNK)

    def close(self) -> None:
        """Ends it; a thread that waits in `select` finds it readable."""
        self._hidden.close()
        self._shown.close()

"""How a blocking socket waits: by running the loop itself, or for whoever runs it."""

import errno
import os
import threading
from collections.abc import Callable
from typing import TypeVar

from cedos.errors import CedosError
from cedos.session.sockets import background
from cedos.session.sockets.connection import Connection
from cedos.session.sockets.os_errors import as_os_error
from cedos.session.sockets.readiness import Readiness

T = TypeVar("T")


class Waiting:
    """The part of a socket that has to do with time and threads."""

    def __init__(self) -> None:
        self._timeout_s: float | None = None
        self._connection: Connection | None = None
        self._ready = Readiness()
        self._changed = threading.Condition()
        self._closed = False

    def settimeout(self, seconds: float | None) -> None:
        """None: operations block; 0: they do not; else they raise TimeoutError after so long."""
        self._timeout_s = seconds

    def gettimeout(self) -> float | None:
        """What `settimeout` was told."""
        return self._timeout_s

    def setblocking(self, yes: bool) -> None:
        """As `settimeout` with None or 0."""
        self._timeout_s = None if yes else 0.0

    def _of(self) -> Connection:
        if self._connection is None:
            raise self._wrong(errno.ENOTCONN, "the socket is not connected")
        return self._connection

    def _end(self) -> None:
        """Nothing more comes; wakes who waits. With the lock held."""
        self._closed = True
        self._ready.close()
        self._changed.notify_all()

    def _wrong(self, number: int, why: str) -> OSError:
        """What is wrong with a call on a socket that cannot serve it."""
        if self._closed:
            return OSError(errno.EBADF, "the socket is closed")
        return OSError(number, f"{why} ({os.strerror(number)})")

    def _wait(self, wanted: Callable[[], bool]) -> None:
        """Waits, with the lock held, as `settimeout` says."""
        if wanted():
            return
        if not self._drive(lambda: self._closed or wanted()):
            if self._timeout_s == 0:
                raise BlockingIOError("nothing is here yet")
            raise TimeoutError("timed out")
        if self._closed:
            raise self._wrong(errno.EBADF, "")

    def _drive(self, wanted: Callable[[], bool]) -> bool:
        """Lets the loop go on until something is so; False if it is not in time. With the lock held."""
        here = background.helm()
        self._changed.release()  # the loop wants it, in whichever thread
        try:
            if here.take():
                try:
                    if self._timeout_s != 0:
                        return here.drive(wanted, self._timeout_s)
                    here.turn()
                    return wanted()
                finally:
                    here.give(prompt=self._ready.shown)
        finally:
            self._changed.acquire()
        with here.following():
            return self._changed.wait_for(wanted, self._timeout_s)

    def _now(self, do: Callable[[Connection], T]) -> T | None:
        """What this thread can do with the session by itself; None where another one has its loop."""
        connection, here = self._of(), background.helm()
        if not here.take():
            return None
        try:
            return do(connection)
        except CedosError as error:
            raise as_os_error(error) from error
        finally:
            connection.flow.turn_over()
            here.give(prompt=self._ready.shown)

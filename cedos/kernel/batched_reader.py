"""Reads descriptors on common beats: what comes often is read together, what comes alone at once."""

import asyncio
from collections.abc import Callable


class BatchedReader:
    """Reads a descriptor when it becomes readable, then once an interval until there is nothing more.

    All with the same interval are read at the same instants, so that the loop wakes once for all of
    them: each time that it wakes costs more than most of what is read.

    Args:
        fd: the descriptor; it stays its owner's.
        read: reads what is there without waiting; says whether there was anything.
        interval_s: between two readings.
    """

    def __init__(self, fd: int, read: Callable[[], bool], interval_s: float) -> None:
        self._loop = asyncio.get_running_loop()
        self._fd = fd
        self._read = read
        self._interval_s = interval_s
        self._timer: asyncio.TimerHandle | None = None
        self._closed = False
        self._loop.add_reader(fd, self._readable)

    def close(self) -> None:
        """Reads no more; to be called before the descriptor is closed."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._loop.remove_reader(self._fd)

    def _readable(self) -> None:
        self._loop.remove_reader(self._fd)
        self._schedule()
        self._read()

    def _schedule(self) -> None:
        past = self._loop.time() // self._interval_s
        self._timer = self._loop.call_at((past + 1.0) * self._interval_s, self._due)

    def _due(self) -> None:
        self._timer = None
        more = True  # one error does not make it deaf: it is read again an interval later
        try:
            more = self._read()
        finally:
            if self._closed:  # by what it read
                pass
            elif more:
                self._schedule()
            else:
                self._loop.add_reader(self._fd, self._readable)

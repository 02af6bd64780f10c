"""Reading descriptors on a beat: what comes often is read together, what comes alone at once."""

import asyncio
from collections.abc import Callable


class Resting:
    """Reads a descriptor when it becomes readable, then once a beat until there is nothing more.

    All that rest equally long share their beats, so that the loop wakes once for all of them: each
    time that it wakes costs more than most of what is read.

    Args:
        fd: the descriptor; it stays its owner's.
        read: reads what is there without waiting; says whether there was anything.
        rest_s: between beats.
    """

    def __init__(self, fd: int, read: Callable[[], bool], rest_s: float) -> None:
        self._loop = asyncio.get_running_loop()
        self._fd = fd
        self._read = read
        self._rest_s = rest_s
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
        self._rest()
        self._read()

    def _rest(self) -> None:
        beats = self._loop.time() // self._rest_s
        self._timer = self._loop.call_at((beats + 1.0) * self._rest_s, self._beat)

    def _beat(self) -> None:
        self._timer = None
        more = True  # one error does not make it deaf: it is read again on the next beat
        try:
            more = self._read()
        finally:
            if self._closed:  # by what it read
                pass
            elif more:
                self._rest()
            else:
                self._loop.add_reader(self._fd, self._readable)

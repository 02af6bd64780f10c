"""A `PacketSource` without a kernel: plays back packets it is given (tests, simulations)."""

import os
from collections import deque
from collections.abc import Iterable

from cedos.profiler.frame import Captured


class ReplayedCapture:
    """Gives out what `feed` put in; readable for an event loop while anything waits."""

    def __init__(self) -> None:
        self._waiting: deque[Captured] = deque()
        self._event = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)

    def feed(self, captured: Iterable[Captured]) -> None:
        """Packets arrive."""
        self._waiting.extend(captured)
        if self._waiting:
            os.eventfd_write(self._event, 1)

    def fileno(self) -> int:
        """The descriptor to watch, -1 when closed."""
        return self._event

    def read(self, limit: int = 64) -> list[Captured]:
        """The packets that wait, at most `limit`."""
        given = [self._waiting.popleft() for _ in range(min(limit, len(self._waiting)))]
        if given and not self._waiting:
            os.eventfd_read(self._event)
        return given

    def close(self) -> None:
        """Ends the capture; a second time does nothing."""
        if self._event >= 0:
            os.close(self._event)
            self._event = -1

"""Keeps the host awake while a transfer with a deadline can move (D-Lock: Cedos, III-E)."""

import os
import time
from typing import Final

import structlog

from cedos.monitor.bus import BusError, SystemBus

_LOGIND: Final = ("org.freedesktop.login1", "/org/freedesktop/login1")
_MANAGER: Final = "org.freedesktop.login1.Manager"
_AGAIN_S: Final = 30.0

IDLE: Final = "idle"
"""That the host falls asleep by itself."""

LID: Final = "handle-lid-switch"
"""That it does as its lid is closed."""

_log = structlog.get_logger(__name__)


class SleepInhibitor:
    """Takes one of logind's inhibitor locks, and gives it back.

    What is not inhibited, and a person's own suspend, do what they always did. Where logind is not there
    or refuses, that is said once.
    """

    def __init__(self, bus: SystemBus | None, what: str = IDLE) -> None:
        self._bus, self._what = bus, what
        self._lock: int | None = None
        self._not_before_s = 0.0
        self._told = False

    @property
    def held(self) -> bool:
        return self._lock is not None

    async def hold(self, wanted: bool) -> None:
        """Take it, or gives it back."""
        if not wanted:
            self.release()
        elif self._bus is not None and not self.held and time.monotonic() >= self._not_before_s:
            await self._take(self._bus)

    def release(self) -> None:
        """Give it back; nothing happens where it is not held."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    async def _take(self, bus: SystemBus) -> None:
        # (All users see why: no names of files.)
        why = "transfers with deadlines are on their way"
        try:
            self._lock = await bus.descriptor(
                *_LOGIND, _MANAGER, "Inhibit", "ssss", [self._what, "cedos", why, "block"]
            )
        except BusError as error:
            self._not_before_s = time.monotonic() + _AGAIN_S
            if not self._told:
                self._told = True
                _log.info(
                    "the host may fall asleep while transfers move",
                    lock=self._what,
                    why=str(error),
                )

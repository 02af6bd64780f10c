"""The lock against sleep, as the controller wants it (`DLock`)."""

import os
from typing import Final

from cedos.host.monitor.bus import BusError, SystemBus
from cedos.logs import get_logger

_LOGIND: Final = ("org.freedesktop.login1", "/org/freedesktop/login1")
_MANAGER: Final = "org.freedesktop.login1.Manager"

_log = get_logger(__name__)


class StayAwake:
    """The host's lock against falling asleep while a transfer can move (Cedos, III-E).

    It is logind's inhibitor `idle`. A closed lid and a user's own suspend work as ever. If logind is
    missing or refuses, one log line says so. `bus` None: the lock is never held.
    """

    def __init__(self, bus: SystemBus | None) -> None:
        self._bus = bus
        self._lock: int | None = None
        self._told = False

    async def hold(self, on: bool) -> bool:
        """Hold the lock, or give it back; return whether that was done."""
        if not on:
            self.release()
        elif self._bus is not None and self._lock is None:
            return await self._take(self._bus)
        return True

    async def _take(self, bus: SystemBus) -> bool:
        # (All users see why: no names of files.)
        why = "transfers with deadlines are on their way"
        try:
            self._lock = await bus.descriptor(
                *_LOGIND, _MANAGER, "Inhibit", "ssss", ["idle", "cedos", why, "block"]
            )
        except BusError as error:
            if not self._told:
                self._told = True
                _log.info("the host may fall asleep while transfers move", why=str(error))
            return False
        return True

    def release(self) -> None:
        """Give the lock back."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

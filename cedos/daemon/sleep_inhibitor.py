"""The locks against sleep and the alarm, as the controller wants them (`DLock`)."""

import os
from collections.abc import Callable
from typing import Final

import structlog

from cedos.errors import HostError
from cedos.host.monitor.bus import BusError, SystemBus

_LOGIND: Final = ("org.freedesktop.login1", "/org/freedesktop/login1")
_MANAGER: Final = "org.freedesktop.login1.Manager"

# Inhibits the sleep of an idle host.
IDLE: Final = "idle"

# Inhibits the sleep that follows the closing of the lid.
LID: Final = "handle-lid-switch"

_log = structlog.get_logger(__name__)


class SleepInhibitor:
    """An inhibitor lock of logind: it keeps the host awake while a transfer can move (Cedos, III-E).

    All other causes of sleep, and a user's own suspend, work as ever. If logind is missing or refuses,
    one log line says so.
    """

    def __init__(self, bus: SystemBus | None, what: str = IDLE) -> None:
        self._bus, self._what = bus, what
        self._lock: int | None = None
        self._told = False

    @property
    def held(self) -> bool:
        return self._lock is not None

    async def hold(self, wanted: bool) -> bool:
        """Take the lock, or give it back; return whether that was done."""
        if not wanted:
            self.release()
        elif self._bus is not None and not self.held:
            return await self._take(self._bus)
        return True

    def release(self) -> None:
        """Give it back; nothing happens where it is not held."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    async def _take(self, bus: SystemBus) -> bool:
        # (All users see why: no names of files.)
        why = "transfers with deadlines are on their way"
        try:
            self._lock = await bus.descriptor(
                *_LOGIND, _MANAGER, "Inhibit", "ssss", [self._what, "cedos", why, "block"]
            )
        except BusError as error:
            if not self._told:
                self._told = True
                _log.info(
                    "the host may fall asleep while transfers move",
                    lock=self._what,
                    why=str(error),
                )
            return False
        return True


class StayAwake:
    """The host's locks against sleep, and its alarm.

    `set_alarm` sets it at an instant, 0: takes it away; OSError: it cannot be had, HostError: none can be
    asked. None: there is no alarm.
    """

    def __init__(
        self,
        idle: SleepInhibitor,
        lid: SleepInhibitor,
        set_alarm: Callable[[float], None] | None,
    ) -> None:
        self._idle, self._lid, self._set_alarm = idle, lid, set_alarm

    async def hold(self, *, idle: bool, lid: bool) -> bool:
        """Hold these locks and no others; return whether that was done."""
        held = await self._idle.hold(idle)
        return await self._lid.hold(lid) and held

    def set_alarm(self, at_unix_s: float) -> str:
        """Set the alarm, 0: take it away; return why that failed, in words."""
        if self._set_alarm is None:
            return ""
        try:
            self._set_alarm(at_unix_s)
        except PermissionError:
            return "CAP_WAKE_ALARM is missing (`cedos example unit` says how to give it)"
        except OSError as error:
            return error.strerror or str(error)
        except HostError as error:
            return str(error)
        return ""

    def release(self) -> None:
        """Give all locks back, and take the alarm away."""
        self._idle.release()
        self._lid.release()
        self.set_alarm(0.0)

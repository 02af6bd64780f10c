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


class StayAwake:
    """The host's locks against sleep while a transfer can move (Cedos, III-E), and its alarm.

    The locks are logind's inhibitors. All other causes of sleep, and a user's own suspend, work as ever.
    If logind is missing or refuses, one log line says so for each lock.

    Args:
        idle: whether the sleep of an idle host may be inhibited; that of the lid may be in any case.
        set_alarm: sets the alarm at an instant, 0: takes it away; OSError: it cannot be had, HostError:
            none can be asked. None: there is no alarm.
    """

    def __init__(
        self, bus: SystemBus | None, set_alarm: Callable[[float], None] | None, *, idle: bool = True
    ) -> None:
        self._bus, self._set_alarm = bus, set_alarm
        self._allowed = (IDLE, LID) if idle else (LID,)
        self._locks: dict[str, int] = {}
        self._told: set[str] = set()

    async def hold(self, *, idle: bool, lid: bool) -> bool:
        """Hold these locks and no others; return whether that was done."""
        done = True
        for what, wanted in ((IDLE, idle), (LID, lid)):
            if not wanted:
                self._give_back(what)
            elif self._bus is not None and what in self._allowed and what not in self._locks:
                done = await self._take(self._bus, what) and done
        return done

    def _give_back(self, what: str) -> None:
        lock = self._locks.pop(what, None)
        if lock is not None:
            os.close(lock)

    async def _take(self, bus: SystemBus, what: str) -> bool:
        # (All users see why: no names of files.)
        why = "transfers with deadlines are on their way"
        try:
            self._locks[what] = await bus.descriptor(
                *_LOGIND, _MANAGER, "Inhibit", "ssss", [what, "cedos", why, "block"]
            )
        except BusError as error:
            if what not in self._told:
                self._told.add(what)
                _log.info(
                    "the host may fall asleep while transfers move", lock=what, why=str(error)
                )
            return False
        return True

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
        self._give_back(IDLE)
        self._give_back(LID)
        self.set_alarm(0.0)

"""D-Lock (Cedos, III-E): awake while a transfer can move, asleep while none can, woken when one must."""

import os
import time
from typing import Final

import structlog

from cedos.daemon.deadlines.wake_alarm import WakeAlarm
from cedos.host.monitor.bus import BusError, SystemBus
from cedos.selector.deadlines.transfer_table import Wake

_LOGIND: Final = ("org.freedesktop.login1", "/org/freedesktop/login1")
_MANAGER: Final = "org.freedesktop.login1.Manager"
_AGAIN_S: Final = 30.0

IDLE: Final = "idle"
"""That the host falls asleep by itself."""

LID: Final = "handle-lid-switch"
"""That it does as its lid is closed."""

_log = structlog.get_logger(__name__)


class SleepInhibitor:
    """An inhibitor lock of logind: it keeps the host awake while a transfer can move (Cedos, III-E).

    All other causes of sleep, and a user's own suspend, work as ever. If logind is missing or refuses,
    one log line says so.
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


class DLock:
    """To be told each second.

    Args:
        idle: inhibits that the host falls asleep by itself.
        lid: that it does as its lid is closed: only after it was woken, else in half a minute it would
            sleep again.
        alarm: None: it is never woken.
    """

    def __init__(self, idle: SleepInhibitor, lid: SleepInhibitor, alarm: WakeAlarm | None) -> None:
        self._idle, self._lid, self._alarm = idle, lid, alarm

    @property
    def wakes(self) -> bool:
        return self._alarm is not None

    @property
    def set_for(self) -> Wake | None:
        """Return what the alarm is set for."""
        return self._alarm.set_for if self._alarm is not None else None

    @property
    def problem(self) -> str:
        """Return why the host is not woken though it should be; empty: it is."""
        return self._alarm.problem if self._alarm is not None else ""

    async def update(self, moving: int, wake: Wake | None) -> None:
        """Hold what is needed for `moving` transfers that can move now, and for the next `wake`."""
        needed = moving > 0
        if self._alarm is not None:
            await self._alarm.update(wake)
            # From when a metered network alone would just be in time it looks for better ones, awake.
            needed = needed or (self._alarm.set_for is not None and wake is not None and wake.now)
            await self._lid.hold(self._alarm.awake_for(needed))
        await self._idle.hold(needed)

    def release(self) -> None:
        """Release all locks and the alarm."""
        self._idle.release()
        self._lid.release()
        if self._alarm is not None:
            self._alarm.release()

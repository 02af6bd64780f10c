"""D-Lock (Cedos, III-E): awake while a transfer can move, asleep while none can, woken when one must."""

from cedos.daemon.deadlines.sleep_inhibitor import SleepInhibitor
from cedos.daemon.deadlines.wake_alarm import WakeAlarm
from cedos.selector.deadlines.transfer_table import Wake


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

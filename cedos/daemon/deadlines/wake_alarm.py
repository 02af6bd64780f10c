"""Wakes the host when a transfer must begin, by its clock; sparing of the battery."""

import time
from collections.abc import Callable
from typing import Final

import structlog

from cedos.errors import HostError
from cedos.host.monitor.providers.battery import BatteryReader
from cedos.selector.deadlines.transfer_table import Wake

_SOONEST_S: Final = 15.0
_GOES_ON_S, _LONGEST_S = 120.0, 3600.0
"""The seconds that urgent transfers go on after the host was put to sleep (the paper's period); twice as
long after each time that it was woken and nothing moved, as the phone was not here."""

_MOVED_S: Final = 5.0
"""An alarm that would move by less stays as it is."""

_AGAIN_S: Final = 60.0
_LOOK_S: Final = 60.0
"""Seconds that a woken host looks for a network with its lid closed."""

_SLEPT_S: Final = 1.0

_log = structlog.get_logger(__name__)


def asleep_s() -> float:
    """Return for how long this host has slept since it was started."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) - time.clock_gettime(time.CLOCK_MONOTONIC)


class WakeAlarm:
    """Sets the alarm, and knows whether the host was woken by it.

    Args:
        set_alarm: sets it at an instant, 0: takes it away; OSError: it cannot be had, HostError: none
            can be asked.
        battery: None: no battery is known, so that it is never set.
        above_percent: on battery it is set only with more than this.
        asleep: as `asleep_s`.
    """

    def __init__(
        self,
        set_alarm: Callable[[float], None],
        battery: BatteryReader | None,
        above_percent: int,
        *,
        unix: Callable[[], float] = time.time,
        asleep: Callable[[], float] = asleep_s,
    ) -> None:
        self._set_alarm, self._battery, self._above = set_alarm, battery, above_percent
        self._unix, self._asleep = unix, asleep
        self._slept_s = asleep()
        self._woken_unix_s: float | None = None
        self._read_unix_s = self._failed_unix_s = 0.0
        self._spared = self._failed = ""
        self._wanted, self._was_needed, self._goes_on_s = False, True, _GOES_ON_S
        self.set_for: Wake | None = None

    @property
    def problem(self) -> str:
        """Return why there is no alarm though one is wanted; empty: there is no reason."""
        why = (self._failed or self._spared) if self._wanted else ""
        return f"this host is not woken for transfers with deadlines: {why}" if why else ""

    def awake_for(self, needed: bool) -> bool:
        """Return whether it was woken by us, and is needed for what it was woken for."""
        self._was_needed = self._was_needed or needed
        if self._woken_unix_s is None or self._spared:
            return False
        if needed or self._unix() - self._woken_unix_s < _LOOK_S:
            return True
        self._woken_unix_s = None
        return False

    async def update(self, wake: Wake | None) -> None:
        """Set the alarm for a wake; None: for none."""
        self._look_at_sleep()
        self._wanted = wake is not None
        now = self._unix()
        if (wake is not None or self._woken_unix_s is not None) and not (
            0.0 <= now - self._read_unix_s < _AGAIN_S
        ):
            self._read_unix_s = now
            await self._read_battery()
        if wake is None or self._spared:
            self.release()
            return
        must = wake.at_unix_s <= now
        at_unix_s = max(wake.at_unix_s, now + (self._goes_on_s if must else _SOONEST_S))
        kept = self.set_for
        # (What must be carried now has an alarm that moves with the time.)
        stays = (
            kept is not None
            and kept.key == wake.key
            and abs(kept.at_unix_s - at_unix_s) < _MOVED_S
            and kept.at_unix_s > now + _SOONEST_S
        )
        if not stays:
            self._set(Wake(at_unix_s, wake.key))

    def release(self) -> None:
        """Take the alarm back."""
        if self.set_for is not None:
            self._set(None)

    def _look_at_sleep(self) -> None:
        slept_s = self._asleep()
        if slept_s - self._slept_s > _SLEPT_S:
            by_us = self.set_for is not None and self._unix() >= self.set_for.at_unix_s - _SLEPT_S
            self._woken_unix_s = self._unix() if by_us else None
            self._read_unix_s = 0.0  # the battery is another one than before
            if by_us:
                self._goes_on_s = (
                    _GOES_ON_S if self._was_needed else min(2.0 * self._goes_on_s, _LONGEST_S)
                )
                self._was_needed = False
                _log.info("woken for a transfer with a deadline", slept_s=slept_s - self._slept_s)
        self._slept_s = slept_s

    async def _read_battery(self) -> None:
        battery = await self._battery.read() if self._battery is not None else None
        if self._battery is None or not self._battery.answered:
            self._spared = "UPower does not tell whether it is on battery"
        elif battery is not None and battery.discharging and 100 * battery.level <= self._above:
            self._spared = (
                f"it is on battery, at {battery.level:.0%}"
                f" (wake_battery_percent = {self._above} in [transfers])"
            )
        else:
            self._spared = ""

    def _set(self, wake: Wake | None) -> None:
        now = self._unix()
        if wake is not None and 0.0 <= now - self._failed_unix_s < _AGAIN_S:
            return
        self.set_for = wake
        before, self._failed = self._failed, ""
        try:
            self._set_alarm(wake.at_unix_s if wake is not None else 0.0)
        except PermissionError:
            self._fails("CAP_WAKE_ALARM is missing (`cedos example unit` says how to give it)", now)
        except OSError as error:
            self._fails(error.strerror or str(error), now)
        except HostError as error:
            self._fails(str(error), now)
        if self._failed and self._failed != before:
            _log.warning("no alarm", why=self._failed)

    def _fails(self, why: str, now: float) -> None:
        self._failed, self.set_for, self._failed_unix_s = why, None, now

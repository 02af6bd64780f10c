"""How much of the data plan is used: bytes of the metered networks since its last reset. Pure.

Interface counters begin anew with their interface and with the host, so differences are added up,
and the sum is kept over restarts of the daemon.
"""

from calendar import monthrange
from collections.abc import Mapping
from datetime import date, timedelta
from typing import Any


def period_of(day: date, reset_day: int) -> date:
    """The day on which the plan's current period began; a month too short has its last day."""
    begin = day.replace(day=min(reset_day, monthrange(day.year, day.month)[1]))
    if begin <= day:
        return begin
    before = day.replace(day=1) - timedelta(days=1)
    return before.replace(day=min(reset_day, monthrange(before.year, before.month)[1]))


class PlanMeter:
    """Adds up what metered networks carry.

    Args:
        limit_bytes: the plan from one reset to the next.
        reset_day: day of the month on which it begins anew.
        boot: tells this start of the host from others: counters begin at 0 with each.
    """

    def __init__(self, limit_bytes: int, reset_day: int, boot: str) -> None:
        self.used_bytes = 0
        self._limit_bytes = limit_bytes
        self._reset_day = reset_day
        self._boot = boot
        self._period: date | None = None
        self._counters: dict[str, int] = {}
        self._resumed = False

    def observe(self, interface: str, total_bytes: int, today: date) -> None:
        """Takes a metered interface's counters (received and sent together).

        What an interface had carried when it was first seen counts only if the meter was there
        before: then it has been carried since.
        """
        self._roll(today)
        before = self._counters.get(interface)
        self._counters[interface] = total_bytes
        if before is None:
            self.used_bytes += total_bytes if self._resumed else 0
        else:
            self.used_bytes += total_bytes - before if total_bytes >= before else total_bytes

    def used_share(self, today: date) -> float:
        """The share of the plan that is used, above 1 where it is exceeded."""
        self._roll(today)
        return self.used_bytes / self._limit_bytes

    def _roll(self, today: date) -> None:
        period = period_of(today, self._reset_day)
        # A clock that was set back begins no new period.
        if self._period is None or period > self._period:
            if self._period is not None:
                self.used_bytes = 0
            self._period = period

    def state(self) -> dict[str, Any]:
        """What must survive a restart, as plain data for JSON."""
        return {
            "period": self._period.isoformat() if self._period else None,
            "used_bytes": self.used_bytes,
            "boot": self._boot,
            "counters": dict(self._counters),
        }

    def resume(self, state: Mapping[str, Any]) -> None:
        """Goes on from a state.

        Raises:
            ValueError: it is none.
        """
        try:
            period = date.fromisoformat(state["period"]) if state["period"] else None
            used, boot = int(state["used_bytes"]), str(state["boot"])
            counters = {str(name): int(total) for name, total in state["counters"].items()}
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"not a data plan's state: {error!r}") from error
        self._period, self.used_bytes = period, used
        self._counters = counters if boot == self._boot else {}
        self._resumed = period is not None

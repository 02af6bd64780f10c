"""When a simulated host sleeps, and when it is woken: as WakeLock, as Cedos' D-Lock, and as ours."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import inf

from cedos.selector.deadlines.deadline_flow import DeadlineFlow
from cedos.selector.deadlines.network_state import NetworkState
from cedos.selector.deadlines.wake import wake_in_s

_LONGEST_S = 10**7
_LOOK_S = 60.0
_PAUSE_S, _LONGEST_PAUSE_S = 120.0, 3600.0
"""As the daemon's `WakeAlarm` where no network is here."""


@dataclass(slots=True)
class Sleep:
    """It sleeps while nothing moves, until the product's alarm (`wake_in_s`).

    Attributes:
        locked: awake while anything waits (Android's WakeLock).
        every_s: it is woken so often, too, to look for Wi-Fi; 0: only by the alarm.
        alarm: whether there is one.
        awake_s, looks: what came of it; a look finds nothing and takes no time here.
    """

    locked: bool = False
    every_s: int = 0
    alarm: bool = True
    awake_s: int = 0
    looks: int = 0
    _up_s: float = -inf
    _pause_s: float = _PAUSE_S

    def for_s(
        self,
        moving: bool,
        waiting: bool,
        ahead: Sequence[DeadlineFlow],
        states_in: Callable[[float], Sequence[NetworkState]],
        now_s: float,
    ) -> int:
        """Seconds that it sleeps from now on; 0: it is awake."""
        if any(each.up for each in states_in(0.0)):
            self._up_s = now_s
        if moving or (waiting and self.locked):
            self._pause_s = _PAUSE_S
            return 0
        in_s = wake_in_s(ahead, states_in, now_s) if self.alarm else None
        if in_s == 0.0:
            if now_s - self._up_s < _LOOK_S:
                return 0
            in_s, self._pause_s = self._pause_s, min(2.0 * self._pause_s, _LONGEST_PAUSE_S)
        asleep_s = _LONGEST_S if in_s is None else max(int(in_s), 1)
        if waiting and 0 < self.every_s <= asleep_s:
            self.looks += 1
            return self.every_s
        return asleep_s

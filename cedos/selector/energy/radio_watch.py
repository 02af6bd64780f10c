"""Which state a radio is in, told from its traffic, as PowerTutor does; and what that has cost."""

from cedos.selector.energy.radio import ACTIVE, IDLE, Radio

SAMPLED_S = 1.0
"""Bytes that are told so close behind others were carried all the time in between."""


class RadioWatch:
    """Follows one radio. Instants are of one clock; one before the last is taken for the last.

    Args:
        sampled_s: how far apart the looks at its traffic are, at most.
    """

    def __init__(self, radio: Radio, sampled_s: float = SAMPLED_S) -> None:
        self._radio = radio
        # Looks are never quite as far apart as they should be.
        self._sampled_s = sampled_s * 1.5
        self._began_s: float | None = None
        self._at_s = 0.0
        self._used_s: float | None = None
        self._state: int | None = None
        self._lingered_s = 0.0
        self._energy_j = 0.0
        self._seconds = dict.fromkeys((ACTIVE, IDLE, *(state.name for state in radio.states)), 0.0)

    def carried(self, now_s: float, bytes_up: float, bytes_down: float) -> None:
        """So many bytes went over it since the last time, the last of them now."""
        if bytes_up <= 0.0 and bytes_down <= 0.0:
            self._pass(now_s)
            return
        radio = self._radio
        now_s = self._clocked(now_s)
        lately = self._used_s is not None and now_s - self._used_s <= self._sampled_s
        if not lately:
            self._pass(now_s)
        if self._state is None:
            self._energy_j += radio.promotion_j
        self._state = radio.carrying(bytes_up, bytes_down, self._state)
        active_s = now_s - self._at_s
        state = radio.states[self._state]
        self._energy_j += state.active_j(bytes_up, bytes_down, active_s) - radio.idle_w * active_s
        self._seconds[ACTIVE] += active_s
        self._at_s = self._used_s = now_s
        self._lingered_s = 0.0

    def idle_s(self, now_s: float) -> float | None:
        """Seconds since it was last used; None: never."""
        return None if self._used_s is None else max(now_s - self._used_s, 0.0)

    def state(self, now_s: float) -> str:
        """The name of the state it is in."""
        self._pass(now_s)
        return IDLE if self._state is None else self._radio.states[self._state].name

    def shares(self, now_s: float) -> dict[str, float]:
        """The share of time in each state: `active` with data, the states' names without, `idle`."""
        self._pass(now_s)
        total = sum(self._seconds.values())
        if total <= 0.0:
            return {IDLE: 1.0}
        return {name: seconds / total for name, seconds in self._seconds.items()}

    def energy_j(self, now_s: float) -> float:
        """Joules until now, beyond what the idle radio takes."""
        self._pass(now_s)
        return self._energy_j

    def _clocked(self, now_s: float) -> float:
        if self._began_s is None:
            self._began_s = self._at_s = now_s
        return max(now_s, self._at_s)

    def _pass(self, now_s: float) -> None:
        """Time goes by without data."""
        now_s = self._clocked(now_s)
        left_s = now_s - self._at_s
        self._at_s = now_s
        while left_s > 0.0 and self._state is not None:
            state = self._radio.states[self._state]
            step_s = min(left_s, state.linger_s - self._lingered_s)
            self._energy_j += (state.linger_w - self._radio.idle_w) * step_s
            self._seconds[state.name] += step_s
            self._lingered_s += step_s
            left_s -= step_s
            if self._lingered_s >= state.linger_s:
                below = self._state + 1
                self._state = below if below < len(self._radio.states) else None
                self._lingered_s = 0.0
        self._seconds[IDLE] += left_s

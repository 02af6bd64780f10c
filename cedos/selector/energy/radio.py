"""A radio's states: what a transfer costs beyond the idle radio (dissertation, 3.2.2.2; PowerTutor).

A cellular radio that has something to carry is promoted to a high-power state, and stays there for a
while afterwards, in steps (3G: DCH, then FACH; LTE: one tail), before it is idle again. A transfer that
finds it there pays no promotion, and only for the part of the tail that had run down by then.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import accumulate
from math import isfinite

from cedos.model import Direction

IDLE, ACTIVE = "idle", "active"


@dataclass(frozen=True, slots=True)
class RadioState:
    """One high-power state; watts are the radio's whole power.

    Attributes:
        active_w: while data is carried.
        send_w: while more is sent than received; None: the same.
        linger_w: while none is.
        linger_s: so long it stays without data before the next lower state.
        j_per_byte_up: joules beyond that for each byte sent, where power rises with the rate.
        j_per_byte_down: the same for bytes received.
        from_bytes_up: the state is entered for more than so many bytes that wait to be sent; what is
            less goes in the next lower state.
        from_bytes_down: the same for bytes to be received.
    """

    name: str
    active_w: float
    linger_w: float
    linger_s: float
    j_per_byte_up: float = 0.0
    j_per_byte_down: float = 0.0
    from_bytes_up: float = 0.0
    from_bytes_down: float = 0.0
    send_w: float | None = None

    def watts(self, *, sending: bool) -> float:
        """While data is carried, the rate aside."""
        return self.active_w if self.send_w is None or not sending else self.send_w

    def active_j(self, bytes_up: float, bytes_down: float, seconds: float) -> float:
        """Joules of the radio while this is carried."""
        return (
            self.watts(sending=bytes_up > bytes_down) * seconds
            + self.j_per_byte_up * bytes_up
            + self.j_per_byte_down * bytes_down
        )


@dataclass(frozen=True, slots=True)
class Radio:
    """A radio of a device; all joules that its methods give are beyond what the idle radio takes.

    Attributes:
        source: where the figures come from.
        idle_w: watts of the idle radio.
        promotion_w: watts while it is promoted from idle.
        promotion_s: how long that takes.
        states: those of high power, the highest first.
    """

    source: str
    idle_w: float
    promotion_w: float
    promotion_s: float
    states: tuple[RadioState, ...]

    @property
    def tail_s(self) -> float:
        """From the last byte in the highest state until it is idle."""
        return sum([state.linger_s for state in self.states])

    @property
    def tail_j(self) -> float:
        """Joules of a whole tail."""
        return self._ran_down_j(self.tail_s)

    @property
    def promotion_j(self) -> float:
        """Joules of a promotion."""
        return max(self.promotion_w - self.idle_w, 0.0) * self.promotion_s

    def active_w(self, direction: Direction, rate_bps: float = 0.0) -> float:
        """Watts while a transfer lasts, beyond the idle radio."""
        top = self.states[0]
        sending = direction == Direction.UP
        per_byte = top.j_per_byte_up if sending else top.j_per_byte_down
        return top.watts(sending=sending) - self.idle_w + per_byte * rate_bps / 8.0

    def added_tail_j(self, idle_s: float | None) -> float:
        """Joules by which a transfer prolongs the tail, with the promotion where it needs one.

        Args:
            idle_s: seconds since the radio was last used; None: long ago.
        """
        if idle_s is None or idle_s >= self.tail_s:
            return self.promotion_j + self.tail_j
        return self._ran_down_j(max(idle_s, 0.0))

    def transfer_j(
        self,
        *,
        bytes_up: float = 0.0,
        bytes_down: float = 0.0,
        seconds: float,
        idle_s: float | None = None,
    ) -> float:
        """Joules of a transfer, promotion and tail included; nothing for no bytes."""
        if bytes_up <= 0.0 and bytes_down <= 0.0:
            return 0.0
        number = self.carrying(bytes_up, bytes_down, self._state_after(idle_s))
        active_j = self.states[number].active_j(bytes_up, bytes_down, seconds)
        # A tail from a lower state is shorter by what comes before that state.
        missed_j = self._ran_down_j(sum([state.linger_s for state in self.states[:number]]))
        added_j = max(self.added_tail_j(idle_s) - missed_j, 0.0)
        return active_j - self.idle_w * seconds + added_j

    def expected_j(
        self,
        *,
        bytes_up: float = 0.0,
        bytes_down: float = 0.0,
        seconds: float,
        shares: Mapping[str, float],
    ) -> float:
        """Joules of a transfer at some time to come: the mean over the states it may meet (3.2.2.2).

        `shares`: the share of time in each state (`RadioWatch.shares`); what is missing is idle.
        """
        ends_s = list(accumulate(state.linger_s for state in self.states))
        met = {ACTIVE: 0.0} | {
            # Within a state's time, the middle stands for all moments: its power is even.
            state.name: end_s - state.linger_s / 2
            for state, end_s in zip(self.states, ends_s, strict=True)
        }
        expected_j, seen = 0.0, 0.0
        for name, idle_s in met.items():
            share = shares.get(name, 0.0)
            if share > 0.0:
                seen += share
                expected_j += share * self.transfer_j(
                    bytes_up=bytes_up, bytes_down=bytes_down, seconds=seconds, idle_s=idle_s
                )
        idle_j = self.transfer_j(bytes_up=bytes_up, bytes_down=bytes_down, seconds=seconds)
        return expected_j + max(1.0 - seen, 0.0) * idle_j

    def carrying(self, bytes_up: float, bytes_down: float, present: int | None) -> int:
        """The number of the state that carries so many bytes, as they wait at once.

        `present`: the state it is in; it does not step down while there is data. None: idle.
        """
        lowest = len(self.states) - 1
        number = 0
        while number < lowest and not (
            bytes_up > self.states[number].from_bytes_up
            or bytes_down > self.states[number].from_bytes_down
        ):
            number += 1
        return number if present is None else min(number, present)

    def _state_after(self, idle_s: float | None) -> int | None:
        """The state that a radio is in so long after it was used in its highest one."""
        if idle_s is None or not isfinite(idle_s):
            return None
        ends_s = accumulate(state.linger_s for state in self.states)
        return next((number for number, end_s in enumerate(ends_s) if idle_s < end_s), None)

    def _ran_down_j(self, idle_s: float) -> float:
        """Joules of the first part of a tail."""
        joules = 0.0
        for state in self.states:
            joules += (state.linger_w - self.idle_w) * min(idle_s, state.linger_s)
            idle_s -= state.linger_s
            if idle_s <= 0.0:
                break
        return joules

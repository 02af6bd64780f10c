"""Energy in joules: transfers, radio states, and the radios' state read from their traffic.

`RadioPower` is Delphi's model (section 7.2, Table 4): one power for each technology and direction,
the same at every data rate, and a constant tail after an LTE transfer. The dissertation (3.2.2.2)
charges only the part by which a running tail is prolonged. Both radios are on during an MPTCP
transfer, so their powers add up.

`Radio` has states (dissertation, 3.2.2.2; PowerTutor). A cellular radio with data to carry is
promoted to a high-power state and stays there for a while, in steps (3G: DCH, then FACH; LTE: one
tail), before it is idle again. A transfer in that time pays no promotion, and only for the part of
the tail that had run down. Costs are those beyond an idle radio.

`RadioWatch` derives the state of a radio, and the energy used, from its traffic, as PowerTutor
does.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import accumulate
from math import isfinite
from types import MappingProxyType
from typing import Protocol

from cedos.model import Direction, Network, NetworkKind
from cedos.selector.objective import Objective, Outcome

_UP = Direction.UP


@dataclass(frozen=True, slots=True)
class RadioPower:
    """A radio by its power.

    It draws watts while it sends or receives, then `tail_j` joules over `tail_s` seconds.
    """

    send_w: float
    receive_w: float
    tail_j: float = 0.0
    tail_s: float = 0.0

    def active_w(self, direction: Direction) -> float:
        """Return the watts while a transfer in this direction lasts."""
        return self.send_w if direction == _UP else self.receive_w

    def added_tail_j(self, idle_s: float | None) -> float:
        """Return the joules by which a transfer prolongs the tail.

        Args:
            idle_s: seconds since the radio was last used; None: long ago. The old tail has run for
                that long, and the new one begins in its place, so the difference is what is paid.
        """
        if idle_s is None or idle_s >= self.tail_s:
            return self.tail_j
        return self.tail_j * max(idle_s, 0.0) / self.tail_s


class RadioEnergy(Protocol):
    """The energy model that decisions use: `RadioPower` or the states of `Radio`."""

    @property
    def tail_s(self) -> float:
        """Seconds until it is idle after its last byte."""

    @property
    def tail_j(self) -> float:
        """Joules of these."""

    def active_w(self, direction: Direction, /) -> float:
        """Return the watts while a transfer in this direction lasts."""

    def added_tail_j(self, idle_s: float | None, /) -> float:
        """Return the joules that a transfer adds, `idle_s` seconds after the last one (None: long)."""


@dataclass(frozen=True, slots=True)
class PowerModel:
    """The radios of a host, by the kind of network."""

    radios: Mapping[NetworkKind, RadioEnergy]


# Delphi, Table 4. The paper treats the LTE tail as a constant and does not print it: 6.5 J is our
# figure, spread over the 11.5 s that LTE networks keep an idle radio awake. An Ethernet port, which
# the paper does not know, is charged like Wi-Fi.
_WIFI = RadioPower(send_w=0.536, receive_w=0.428)
DELPHI = PowerModel(
    MappingProxyType(
        {
            NetworkKind.WIFI: _WIFI,
            NetworkKind.ETHERNET: _WIFI,
            NetworkKind.HELPER: _WIFI,
            NetworkKind.CELLULAR: RadioPower(
                send_w=2.778, receive_w=1.674, tail_j=6.5, tail_s=11.5
            ),
        }
    )
)


# A move that finds a subflow ready saves a round trip and the radio's start, 0.1 s or so; of the
# connections that live long enough to get a spare about one in twenty is ever moved.
_SAVES_S = 0.005
_LASTS_S = 1.0
_CARRIES_BYTES = 1e6


def not_worth_a_spare(
    networks: Iterable[Network],
    objective: Objective,
    power: PowerModel,
    idle_s: Mapping[str, float],
) -> frozenset[str]:
    """Return the networks over which a spare subflow costs more joules than the time it saves is worth.

    `idle_s`: network -> seconds since it was last used; absent: long ago.
    """
    found = set()
    for network in networks:
        radio = power.radios[network.kind]
        # A radio without a tail costs nothing to keep ready.
        tail_j = radio.added_tail_j(idle_s.get(network.name))
        if not tail_j:
            continue
        energy_j = radio.active_w(Direction.DOWN) * _LASTS_S
        # Compare a typical connection without a spare and with one.
        without = Outcome(_LASTS_S, energy_j, 0.0, _CARRIES_BYTES)
        ready = without._replace(time_s=_LASTS_S - _SAVES_S, energy_j=energy_j + tail_j)
        if objective.cost(ready) >= objective.cost(without):
            found.add(network.name)
    return frozenset(found)


IDLE, ACTIVE = "idle", "active"


@dataclass(frozen=True, slots=True)
class RadioState:
    """A high-power state; watts are the radio's whole power."""

    name: str
    active_w: float  # power while data is carried
    linger_w: float  # power while no data is carried
    # The time without data after which the radio steps down to the next lower state.
    linger_s: float
    # Joules beyond that for each byte sent, where power rises with the rate.
    j_per_byte_up: float = 0.0
    j_per_byte_down: float = 0.0  # the same for bytes received
    # The radio enters this state if more than this many bytes wait to be sent; fewer are carried in
    # the next lower state.
    from_bytes_up: float = 0.0
    from_bytes_down: float = 0.0  # the same for bytes to be received
    send_w: float | None = None  # power while more is sent than received; None: `active_w`

    def watts(self, *, sending: bool) -> float:
        """Return the power while data is carried, without the part that depends on the rate."""
        return self.active_w if self.send_w is None or not sending else self.send_w

    def active_j(self, bytes_up: float, bytes_down: float, seconds: float) -> float:
        """Return the joules of the radio while this is carried."""
        return (
            self.watts(sending=bytes_up > bytes_down) * seconds
            + self.j_per_byte_up * bytes_up
            + self.j_per_byte_down * bytes_down
        )


@dataclass(frozen=True, slots=True)
class Radio:
    """A radio of a device; all joules that its methods give are beyond what the idle radio takes."""

    source: str  # where the figures come from
    idle_w: float  # watts of the idle radio
    promotion_w: float  # watts while it is promoted from idle
    promotion_s: float  # how long that takes
    states: tuple[RadioState, ...]  # those of high power, the highest first

    @property
    def tail_s(self) -> float:
        """The seconds from the last byte in the highest state until the radio is idle."""
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
        """Return the watts while a transfer lasts, beyond the idle radio."""
        top = self.states[0]
        sending = direction == Direction.UP
        per_byte = top.j_per_byte_up if sending else top.j_per_byte_down
        return top.watts(sending=sending) - self.idle_w + per_byte * rate_bps / 8.0

    def added_tail_j(self, idle_s: float | None) -> float:
        """Return the joules by which a transfer prolongs the tail, with the promotion where it needs one.

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
        """Return the joules of a transfer, promotion and tail included; nothing for no bytes."""
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
        """Return the joules of a later transfer: the mean over the states it may meet (3.2.2.2).

        `shares`: the share of time in each state (`RadioWatch.shares`); what is missing is idle.
        """
        # The states that the transfer may meet, each with the seconds since the radio was used.
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
        """Return the number of the state that carries so many waiting bytes.

        `present`: the state it is in; it does not step down while there is data. None: idle.
        """
        lowest = len(self.states) - 1
        number = 0
        # The highest state whose threshold the waiting bytes exceed; the lowest one takes any.
        while number < lowest and not (
            bytes_up > self.states[number].from_bytes_up
            or bytes_down > self.states[number].from_bytes_down
        ):
            number += 1
        return number if present is None else min(number, present)

    def _state_after(self, idle_s: float | None) -> int | None:
        """Return the state of a radio this long after use in its highest state."""
        if idle_s is None or not isfinite(idle_s):
            return None
        ends_s = accumulate(state.linger_s for state in self.states)
        return next((number for number, end_s in enumerate(ends_s) if idle_s < end_s), None)

    def _ran_down_j(self, idle_s: float) -> float:
        """Return the joules of the first part of a tail."""
        joules = 0.0
        for state in self.states:
            # State by state, as long as each lingers.
            joules += (state.linger_w - self.idle_w) * min(idle_s, state.linger_s)
            idle_s -= state.linger_s
            if idle_s <= 0.0:
                break
        return joules


# Bytes reported within this time of others count as carried steadily in between.
SAMPLED_S = 1.0


class RadioWatch:
    """The state and the energy of one radio, derived from its traffic.

    The states step down with time, as in PowerTutor: bytes raise the radio to the state that carries
    them (after a promotion, if it was idle), each state without data lasts its `linger_s`, and after the
    last one the radio is idle. Instants are of one clock; an instant before the last one is taken for the
    last one.

    Args:
        sampled_s: the longest time between two looks at the radio's traffic.
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

    def add_bytes(self, now_s: float, bytes_up: float, bytes_down: float) -> None:
        """Record the bytes since the last call, the last of them now."""
        if bytes_up <= 0.0 and bytes_down <= 0.0:
            self._pass(now_s)
            return
        radio = self._radio
        now_s = self._advance_clock(now_s)
        # Bytes soon after others were carried all the time in between; later ones came after a pause.
        lately = self._used_s is not None and now_s - self._used_s <= self._sampled_s
        if not lately:
            self._pass(now_s)
        # An idle radio is promoted first.
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
        """Return the seconds since it was last used; None: never."""
        return None if self._used_s is None else max(now_s - self._used_s, 0.0)

    def state(self, now_s: float) -> str:
        """Return the name of the radio's state."""
        self._pass(now_s)
        return IDLE if self._state is None else self._radio.states[self._state].name

    def shares(self, now_s: float) -> dict[str, float]:
        """Return the share of time in each state.

        `active` with data, the states' names without, `idle`.
        """
        self._pass(now_s)
        total = sum(self._seconds.values())
        if total <= 0.0:
            return {IDLE: 1.0}
        return {name: seconds / total for name, seconds in self._seconds.items()}

    def energy_j(self, now_s: float) -> float:
        """Return the joules until now, beyond what the idle radio takes."""
        self._pass(now_s)
        return self._energy_j

    def _advance_clock(self, now_s: float) -> float:
        if self._began_s is None:
            self._began_s = self._at_s = now_s
        return max(now_s, self._at_s)

    def _pass(self, now_s: float) -> None:
        """Step through the states of the time until now, which had no data."""
        now_s = self._advance_clock(now_s)
        left_s = now_s - self._at_s
        self._at_s = now_s
        while left_s > 0.0 and self._state is not None:
            state = self._radio.states[self._state]
            # Linger in this state until its time or ours is over, then step down.
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

"""A flow in progress: when to decide again, and how its times differ from a new transfer's.

The daemon decides again when a network came or went, when data came, and when none came: after
twice the expected time, then every 200 ms until the transfer ends (dissertation, 4.4.3.1).
"""

import math
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf, isfinite

from cedos.model import NetworkKind, SizeEstimate, Strategy, StrategyKind, Transfer
from cedos.selector.decision.liveness import longer_s
from predictors.base import Distribution

# After this many times the expected time without data, the daemon decides again.
LATE = 2.0

# It does so again each time that this has passed, as long as no data comes.
AGAIN_S = 0.2

_HALVINGS = 60


class Reevaluation:
    """The instants at which one thing under way is to be decided on again.

    Args:
        began_s: when it began, by any clock.
        expected_s: how long it was expected to take; infinite if that is unknown.
    """

    def __init__(self, began_s: float, expected_s: float) -> None:
        known = isfinite(expected_s) and expected_s >= 0.0
        # The first such instant.
        self.late_at_s = began_s + max(LATE * expected_s, AGAIN_S) if known else inf
        # The next instant at which the silence is a reason to decide.
        self.next_at_s = self.late_at_s

    def due(self, now_s: float) -> bool:
        """Return whether to decide now; if so, the next time is 200 ms later."""
        if now_s < self.next_at_s:
            return False
        self.next_at_s = now_s + AGAIN_S
        return True

    def is_late(self, now_s: float) -> bool:
        """Return whether the silence has lasted longer than expected; changes nothing."""
        return now_s >= self.late_at_s


def tipping_point(
    chosen: Callable[[float], Hashable],  # what is chosen at a value
    low: float,  # where the decision is the present one
    high: float,  # the largest value of interest
    granularity: float,  # how exact, in the value's unit; positive
) -> float | None:
    """Find the value at which a decision tips, by bisection (dissertation, 4.3.4).

    The value is one that only grows while the program waits: the time without an answer, say, or the
    length of an utterance. This works for every method of evaluation, as it only looks at the choices.

    Returns:
        The smallest value known (within `granularity`) to be beyond the tipping point; None where the
        choice at `high` is still the one at `low`.
    """
    present = chosen(low)
    if chosen(high) == present:
        return None
    # The choice differs at both ends, so it tips somewhere between: bisect.
    for _ in range(_HALVINGS):
        if high - low <= granularity:
            break
        middle = 0.5 * (low + high)
        if chosen(middle) == present:
            low = middle
        else:
            high = middle
    return high


# A change must save this share of the cost that it can save.
MARGIN = 0.1

# The price of a change of network in seconds. Measured: 0.05 for 95 % of moves, 0.21 for the worst
# (`cedos-emu bench switch`).
SWITCH_S = 0.1

# A flow that tries another network knows after this time how fast that one is.
TRYING_S = 1.0

_LEAST_BPS = 1e3
_AHEAD_S = 600.0

# The weight of the last second's rate beside the prediction, in logarithms.
#
# A slow second is seldom a slow minute, and competing transfers end (docs/decisions/staying.md).
_OBSERVED = 1 / 3


def rest_of(transfer: Transfer, bytes_remaining: int) -> Transfer:
    """Return the rest of a transfer."""
    rest = max(bytes_remaining, 1)
    return replace(transfer, size=SizeEstimate(rest, rest, rest, "progress"))


@dataclass(slots=True)
class Living:
    """The state of a flow that `decide_again` decides on."""

    current: Strategy  # the strategy in force
    switch_cost_s: float = SWITCH_S  # seconds without data when a flow changes networks
    # The share of the cost that can be saved (see `decide_again`) which a move must save.
    margin: float = MARGIN
    # The flow's recent rate. 0: stalled. None: unknown, or limited by the program.
    observed_bps: float | None = None
    # How long a stalled flow has stood still. It is expected to stand still for as long again, or for
    # the usual rest of such a silence (`liveness.longer_s`), whichever is longer.
    stalled_s: float = 0.0
    # How long the flow has waited without any byte of its rest. Of the expected times only longer
    # ones are still possible (dissertation, 4.3.4).
    waited_s: float = 0.0
    # The rate at which the program reads, if the program sets the pace and not the network (0: it
    # does not read). No other network ends such a flow sooner; a move must save other costs.
    pace_bps: float | None = None
    # Whether many received bytes wait for the program, so that the networks are fast enough.
    unread: bool = False
    # Networks of the flow that may be tried alone: so many bytes are unread that the flow can come
    # back from a bad one before the program has read them.
    may_try: Collection[str] = ()

    def least_s(self, size_bytes: int) -> float:
        """Return the seconds that the program itself takes for this size, at most ten minutes."""
        if self.pace_bps is None:
            return 0.0
        return min(8.0 * size_bytes / max(self.pace_bps, _LEAST_BPS), _AHEAD_S)

    def times(
        self,
        predicted: Mapping[Strategy, Distribution],  # times of a new transfer
        old: Collection[Strategy],  # the strategies whose networks' rates were measured long ago
        size_bytes: int,  # the rest of the flow
        # The kind of the network that carries the flow, and the lengths of its pauses.
        used: Mapping[NetworkKind, Sequence[float]],
        *,
        silent: bool,  # whether that network is silent; `predicted` contains the wait then
    ) -> dict[Strategy, Distribution]:
        """Return the times of all strategies for this flow, from those of a new transfer.

        - A strategy that shares no path with the current one pays the switch; one that keeps a path
          does not, as the data flow on.
        - A strategy that adds a network is no faster than the sum of both: this flow at its present
          rate, and a new transfer over the other network from the switch on.
        - A strategy that leaves one of the flow's networks is slower than predicted by the same factor as
          the flow itself, since that network brought a part of the last second's data.
        - A flow that tries a little-known network (`old`) can come back, so a bad outcome costs at
          most the time until then.
        """
        found = {}
        # First the current strategy, corrected by how the flow has been going.
        staying, slower = predicted.get(self.current), 1.0
        if staying is not None:
            slower = max(self._slower(staying, size_bytes), 1.0)
            staying = found[self.current] = self._staying(staying, size_bytes, used, silent=silent)
        for strategy, new in predicted.items():
            if strategy == self.current:
                continue
            shares_a_path = not set(strategy.networks).isdisjoint(self.current.networks)
            # A move without a shared path interrupts the data.
            moving_s = 0.0 if shares_a_path else self.switch_cost_s
            limit_s = math.inf
            # A trial of a little-known network ends by coming back, which bounds its time.
            if staying is not None and strategy in old:
                limit_s = staying.mean + TRYING_S + 2.0 * self.switch_cost_s
            # A joining network helps from the switch on, and not before.
            alone = predicted.get(self._joining(strategy))
            leaves = set(strategy.networks) < set(self.current.networks)
            time = new.scale(slower) if leaves else new
            if staying is not None and alone is not None:
                time = self._no_sooner(new, staying, alone)
            found[strategy] = Distribution(
                tuple([min(sample + moving_s, limit_s) for sample in time.samples])
            )
        # The program's own pace bounds all strategies from below.
        if self.pace_bps is None:
            return found
        if staying is not None and self.unread and not silent:
            # The rest is here, unread: the networks need no more time, only the program does (below).
            staying = found[self.current] = staying.scale(0.0)
        return {
            strategy: self._at_its_pace(time, self.least_s(size_bytes), staying, strategy)
            for strategy, time in found.items()
        }

    def _at_its_pace(
        self, time: Distribution, least_s: float, staying: Distribution | None, strategy: Strategy
    ) -> Distribution:
        # A trial of one of the flow's own networks ends before the program has read the unread bytes, so
        # it takes no longer than staying. No strategy is faster than the program reads.
        limit_s, networks = math.inf, set(strategy.networks)
        tried = networks < set(self.current.networks) and networks.issubset(self.may_try)
        if staying is not None and tried:
            limit_s = staying.mean
        return Distribution(tuple([max(min(sample, limit_s), least_s) for sample in time.samples]))

    def _joining(self, strategy: Strategy) -> Strategy:
        """Return the single network that would join the flow's own one; `defer` if none would."""
        others = tuple(name for name in strategy.networks if name not in self.current.networks)
        joins = strategy.kind is StrategyKind.MPTCP and self.current.kind is StrategyKind.SINGLE
        if joins and len(others) == len(strategy.networks) - 1 == 1:
            return Strategy(StrategyKind.SINGLE, others)
        return Strategy(StrategyKind.DEFER, ())

    def _no_sooner(
        self, together: Distribution, staying: Distribution, alone: Distribution
    ) -> Distribution:
        """Return the time over both networks, but no less than both need if they share the rest.

        The other network carries its share only once the switch to it is done.
        """
        samples = []
        # Compare quantile by quantile.
        for number, sample in enumerate(together.samples):
            share = (number + 0.5) / len(together.samples)
            here_s, there_s = staying.quantile(share), alone.quantile(share)
            carries_s = max(there_s - self.switch_cost_s, 0.0)
            # Until the switch only the flow's own network carries the rest, from then on both. So the
            # time x solves x / here_s + (x - switch) / (there_s - switch) = 1.
            shared_s = here_s * there_s / max(here_s + carries_s, there_s)
            samples.append(max(sample, min(here_s, shared_s)))
        return Distribution(tuple(samples))

    def _staying(
        self,
        time: Distribution,
        size_bytes: int,
        used: Mapping[NetworkKind, Sequence[float]],
        *,
        silent: bool,
    ) -> Distribution:
        if self.observed_bps:
            return time.scale(self._slower(time, size_bytes))
        # Stalled: it stands still for as long again, or as silences of its network last.
        if self.observed_bps is not None:
            if silent:
                return time
            longest_s = [longer_s(kind, self.stalled_s, pauses) for kind, pauses in used.items()]
            return time.shift(max([self.stalled_s, *longest_s]))
        # Nothing has come so far: only the longer ones of the expected times are still possible.
        if self.waited_s > 0.0:
            return time.left_after(self.waited_s)
        return time

    def _slower(self, time: Distribution, size_bytes: int) -> float:
        """Return the factor by which the last second's rate changes the predicted time."""
        if not self.observed_bps:
            return 1.0
        rest_s = 8.0 * size_bytes / max(self.observed_bps, _LEAST_BPS)
        return float((rest_s / time.mean) ** _OBSERVED)

    def has_paths_of(self, strategy: Strategy) -> bool:
        """Return whether a strategy is `mptcp` over the flow's own paths with another primary."""
        current = self.current.networks
        return (
            strategy.kind == StrategyKind.MPTCP
            and strategy.networks[:1] != current[:1]
            and set(current[:1]) <= set(strategy.networks)
        )

"""A flow that is under way: what its strategies' times become beside those of a new one."""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from cedos.model import NetworkKind, SizeEstimate, Strategy, StrategyKind, Transfer
from cedos.selector.decision.silences import longer_s
from predictors.base import Distribution

MARGIN = 0.1
"""A living flow moves only for a gain of this share of what staying costs."""

TRYING_S = 1.0
"""A flow that tries another network knows after so long what that is worth."""

_LEAST_BPS = 1e3
_AHEAD_S = 600.0

_OBSERVED = 1 / 3
"""How much the last second's rate counts beside what is predicted (of their logarithms): a slow second is
seldom a slow minute, and those that share a network end (docs/decisions/staying.md)."""


def rest_of(transfer: Transfer, bytes_remaining: int) -> Transfer:
    """What is still to be carried of a transfer, as far as is known."""
    rest = max(bytes_remaining, 1)
    return replace(transfer, size=SizeEstimate(rest, rest, rest, "progress"))


@dataclass(slots=True)
class Living:
    """How a flow has been going that `decide_again` is asked about.

    Attributes:
        current: the strategy in force.
        switch_cost_s: measured seconds without data when a flow changes networks.
        margin: the share of the staying cost that a move must save.
        observed_bps: the rate at which the flow has been going lately. 0: stalled. None: unknown, or
            limited by the application.
        stalled_s: how long a stalled flow has stood still; it is expected to do so for as long again,
            or for as long as silences of its network last (`silent`).
        waited_s: how long the rest has been awaited without any of it: of the times that were expected
            only the longer ones are still possible (dissertation, 4.3.4).
        pace_bps: how fast the program reads, where that and not the network sets the pace (0: not at
            all). It is no sooner done over any other, and a move saves of the rest of the cost.
        unread: much of what came lies unread now: its networks bring all that it reads.
        may_try: the networks of which it may be tried whether they are enough by themselves, since much
            lies unread: before that is read the flow is back.
    """

    current: Strategy
    switch_cost_s: float
    margin: float = MARGIN
    observed_bps: float | None = None
    stalled_s: float = 0.0
    waited_s: float = 0.0
    pace_bps: float | None = None
    unread: bool = False
    may_try: Collection[str] = ()

    def least_s(self, size_bytes: int) -> float:
        """How long the program itself takes for so much, as far as anybody looks ahead."""
        if self.pace_bps is None:
            return 0.0
        return min(8.0 * size_bytes / max(self.pace_bps, _LEAST_BPS), _AHEAD_S)

    def times(
        self,
        predicted: Mapping[Strategy, Distribution],
        old: Collection[Strategy],
        size_bytes: int,
        used: Mapping[NetworkKind, Sequence[float]],
        *,
        silent: bool,
    ) -> dict[Strategy, Distribution]:
        """The times of all strategies, of those that would be expected of a new transfer.

        A strategy that shares no path with the current one pays the switch; one that keeps a path pays
        nothing for it, as the data flow on. One that adds a network is no faster than both at once
        apart: this flow at its pace, and a new transfer over the other network once that is there.
        One that leaves a network is slower than predicted by as much as the flow on all of them: what
        came in the last second came over its networks, too.
        Whoever tries a network of which little is known (`old`) can come back when it is bad: what
        that can cost is the time until then.

        Args:
            predicted: of a new transfer.
            old: the strategies whose networks' rates were measured long ago.
            size_bytes: of the rest.
            used: the kind of the network that carries the flow, and how long its pauses were.
            silent: whether that network is silent, which `predicted` has in it then.
        """
        found = {}
        staying, slower = predicted.get(self.current), 1.0
        if staying is not None:
            slower = max(self._slower(staying, size_bytes), 1.0)
            staying = found[self.current] = self._staying(staying, size_bytes, used, silent=silent)
        for strategy, new in predicted.items():
            if strategy == self.current:
                continue
            shares_a_path = not set(strategy.networks).isdisjoint(self.current.networks)
            moving_s = 0.0 if shares_a_path else self.switch_cost_s
            limit_s = math.inf
            if staying is not None and strategy in old:
                limit_s = staying.mean + TRYING_S + 2.0 * self.switch_cost_s
            alone = predicted.get(self._joining(strategy))
            leaves = set(strategy.networks) < set(self.current.networks)
            time = new.scaled(slower) if leaves else new
            if staying is not None and alone is not None:
                time = self._no_sooner(new, staying, alone)
            found[strategy] = Distribution(
                tuple([min(sample + moving_s, limit_s) for sample in time.samples])
            )
        if self.pace_bps is None:
            return found
        if staying is not None and self.unread and not silent:
            staying = found[self.current] = staying.scaled(0.0)  # nobody waits for it
        return {
            strategy: self._at_its_pace(time, self.least_s(size_bytes), staying, strategy)
            for strategy, time in found.items()
        }

    def _at_its_pace(
        self, time: Distribution, least_s: float, staying: Distribution | None, strategy: Strategy
    ) -> Distribution:
        limit_s, networks = math.inf, set(strategy.networks)
        tried = networks < set(self.current.networks) and networks.issubset(self.may_try)
        if staying is not None and tried:
            limit_s = staying.mean
        return Distribution(tuple([max(min(sample, limit_s), least_s) for sample in time.samples]))

    def _joining(self, strategy: Strategy) -> Strategy:
        """The network alone that joins the flow's own one; `defer` where none does."""
        others = tuple(name for name in strategy.networks if name not in self.current.networks)
        joins = strategy.kind is StrategyKind.MPTCP and self.current.kind is StrategyKind.SINGLE
        if joins and len(others) == len(strategy.networks) - 1 == 1:
            return Strategy(StrategyKind.SINGLE, others)
        return Strategy(StrategyKind.DEFER, ())

    def _no_sooner(
        self, together: Distribution, staying: Distribution, alone: Distribution
    ) -> Distribution:
        """Than both could share the rest from when the other network is there."""
        samples = []
        for number, sample in enumerate(together.samples):
            share = (number + 0.5) / len(together.samples)
            here_s, there_s = staying.quantile(share), alone.quantile(share)
            carries_s = max(there_s - self.switch_cost_s, 0.0)
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
            return time.scaled(self._slower(time, size_bytes))
        if self.observed_bps is not None:
            if silent:
                return time
            longest_s = [longer_s(kind, self.stalled_s, pauses) for kind, pauses in used.items()]
            return time.later(max([self.stalled_s, *longest_s]))
        if self.waited_s > 0.0:
            return time.left_after(self.waited_s)
        return time

    def _slower(self, time: Distribution, size_bytes: int) -> float:
        """What its last second makes of the time that was predicted of the flow, over that."""
        if not self.observed_bps:
            return 1.0
        rest_s = 8.0 * size_bytes / max(self.observed_bps, _LEAST_BPS)
        return float((rest_s / time.mean) ** _OBSERVED)

    def has_paths_of(self, strategy: Strategy) -> bool:
        """Whether it is `mptcp` over paths that the flow has, with the other one called primary."""
        current = self.current.networks
        return (
            strategy.kind == StrategyKind.MPTCP
            and strategy.networks[:1] != current[:1]
            and set(current[:1]) <= set(strategy.networks)
        )

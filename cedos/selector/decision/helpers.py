"""Helpers beside the chosen networks: neighbours who sell a session the way to its gateway (CBSP).

First the host's own networks are chosen, and that decision stays as it is. Then helpers may join. Rates
add up: data that the chosen networks carry in T and a helper in L takes T * L / (T + L) over all of
them, and the helper carries T / (T + L) of it. The cheapest helper is tried first. A helper joins if
that lowers the cost by the objective, which prices metered bytes and money. Helpers alone are tried,
too: they carry the transfer if no own network is up, or if that costs less.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from cedos.model import Decision, Evaluation, Network, NetworkKind, Strategy, StrategyKind
from cedos.selector.decision import reason
from cedos.selector.decision.case import Case
from cedos.selector.decision.decide import decide
from cedos.selector.decision.evaluate import worth_s
from cedos.selector.decision.liveness import why_dead
from cedos.selector.objective import S_PER_MONEY, Outcome

_SINGLE: Final = frozenset({StrategyKind.SINGLE})


@dataclass(frozen=True, slots=True)
class _Way:
    """Networks that carry a transfer together: the bytes of each, the times, the joules, the cost."""

    bytes_by_network: Mapping[str, float]
    time_s: float
    low_s: float
    high_s: float
    energy_j: float
    metered_bytes: float
    cost: float = 0.0

    def add(self, other: "_Way") -> "_Way":
        """Return both together, each at its own rate, without a cost."""
        # The share of the bytes that `other` carries: the slower this way is, the more.
        share = self.time_s / max(self.time_s + other.time_s, 1e-9)
        parts = ((self, 1.0 - share), (other, share))
        return _Way(
            {
                name: part * size
                for way, part in parts
                for name, size in way.bytes_by_network.items()
            },
            self.time_s * (1.0 - share),
            self.low_s * (1.0 - share),
            self.high_s * (1.0 - share),
            sum(part * way.energy_j for way, part in parts),
            sum(part * way.metered_bytes for way, part in parts),
        )

    def evaluation(self, strategy: Strategy) -> Evaluation:
        return Evaluation(
            strategy,
            self.time_s,
            self.low_s,
            self.high_s,
            self.energy_j,
            self.metered_bytes,
            self.cost,
        )


# A combination to which helpers may be added: its networks, the primary one first, and what they carry.
_Begin = tuple[tuple[str, ...], _Way]


def with_helpers(case: Case, decision: Decision, helpers: Sequence[Network]) -> Decision:
    """Return the decision about a session's transfer with the helpers that are worth their price."""
    living = [each for each in helpers if each.up and why_dead(case.context, each.name) is None]
    choice = decision.choice
    if not living or choice.kind is StrategyKind.REDUNDANT or case.sent is not None:
        return decision
    counted = _Counted(case, [*case.networks, *living])
    # Each alone, the cheapest first.
    singles = {each.name: counted.way_alone(each) for each in living}
    order = sorted(living, key=lambda each: (each.money_per_mb, singles[each.name].time_s))
    first = min(order, key=lambda each: singles[each.name].cost).name
    # Begin with the chosen own networks, and also with the best helper alone; the cheaper result wins.
    begins: list[_Begin] = [((first,), singles[first])]
    chosen = next((each for each in decision.evaluations if each.strategy == choice), None)
    if chosen is not None:
        begins.insert(0, (choice.networks, counted.chosen(chosen)))
    names, way = min(
        (_add_helpers(begin, order, singles, counted) for begin in begins),
        key=lambda it: it[1].cost,
    )
    kind = StrategyKind.SINGLE if len(names) == 1 else StrategyKind.MPTCP
    strategy = Strategy(kind, names)
    # The record shows each helper alone, and the combination that was chosen.
    weighed = [
        singles[each.name].evaluation(Strategy(StrategyKind.SINGLE, (each.name,))) for each in order
    ]
    known = {each.strategy for each in (*decision.evaluations, *weighed)}
    if strategy not in known:
        weighed.append(way.evaluation(strategy))
    why = _describe_reason(living, names, begins, way)
    return replace(
        decision,
        choice=strategy,
        evaluations=(*decision.evaluations, *weighed),
        reason=reason.sentences(why, *((decision.reason,) if chosen is not None else ())),
    )


def _add_helpers(
    begin: _Begin, order: Sequence[Network], singles: Mapping[str, _Way], counted: "_Counted"
) -> _Begin:
    """Return a way with all helpers that lower its cost."""
    names, way = begin
    for helper in order:
        if helper.name not in names:
            more = counted.with_cost(way.add(singles[helper.name]))
            if more.cost < way.cost:
                names, way = (*names, helper.name), more
    return names, way


def _describe_reason(
    living: Sequence[Network], names: Sequence[str], begins: Sequence[_Begin], way: _Way
) -> str:
    prices = {each.name: f"{each.name} for {each.money_per_mb * 1e3:.2g} a GB" for each in living}
    used = " and ".join([text for name, text in prices.items() if name in names])
    if not used:
        return f"{' and '.join(prices.values())} would cost more than the time saved is worth"
    own, before = begins[0]
    carries = "carries" if sum(name in names for name in prices) == 1 else "carry"
    if own[0] in prices:
        return f"{used} {carries} it in {reason.seconds(way.time_s)}: no other network is up"
    beside = "beside" if names[: len(own)] == own else "instead of"
    return (
        f"{used} {carries} data {beside} {' and '.join(own)}:"
        f" {reason.seconds(way.time_s)}, not {reason.seconds(before.time_s)}"
    )


class _Counted:
    """The costs of ways by one case's objective."""

    def __init__(self, case: Case, networks: Sequence[Network]) -> None:
        self._case = case
        self._networks = {each.name: each for each in networks}
        self._size_bytes = float(case.transfer.size.median_bytes)

    def way_alone(self, helper: Network) -> _Way:
        """Return what a helper would do alone."""
        case = replace(self._case, networks=(helper,), kinds=_SINGLE, sent=None)
        return self._make_way(decide(case).evaluations[0], {helper.name: self._size_bytes})

    def chosen(self, found: Evaluation) -> _Way:
        """Return what the chosen own networks do, with the bytes of each."""
        # The evaluation tells the metered bytes. Networks of one sort share theirs equally.
        names = found.strategy.networks
        metered = [name for name in names if self._networks[name].metered]
        free = [name for name in names if name not in metered]
        paid_bytes = found.metered_bytes if free else self._size_bytes
        sizes = dict.fromkeys(metered, paid_bytes / max(len(metered), 1))
        rest_bytes = self._size_bytes - (paid_bytes if metered else 0.0)
        return self._make_way(found, sizes | dict.fromkeys(free, rest_bytes / max(len(free), 1)))

    def _make_way(self, found: Evaluation, sizes: Mapping[str, float]) -> _Way:
        metered_bytes = sum(size for name, size in sizes.items() if self._networks[name].metered)
        return self.with_cost(
            _Way(
                sizes,
                found.time_s,
                found.time_low_s,
                found.time_high_s,
                found.energy_j,
                metered_bytes,
            )
        )

    def with_cost(self, way: _Way) -> _Way:
        """Return a way with its cost."""
        case, objective = self._case, self._case.objective
        seconds, deadline_s = way.time_s, case.transfer.deadline_s
        if deadline_s is not None:
            seconds = worth_s(seconds, way.high_s, deadline_s)
        money = to_helpers = data_s = 0.0
        for name, size in way.bytes_by_network.items():
            network = self._networks[name]
            paid = size * case.money_per_mb(network) / 1e6
            money += paid
            to_helpers += paid if network.kind is NetworkKind.HELPER else 0.0
            data_s += objective.prices.data_s(name, size, seconds)
        outcome = Outcome(seconds, way.energy_j, way.metered_bytes, self._size_bytes, money, data_s)
        cost = objective.cost(outcome)
        # Helpers are paid now, so that money counts without a budget of it, too.
        if not objective.relative and not objective.prices.money:
            cost += S_PER_MONEY * to_helpers
        return replace(way, cost=cost)

"""Prospects of flows with deadlines: end and begin, and the cost of each way.

**Prospect.** When a flow ends, when it must begin, and what it costs.

**Alternatives.** The cost of each way to carry a flow; deferring is one of them (the one currency).
Within the deadline time costs nothing; beyond it a second is a second. Metered bytes have the
prices of their networks, joules theirs. The scheduler chooses for all flows together; these figures
explain its choice.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import inf, isfinite
from typing import Final, NamedTuple

from cedos.model import Evaluation, Strategy, StrategyKind
from cedos.selector.deadlines.chance import accepted_chance, chance_of_miss
from cedos.selector.deadlines.network_state import NetworkState
from cedos.selector.deadlines.plan import EPOCH_S, DeadlineFlow

_STEPS: Final = 16
_LONGEST_S: Final = 30 * 86_400.0
_TENTHS: Final = 10
# An end is known to a thousandth of the time until then, or to a millisecond.
_EXACT: Final = 1e-3
_EXACT_S: Final = 1e-3


@dataclass(frozen=True, slots=True)
class Prospect:
    """The prospect of a flow: instants on the clock of `now`; inf: never, as far as is known."""

    # When metered networks must begin, if free ones carry no more than is certain; inf: not at all;
    # at or before now: they have begun.
    begin_at_s: float
    # `end_low_s`, `end_s`, `end_high_s`: the median of its end with its 90 % interval.
    end_low_s: float
    end_s: float
    end_high_s: float
    missed: float  # the probability of a miss, should metered networks wait for one more epoch
    metered_bytes: float  # expected


def prospect(
    flow: DeadlineFlow, order: Sequence[DeadlineFlow], networks: Sequence[NetworkState], now: float
) -> Prospect:
    """Return the prospect of a flow among all flows, the earliest deadlines first."""
    # Flows with earlier deadlines are carried first, so their bits count, too.
    bits = total_bits(flow, order)
    free = [each for each in networks if each.usable and each.free]
    paid = [each for each in networks if each.usable and not each.free]
    within_s = flow.deadline_at_s - now
    # When must metered networks begin, and when does the flow end then?
    begin_s = _latest_s(bits, free, paid, within_s)
    ends = ends_s(bits, free, paid, begin_s, (0.05, 0.5, 0.95))
    # Metered networks carry what free ones leave at the deadline: the mean over ten quantiles.
    slices = [(k + 0.5) / _TENTHS for k in range(_TENTHS)]
    metered = [max(bits - _sum(free, max(within_s, 0.0), q), 0.0) / 8.0 for q in slices]
    own_share = flow.left_bytes * 8.0 / bits if bits > 0.0 else 0.0
    return Prospect(
        begin_at_s=now + begin_s,
        end_low_s=now + ends[0],
        end_s=now + ends[1],
        end_high_s=now + ends[2],
        missed=chance_of_miss(
            [(each, 0.0) for each in free], [(each, EPOCH_S) for each in paid], within_s, bits
        ),
        metered_bytes=own_share * sum(metered) / _TENTHS if paid else 0.0,
    )


def total_bits(flow: DeadlineFlow, flows: Sequence[DeadlineFlow]) -> float:
    """Return the bits carried until a flow ends: flows with earlier deadlines come first."""
    before = [each.left_bytes for each in flows if each.deadline_at_s < flow.deadline_at_s]
    return 8.0 * (sum(before) + flow.left_bytes)


def ends_s(
    bits: float,
    free: Sequence[NetworkState],
    paid: Sequence[NetworkState],
    begin_s: float,
    quantiles: Sequence[float],
) -> list[float]:
    """Return when so many bits are carried, free networks from now on and metered ones from `begin_s`.

    `quantiles`: of the time, so the one of the carried bits is its complement.
    """
    ends: list[float] = []
    for q in quantiles:
        # The end at another quantile is the best guess, so programs' many questions cost little.
        ends.append(_end_s(bits, free, paid, begin_s, 1.0 - q, ends[-1] if ends else 1.0))
    return ends


def _sum(networks: Sequence[NetworkState], within_s: float, q: float, wait_s: float = 0.0) -> float:
    return sum([each.supply.bits(within_s, q, wait_s) for each in networks])


def _latest_s(
    bits: float, free: Sequence[NetworkState], paid: Sequence[NetworkState], within_s: float
) -> float:
    """Return how long the metered networks may wait, at the target; inf: they are not needed.

    If no free network is up, the answer is for the case that none comes.
    """
    if within_s <= 0.0:
        return 0.0
    working = [(each, 0.0) for each in free]

    # The risk grows with the wait, so the latest begin is found by bisection.
    def risky(wait_s: float) -> bool:
        waiting = [(each, wait_s) for each in paid]
        target = accepted_chance(within_s - wait_s)
        return chance_of_miss(working, waiting, within_s, bits, target) > target

    if not paid:
        return inf
    # Free networks alone suffice. If none is up now, reckon as if none came.
    if not risky(within_s):
        if any(each.up for each in free):
            return inf
        working = []
    low, high = 0.0, within_s
    for _ in range(_STEPS):
        middle = (low + high) / 2.0
        low, high = (low, middle) if risky(middle) else (middle, high)
    return low


def _end_s(
    bits: float,
    free: Sequence[NetworkState],
    paid: Sequence[NetworkState],
    begin_s: float,
    q: float,
    guess_s: float,
) -> float:
    def carried(at_s: float) -> float:
        found = _sum(free, at_s, q)
        return found + (_sum(paid, at_s, q, begin_s) if at_s > begin_s else 0.0)

    # The carried bits grow with time. Look in growing steps from the guess for two instants between
    # which they come to suffice, and bisect these.
    low, high, factor = 0.0, min(guess_s, _LONGEST_S), 2.0
    while carried(high) < bits:
        if high >= _LONGEST_S:
            return inf
        low, high, factor = high, min(high * factor, _LONGEST_S), factor * factor
    if low == 0.0:
        low, factor = high / 2.0, 4.0
        while low > _EXACT_S and carried(low) >= bits:
            low, high, factor = low / factor, low, factor * factor
        low = low if low > _EXACT_S else 0.0
    while high - low > max(_EXACT_S, _EXACT * high):
        middle = (low + high) / 2.0
        if carried(middle) >= bits:
            high = middle
        else:
            low = middle
    return high


_SLICES: Final = tuple((k + 0.5) / 10 for k in range(10))


class Watts(NamedTuple):
    """A network's radio: the power while it carries, and the joules until it sleeps again."""

    active_w: float
    tail_j: float


def alternatives(
    flow: DeadlineFlow,
    flows: Sequence[DeadlineFlow],
    networks: Sequence[NetworkState],
    watts: Mapping[str, Watts],
    s_per_j: float,
    now: float,
) -> tuple[Evaluation, ...]:
    """Return the ways: waiting, each network from now on, and all of them; the cheapest first."""
    usable = [each for each in networks if each.usable]
    up = [each for each in usable if each.up]
    free = [each for each in usable if each.free]
    paid = [each for each in usable if not each.free]
    found = prospect(flow, flows, networks, now)
    bits = total_bits(flow, flows)
    begin_s = found.begin_at_s - now

    def evaluation(
        strategy: Strategy, at_once: Sequence[NetworkState], later: Sequence[NetworkState]
    ) -> Evaluation:
        # Time within the deadline costs nothing; lateness is averaged over the quantiles of the end.
        ends = ends_s(bits, at_once, later, begin_s, _SLICES)
        late_s = sum([max(end_s - (flow.deadline_at_s - now), 0.0) for end_s in ends]) / len(ends)
        # Each network's share of the bytes gives its metered bytes and its radio's joules.
        shares = _shares(bits, at_once, later, min(flow.deadline_at_s - now, max(ends)))
        own_bytes = flow.left_bytes
        metered = {each.name: own_bytes * shares(each) for each in paid}
        joules = sum(
            [
                8.0 * own_bytes * shares(each) / each.rate_bps * watts[each.name].active_w
                + watts[each.name].tail_j * (shares(each) > 0.0)
                for each in usable
                if each.rate_bps > 0.0 and each.name in watts
            ]
        )
        price_s = sum([each.price_s * metered[each.name] for each in paid if metered[each.name]])
        return Evaluation(
            strategy,
            ends[len(ends) // 2],
            ends[0],
            ends[-1],
            joules,
            sum(metered.values()),
            late_s + price_s + s_per_j * joules,
        )

    # Waiting means: free networks now, metered ones at the latest begin.
    ways = [evaluation(Strategy(StrategyKind.DEFER, ()), free, paid)]
    ways += [
        evaluation(Strategy(StrategyKind.SINGLE, (each.name,)), [each], []) for each in up if paid
    ]
    if len(up) > 1:
        names = tuple(each.name for each in sorted(up, key=lambda one: one.price_s))
        ways.append(evaluation(Strategy(StrategyKind.MPTCP, names), up, []))
    return tuple(sorted(ways, key=lambda one: one.cost if isfinite(one.cost) else inf))


def _shares(
    bits: float, at_once: Sequence[NetworkState], later: Sequence[NetworkState], within_s: float
) -> Callable[[NetworkState], float]:
    """Return a function for the part of the bits that each network is expected to carry.

    Networks that begin later carry what the others leave by the deadline.
    """
    carried = {
        each.name: sum([each.supply.bits(max(within_s, 1.0), q) for q in _SLICES]) / len(_SLICES)
        for each in (*at_once, *later)
    }
    # Networks that carry at once share by their rates; later ones share the rest.
    now_bits = sum([carried[each.name] for each in at_once])
    now_share = min(now_bits / bits, 1.0) if later and bits > 0.0 else 1.0
    later_bits = sum([carried[each.name] for each in later])
    shares = {each.name: now_share * carried[each.name] / (now_bits or 1.0) for each in at_once}
    shares |= {
        each.name: (1.0 - now_share) * carried[each.name] / (later_bits or 1.0) for each in later
    }
    return lambda network: shares.get(network.name, 0.0)

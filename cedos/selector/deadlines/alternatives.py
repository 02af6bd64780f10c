"""What each way of carrying a flow that may wait would cost: deferring is one of them (the one currency).

Within the deadline time costs nothing; beyond it a second is a second. Metered bytes have the prices of
their networks, joules theirs. A way is chosen by the scheduler, for all flows together; this says why.
"""

from collections.abc import Callable, Mapping, Sequence
from math import inf, isfinite
from typing import Final, NamedTuple

from cedos.model import Evaluation, Strategy, StrategyKind
from cedos.selector.deadlines.deadline_flow import DeadlineFlow
from cedos.selector.deadlines.network_state import NetworkState
from cedos.selector.deadlines.prospect import ends_s, prospect, total_bits

_SLICES: Final = tuple((k + 0.5) / 10 for k in range(10))


class Watts(NamedTuple):
    """A network's radio: watts while it carries, joules until it sleeps again."""

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
    """Waiting, each network from now on, and all of them; the cheapest first."""
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
        ends = ends_s(bits, at_once, later, begin_s, _SLICES)
        late_s = sum([max(end_s - (flow.deadline_at_s - now), 0.0) for end_s in ends]) / len(ends)
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
    """Which part of the bits each network is expected to carry.

    Those that begin later carry what the others leave by the deadline.
    """
    carried = {
        each.name: sum([each.supply.bits(max(within_s, 1.0), q) for q in _SLICES]) / len(_SLICES)
        for each in (*at_once, *later)
    }
    now_bits = sum([carried[each.name] for each in at_once])
    now_share = min(now_bits / bits, 1.0) if later and bits > 0.0 else 1.0
    later_bits = sum([carried[each.name] for each in later])
    shares = {each.name: now_share * carried[each.name] / (now_bits or 1.0) for each in at_once}
    shares |= {
        each.name: (1.0 - now_share) * carried[each.name] / (later_bits or 1.0) for each in later
    }
    return lambda network: shares.get(network.name, 0.0)

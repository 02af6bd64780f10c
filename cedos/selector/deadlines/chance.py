"""Ours: a metered network is used from when waiting for one more epoch would risk a deadline.

What all networks will have carried by a deadline is uncertain; a flow is urgent once the probability that
it is less than what has to be carried by then, should the metered networks wait for one more epoch,
exceeds a target. Free networks carry all the time, by deadline (EDF), and together with the metered ones.
Of several metered ones the cheapest that suffices is used. Flows that cannot be in time even if all goes
well come last: as few as possible (Moore and Hodgson's rule), so that the others are in time. For them
time counts again, against what a byte costs.

Most tables are not near that, which a bound tells at once: each network's quantile at the target over
their number (Boole's inequality), summed up. Where it does not suffice the probability is computed, free
and metered networks being independent of each other, and all of one sort as bad as the worst of them.
"""

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush, heappushpop
from itertools import compress
from math import inf
from operator import itemgetter
from typing import Final

from cedos.selector.deadlines.deadline_demand import DEADLINE, DeadlineDemand
from cedos.selector.deadlines.deadline_flow import DeadlineFlow
from cedos.selector.deadlines.missed import risky
from cedos.selector.deadlines.network_state import NetworkState
from cedos.selector.deadlines.plan import EPOCH_S, DeadlinePlan

TARGET: Final = 0.01
"""P(miss) from which on a flow is urgent."""

NEAR_TARGET: Final = 0.001
_NEAR_S: Final = 120.0
"""From two minutes before a deadline on: then there is no time left to make up for a rate that is half of
what was expected."""

_HOPE: Final = 0.95
"""What is exceeded with 5 % only is not hoped for."""

_SWITCH_S: Final = 1.0
"""A network that was idle needs up to 0.9 s before it carries anything (Cedos, V-A)."""

_HOLD: Final = 0.01
_LEAST_HOLD_S, _MOST_HOLD_S = 1.0, 10.0
"""Once in use, a metered network is used until there is this share of the time to spare: a radio that is
turned on every second never sleeps."""

_TIME_TO_MEASURE_S: Final = 20.0
"""With more time than that a free network that was never used is measured first."""

_OTHERS: Final = bytes([1]) + bytes(255)
"""Of bytes that mark some flows makes those that mark the others."""

_MOST_BPS: Final = itemgetter(DeadlineFlow._fields.index("most_bps"))


@dataclass(slots=True)
class ChanceScheduler:
    """Decides on all flows of a host."""

    target: float = TARGET
    near_target: float = NEAR_TARGET
    epoch_s: float = EPOCH_S
    switch_s: float = _SWITCH_S
    name: str = "chance"

    def plan(
        self,
        flows: Sequence[DeadlineFlow],
        networks: Sequence[NetworkState],
        now: float,
        before: DeadlinePlan,
    ) -> DeadlinePlan:
        order = sorted([flow for flow in flows if flow.left_bytes > 0.0], key=DEADLINE)
        usable = [each for each in networks if each.usable]
        free = [each for each in usable if each.free]
        paid = sorted([each for each in usable if not each.free], key=lambda one: one.price_s)
        demand = DeadlineDemand.of(order, now)
        late = _hopeless(order, demand, usable, now)
        ahead, behind = order, list(compress(order, late))
        if behind:
            stays = late.translate(_OTHERS)
            ahead = list(compress(order, stays))
            demand = demand.only(stays)
        used = self._needed(demand, free, paid, before) if ahead else []
        served = _served(ahead, [each for each in (*free, *used) if each.up])
        if behind:
            taken = {name for names in served.values() for name in names}
            worth = [each for each in paid if each.up and _worth_it(behind, free, each)]
            idle = [each for each in (*free, *worth) if each.up and each.name not in taken]
            served |= _served(behind, idle)
        names = {name for each in served.values() for name in each}
        return DeadlinePlan(
            served,
            tuple(each.name for each in paid if each.name in names),
            frozenset([each.key for each in behind]),
        )

    def _needed(
        self,
        demand: DeadlineDemand,
        free: Sequence[NetworkState],
        paid: Sequence[NetworkState],
        before: DeadlinePlan,
    ) -> list[NetworkState]:
        """The metered networks without which one more epoch would be too risky, the cheapest first."""
        if demand.within_s(0) > _TIME_TO_MEASURE_S and any(
            each.up and each.unmeasured for each in free
        ):
            return []
        target = accepted(demand.within_s(0), self.target, self.near_target)
        hold_s = min(max(_HOLD * demand.within_s(0), _LEAST_HOLD_S), _MOST_HOLD_S)
        used: list[NetworkState] = []
        for number, network in enumerate(paid):
            waiting = [
                (each, self.epoch_s + (hold_s if each.name in before.paid else self.switch_s))
                for each in paid[number:]
            ]
            working = [(each, 0.0) for each in free]
            metered = [*((each, 0.0) for each in used), *waiting]
            if not risky(demand, working, metered, target):
                break
            if network.up:
                used.append(network)
        return used


def accepted(within_s: float, target: float = TARGET, near_target: float = NEAR_TARGET) -> float:
    """The probability of a miss that is taken by who waits on, with so long until the deadline."""
    return target if within_s >= _NEAR_S else min(target, near_target)


def _hopeless(
    order: Sequence[DeadlineFlow],
    demand: DeadlineDemand,
    networks: Sequence[NetworkState],
    now: float,
) -> bytearray:
    """Those that cannot be in time whatever is done, as few as possible: their numbers have a 1."""
    points = demand.points([(each, 0.0) for each in networks], _HOPE)
    limited = min(map(_MOST_BPS, order), default=inf) < inf
    if not limited and next(demand.short(points), None) is None:
        return bytearray()
    late = bytearray(len(order))
    if limited or demand.at_s[0] < now:
        for number, flow in enumerate(order):
            within_s = flow.deadline_at_s - now
            late[number] = within_s < 0.0 or 8.0 * flow.left_bytes > flow.most_bps * within_s
    left_bytes = demand.left_bytes
    # The largest first, of equal ones the first; a heap of ranks is quicker than one of pairs.
    by_size = sorted(range(len(order)), key=left_bytes.__getitem__, reverse=True)
    ranks = [0] * len(order)
    for rank, number in enumerate(by_size):
        ranks[number] = rank
    hopeful: Iterable[tuple[float, int, float]] = zip(
        left_bytes, ranks, demand.most_bytes(points), strict=True
    )
    if 1 in late:
        hopeful = compress(hopeful, late.translate(_OTHERS))
    largest: list[int] = []
    taken = 0.0
    for own, rank, most in hopeful:
        taken += own
        if taken <= most:
            heappush(largest, rank)
            continue
        which = by_size[heappushpop(largest, rank)]
        taken -= left_bytes[which]
        late[which] = 1
        while taken > most:
            which = by_size[heappop(largest)]
            taken -= left_bytes[which]
            late[which] = 1
    return late


def _served(
    order: Sequence[DeadlineFlow], networks: Sequence[NetworkState]
) -> dict[Hashable, tuple[str, ...]]:
    """Each network carries the first flow; who cannot fill it leaves the rest to the next one."""
    served: dict[Hashable, tuple[str, ...]] = {}
    left = {each.name: each.rate_bps for each in networks}
    for flow in order:
        if not left:
            break
        served[flow.key] = tuple(left)
        if flow.most_bps == inf:
            break
        wanted = flow.most_bps
        for name, rate_bps in list(left.items()):
            if rate_bps > wanted:
                left[name] -= wanted
                break
            wanted -= rate_bps
            del left[name]
    return served


def _worth_it(
    late: Sequence[DeadlineFlow], free: Sequence[NetworkState], network: NetworkState
) -> bool:
    """Whether the seconds that it saves are worth more than its bytes (the one currency)."""
    bits = sum([8.0 * flow.left_bytes for flow in late])
    free_bps = sum([each.rate_bps for each in free if each.up])
    if network.rate_bps <= 0.0:
        return True  # nobody knows; it is late already
    both_bps = free_bps + network.rate_bps
    alone_s = bits / free_bps if free_bps > 0.0 else inf
    metered = bits / 8.0 * network.rate_bps / both_bps
    return alone_s - bits / both_bps > network.price_s * metered

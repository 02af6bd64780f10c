"""The deadline planner: use a metered network once waiting for one more epoch would risk a deadline.

The bytes that all networks will have carried by a deadline are uncertain. A flow is urgent once the
probability that they are less than the bytes due by then exceeds a target, should the metered
networks wait for one more epoch. The plan of one epoch:

1. Put flows that cannot meet their deadlines last, as few as possible (Moore and Hodgson's rule), so that
   the others do. For the late flows time counts again, against the price of their bytes.
2. Serve flows by deadline (EDF) over the free networks, always.
3. If a deadline is at risk, add metered networks, the cheapest that suffices.

Most tables are not near that limit, which a bound tells at once: the sum of each network's quantile
at the target over their number (Boole's inequality). If the bound does not suffice, the probability
is computed. Free and metered networks count as independent of each other; networks of one sort
count as failing together.
"""

from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from heapq import heappop, heappush, heappushpop
from itertools import accumulate, compress, pairwise
from math import inf
from operator import itemgetter, sub
from typing import Final

from cedos.selector.deadlines.network_state import NetworkState
from cedos.selector.deadlines.plan import EPOCH_S, DeadlineFlow, DeadlinePlan

DEADLINE: Final = itemgetter(DeadlineFlow._fields.index("deadline_at_s"))
# A getter by index, for tables of a thousand flows. Access by attribute name takes twice as long.
LEFT: Final = itemgetter(DeadlineFlow._fields.index("left_bytes"))

# The first deadlines are all looked at; each further step skips this many times more of them.
_FIRST: Final = 8
_FARTHER: Final = 1.7

# A network, and the seconds until it carries its first byte.
Waiting = tuple[NetworkState, float]

# A deadline's number, and the bytes carried until then.
Point = tuple[int, float]


@dataclass(frozen=True, slots=True)
class DeadlineDemand:
    """The deadlines in order: the instant, the bytes of its flow, and those of all flows due by then."""

    at_s: Sequence[float]
    left_bytes: Sequence[float]
    bytes_by_then: Sequence[float]
    now: float

    @classmethod
    def of(cls, order: Sequence[DeadlineFlow], now: float) -> "DeadlineDemand":
        """Return the demand of flows in the `order` of their deadlines."""
        left_bytes = list(map(LEFT, order))
        return cls(list(map(DEADLINE, order)), left_bytes, list(accumulate(left_bytes)), now)

    def restrict_to(self, stays: Sequence[int]) -> "DeadlineDemand":
        """Return the demand of the flows whose number has a 1."""
        left_bytes = list(compress(self.left_bytes, stays))
        at_s = list(compress(self.at_s, stays))
        return DeadlineDemand(at_s, left_bytes, list(accumulate(left_bytes)), self.now)

    def within_s(self, number: int) -> float:
        return self.at_s[number] - self.now

    def bits(self, number: int) -> float:
        return 8.0 * self.bytes_by_then[number]

    def short_deadlines(self, points: Sequence[Point]) -> Iterator[int]:
        """Yield the deadlines by which more is wanted than will have been carried.

        Between two points, only the worst deadline counts.
        """
        wanted = self.bytes_by_then
        before: tuple[int, float] | None = None
        for last, more in points:
            if before is not None:
                first, most = before
                # Carried bytes never shrink: if those of the first point suffice for the last deadline
                # before the second point, they suffice for all between.
                if last > first + 1 and wanted[last - 1] > most:
                    line = self._line(first, most, last, more)
                    over = list(map(sub, wanted[first + 1 : last], line))
                    worst = max(range(len(over)), key=over.__getitem__)
                    if over[worst] > 0.0:
                        yield first + 1 + worst
            if wanted[last] > more:
                yield last
            before = last, more

    def most_bytes(self, points: Sequence[Point]) -> list[float]:
        """Return the bytes that will have been carried by each deadline."""
        found = [most for _, most in points[:1]]
        for (first, most), (last, more) in pairwise(points):
            found += self._line(first, most, last, more)
            found.append(more)
        return found

    def points(self, networks: Sequence[Waiting], q: float) -> list[Point]:
        """Return the bytes carried at this quantile by the first deadlines, and by some of the others.

        Between two points the bytes lie on a line.
        """
        found: list[Point] = []
        most = 0.0
        for number in _looked_at(len(self.at_s)):
            within_s = self.at_s[number] - self.now
            bits = 0.0
            for network, wait_s in networks:
                bits += network.supply.bits(within_s, q, wait_s)
            most = max(most, bits / 8.0)
            found.append((number, most))
        return found

    def _line(self, first: int, most: float, last: int, more: float) -> list[float]:
        from_s, to_s = self.at_s[first], self.at_s[last]
        slope = (more - most) / (to_s - from_s) if to_s > from_s else 0.0
        at_zero = most - slope * from_s
        return [at_zero + slope * at_s for at_s in self.at_s[first + 1 : last]]


@lru_cache(maxsize=64)
def _looked_at(count: int) -> tuple[int, ...]:
    found = list(range(min(count, _FIRST)))
    distance = 1.0
    while found and found[-1] < count - 1:
        distance *= _FARTHER
        found.append(min(found[-1] + int(distance) + 1, count - 1))
    return tuple(found)


# The edges of a distribution's slices, narrow where deadlines are decided. Each slice counts as
# its middle.
EDGES: Final = (0.0, 0.002, 0.005, 0.01, 0.02, 0.04, 0.08, 0.15, 0.3, 0.5, 0.75, 1.0)

_SLICES: Final = tuple(((low + high) / 2.0, high - low) for low, high in pairwise(EDGES))

# The most deadlines near their limit that one plan computes. A table with more of them is urgent.
_MOST_COMPUTED: Final = 8


def risky(
    demand: DeadlineDemand, free: Sequence[Waiting], metered: Sequence[Waiting], target: float
) -> bool:
    """Return whether any deadline is missed with a higher probability than `target`."""
    # Boole's inequality passes most tables; only deadlines beyond the bound are computed.
    bound = target / (len(free) + len(metered))
    for count, number in enumerate(demand.short_deadlines(demand.points([*free, *metered], bound))):
        if count >= _MOST_COMPUTED:
            return True
        within_s, bits = demand.within_s(number), demand.bits(number)
        if chance_of_miss(free, metered, within_s, bits, target) > target:
            return True
    return False


def chance_of_miss(
    free: Sequence[Waiting],
    metered: Sequence[Waiting],
    within_s: float,
    bits: float,
    enough: float = inf,
) -> float:
    """Return P(free + metered < bits); the sorts are independent, networks of one sort fail together.

    It stops once it exceeds `enough`, so the result may then be too low.
    """
    # Sum the slices of the free networks, each with the slices of the metered ones that do not suffice.
    total = 0.0
    short = len(_SLICES)
    next_bits: float | None = None
    # The more comes over free networks, the fewer slices of the metered ones are too little.
    # Without free networks their sum is 0 at any quantile, and one slice stands for all.
    for q, share in _SLICES if free else ((0.5, 1.0),):
        carried = _sum(free, within_s, q)
        while short:
            if next_bits is None:
                next_bits = _sum(metered, within_s, _SLICES[short - 1][0])
            if carried + next_bits < bits:
                break
            short, next_bits = short - 1, None
        total += share * EDGES[short]
        if not short or total > enough:
            # All slices of the metered networks suffice, or the answer is known.
            break
    return total


def _sum(networks: Sequence[Waiting], within_s: float, q: float) -> float:
    total = 0.0
    for network, wait_s in networks:
        total += network.supply.bits(within_s, q, wait_s)
    return total


# The probability of a miss from which on a flow is urgent.
TARGET: Final = 0.01

NEAR_TARGET: Final = 0.001
# The time before a deadline from which on it is near: too late to make up for half the expected
# rate.
_NEAR_S: Final = 120.0

# The quantile of the best case.
_HOPE: Final = 0.95

# The time until an idle network carries data: up to 0.9 s (Cedos, V-A).
_SWITCH_S: Final = 1.0

# A metered network in use is kept until there is this share of the time to spare: a radio that is
# turned on every second never sleeps.
_HOLD: Final = 0.01
_LEAST_HOLD_S, _MOST_HOLD_S = 1.0, 10.0

# If more time is left, a free network that was never used is measured first.
_TIME_TO_MEASURE_S: Final = 20.0

# A translation table that inverts the marks of flows.
_OTHERS: Final = bytes([1]) + bytes(255)

_MOST_BPS: Final = itemgetter(DeadlineFlow._fields.index("most_bps"))


@dataclass(slots=True)
class ChanceScheduler:
    """Decides on all flows of a host."""

    target: float = TARGET
    switch_s: float = _SWITCH_S
    name: str = "chance"

    def plan(
        self,
        flows: Sequence[DeadlineFlow],
        networks: Sequence[NetworkState],
        now: float,
        before: DeadlinePlan,
    ) -> DeadlinePlan:
        # The flows by deadline, and the networks by price.
        order = sorted([flow for flow in flows if flow.left_bytes > 0.0], key=DEADLINE)
        usable = [each for each in networks if each.usable]
        free = [each for each in usable if each.free]
        paid = sorted([each for each in usable if not each.free], key=lambda one: one.price_s)
        demand = DeadlineDemand.of(order, now)
        # 1. Put flows that cannot be in time last.
        late = _hopeless(order, demand, usable, now)
        ahead, behind = order, list(compress(order, late))
        if behind:
            stays = late.translate(_OTHERS)
            ahead = list(compress(order, stays))
            demand = demand.restrict_to(stays)
        # 2. and 3. Free networks always; metered ones if a deadline is at risk.
        used = self._needed_networks(demand, free, paid, before) if ahead else []
        served = _serve(ahead, [each for each in (*free, *used) if each.up])
        # Late flows get the networks that are left over, and those worth their price.
        if behind:
            taken = {name for names in served.values() for name in names}
            worth = [each for each in paid if each.up and _worth_it(behind, free, each)]
            idle = [each for each in (*free, *worth) if each.up and each.name not in taken]
            served |= _serve(behind, idle)
        names = {name for each in served.values() for name in each}
        return DeadlinePlan(
            served,
            tuple(each.name for each in paid if each.name in names),
            frozenset([each.key for each in behind]),
        )

    def _needed_networks(
        self,
        demand: DeadlineDemand,
        free: Sequence[NetworkState],
        paid: Sequence[NetworkState],
        before: DeadlinePlan,
    ) -> list[NetworkState]:
        """Return the metered networks that the next epoch needs, the cheapest first."""
        # Measure a new free network first while there is time.
        if demand.within_s(0) > _TIME_TO_MEASURE_S and any(
            each.up and each.unmeasured for each in free
        ):
            return []
        # Add the metered networks one by one, until waiting with the others is safe. A network in
        # use is kept for a while (`hold_s`), an idle one must be switched on first.
        target = accepted_chance(demand.within_s(0), self.target)
        hold_s = min(max(_HOLD * demand.within_s(0), _LEAST_HOLD_S), _MOST_HOLD_S)
        used: list[NetworkState] = []
        for number, network in enumerate(paid):
            waiting = [
                (each, EPOCH_S + (hold_s if each.name in before.paid else self.switch_s))
                for each in paid[number:]
            ]
            working = [(each, 0.0) for each in free]
            metered = [*((each, 0.0) for each in used), *waiting]
            if not risky(demand, working, metered, target):
                break
            if network.up:
                used.append(network)
        return used


def accepted_chance(within_s: float, target: float = TARGET) -> float:
    """Return the accepted probability of a miss while waiting, by the time to the deadline."""
    return target if within_s >= _NEAR_S else min(target, NEAR_TARGET)


def _hopeless(
    order: Sequence[DeadlineFlow],
    demand: DeadlineDemand,
    networks: Sequence[NetworkState],
    now: float,
) -> bytearray:
    """Return the fewest flows that cannot be in time whatever is done: their numbers have a 1."""
    # Fast path: even the hoped-for bytes of every network meet all deadlines.
    points = demand.points([(each, 0.0) for each in networks], _HOPE)
    limited = min(map(_MOST_BPS, order), default=inf) < inf
    if not limited and next(demand.short_deadlines(points), None) is None:
        return bytearray()
    # Flows that are late by themselves: past, or too large for their own limit.
    late = bytearray(len(order))
    if limited or demand.at_s[0] < now:
        for number, flow in enumerate(order):
            within_s = flow.deadline_at_s - now
            late[number] = within_s < 0.0 or 8.0 * flow.left_bytes > flow.most_bps * within_s
    left_bytes = demand.left_bytes
    # The heap holds ranks by size (the largest first, of equals the earlier one): ranks are quicker to
    # compare than pairs.
    by_size = sorted(range(len(order)), key=left_bytes.__getitem__, reverse=True)
    ranks = [0] * len(order)
    for rank, number in enumerate(by_size):
        ranks[number] = rank
    hopeful: Iterable[tuple[float, int, float]] = zip(
        left_bytes, ranks, demand.most_bytes(points), strict=True
    )
    if 1 in late:
        hopeful = compress(hopeful, late.translate(_OTHERS))
    # Moore and Hodgson: add flows by deadline; if the sum is too large, drop the largest.
    largest: list[int] = []
    taken = 0.0
    for own, rank, most in hopeful:
        taken += own
        if taken <= most:
            heappush(largest, rank)
            continue
        # The sum is too large: drop the largest flow so far, which may be the one just added.
        which = by_size[heappushpop(largest, rank)]
        taken -= left_bytes[which]
        late[which] = 1
        while taken > most:
            which = by_size[heappop(largest)]
            taken -= left_bytes[which]
            late[which] = 1
    return late


def _serve(
    order: Sequence[DeadlineFlow], networks: Sequence[NetworkState]
) -> dict[Hashable, tuple[str, ...]]:
    """Return the networks of each flow: the first flow gets all, the next ones what it cannot fill."""
    served: dict[Hashable, tuple[str, ...]] = {}
    # Without a limit of its own, a flow takes all that is left.
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
    """Return whether a network saves seconds worth more than its bytes (the one currency)."""
    bits = sum([8.0 * flow.left_bytes for flow in late])
    free_bps = sum([each.rate_bps for each in free if each.up])
    if network.rate_bps <= 0.0:
        return True  # an unknown rate: the flow is late already
    both_bps = free_bps + network.rate_bps
    # The seconds saved, against the price of the bytes that the network would carry.
    alone_s = bits / free_bps if free_bps > 0.0 else inf
    metered = bits / 8.0 * network.rate_bps / both_bps
    return alone_s - bits / both_bps > network.price_s * metered

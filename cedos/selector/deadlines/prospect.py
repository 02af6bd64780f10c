"""What is expected of one flow of a table: when it ends, when it must begin, what it costs."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf
from typing import Final

from cedos.selector.deadlines.chance import accepted
from cedos.selector.deadlines.deadline_flow import DeadlineFlow
from cedos.selector.deadlines.missed import missed
from cedos.selector.deadlines.network_state import NetworkState
from cedos.selector.deadlines.plan import EPOCH_S

_STEPS: Final = 16
_LONGEST_S: Final = 30 * 86_400.0
_SLICES: Final = 10


@dataclass(frozen=True, slots=True)
class Prospect:
    """Instants on the clock of `now`; inf: never, as far as anybody can tell.

    Attributes:
        begin_at_s: when metered networks must begin, if free ones bring no more than is certain; inf: not
            at all; at or before now: they have.
        end_low_s, end_s, end_high_s: the median of its end with its 90 % interval.
        missed: probability that it is not in time, should metered networks wait for one more epoch.
        metered_bytes: expected.
    """

    begin_at_s: float
    end_low_s: float
    end_s: float
    end_high_s: float
    missed: float
    metered_bytes: float


def prospect(
    flow: DeadlineFlow, order: Sequence[DeadlineFlow], networks: Sequence[NetworkState], now: float
) -> Prospect:
    """Of a flow among all that there are, the earliest deadlines first."""
    bits = total_bits(flow, order)
    free = [each for each in networks if each.usable and each.free]
    paid = [each for each in networks if each.usable and not each.free]
    within_s = flow.deadline_at_s - now
    begin_s = _latest_s(bits, free, paid, within_s)
    ends = ends_s(bits, free, paid, begin_s, (0.05, 0.5, 0.95))
    slices = [(k + 0.5) / _SLICES for k in range(_SLICES)]
    metered = [max(bits - _sum(free, max(within_s, 0.0), q), 0.0) / 8.0 for q in slices]
    own_share = flow.left_bytes * 8.0 / bits if bits > 0.0 else 0.0
    return Prospect(
        begin_at_s=now + begin_s,
        end_low_s=now + ends[0],
        end_s=now + ends[1],
        end_high_s=now + ends[2],
        missed=missed(
            [(each, 0.0) for each in free], [(each, EPOCH_S) for each in paid], within_s, bits
        ),
        metered_bytes=own_share * sum(metered) / _SLICES if paid else 0.0,
    )


def total_bits(flow: DeadlineFlow, flows: Sequence[DeadlineFlow]) -> float:
    """What is carried until a flow is done: what is wanted earlier comes before."""
    before = [each.left_bytes for each in flows if each.deadline_at_s < flow.deadline_at_s]
    return 8.0 * (sum(before) + flow.left_bytes)


def ends_s(
    bits: float,
    free: Sequence[NetworkState],
    paid: Sequence[NetworkState],
    begin_s: float,
    quantiles: Sequence[float],
) -> list[float]:
    """When so much has been carried, free networks from now on and metered ones from `begin_s`."""
    return [_end_s(bits, free, paid, begin_s, 1.0 - q) for q in quantiles]


def _sum(networks: Sequence[NetworkState], within_s: float, q: float, wait_s: float = 0.0) -> float:
    return sum([each.supply.bits(within_s, q, wait_s) for each in networks])


def _latest_s(
    bits: float, free: Sequence[NetworkState], paid: Sequence[NetworkState], within_s: float
) -> float:
    """For how long the metered networks may wait, at the target; inf: they are not needed.

    Where no free network is here it is told when they must begin should none come, as the alarm does.
    """
    if within_s <= 0.0:
        return 0.0
    working = [(each, 0.0) for each in free]

    def risky(wait_s: float) -> bool:
        waiting = [(each, wait_s) for each in paid]
        target = accepted(within_s - wait_s)
        return missed(working, waiting, within_s, bits, target) > target

    if not paid:
        return inf
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
) -> float:
    def carried(at_s: float) -> float:
        found = _sum(free, at_s, q)
        return found + (_sum(paid, at_s, q, begin_s) if at_s > begin_s else 0.0)

    if carried(_LONGEST_S) < bits:
        return inf
    low, high = 0.0, _LONGEST_S
    for _ in range(2 * _STEPS):
        middle = (low + high) / 2.0
        if carried(middle) >= bits:
            high = middle
        else:
            low = middle
    return high

"""The probability that networks will not have carried so much by an instant, or by each of several."""

from collections.abc import Sequence
from itertools import pairwise
from math import inf
from typing import Final

from cedos.selector.deadlines.deadline_demand import DeadlineDemand, Waiting

EDGES: Final = (0.0, 0.002, 0.005, 0.01, 0.02, 0.04, 0.08, 0.15, 0.3, 0.5, 0.75, 1.0)
"""Slices of a distribution, thin where deadlines are decided: each counts as its own middle."""

_SLICES: Final = tuple(((low + high) / 2.0, high - low) for low, high in pairwise(EDGES))

_MOST_COMPUTED: Final = 8
"""Deadlines of one plan; a table with more of them near their limit is urgent."""


def risky(
    demand: DeadlineDemand, free: Sequence[Waiting], metered: Sequence[Waiting], target: float
) -> bool:
    """Whether any deadline is missed with a higher probability than `target`."""
    bound = target / (len(free) + len(metered))
    for count, number in enumerate(demand.short(demand.points([*free, *metered], bound))):
        if count >= _MOST_COMPUTED:
            return True
        within_s, bits = demand.within_s(number), demand.bits(number)
        if missed(free, metered, within_s, bits, target) > target:
            return True
    return False


def missed(
    free: Sequence[Waiting],
    metered: Sequence[Waiting],
    within_s: float,
    bits: float,
    enough: float = inf,
) -> float:
    """P(free + metered < bits); the two sorts independent, networks of one sort bad together.

    Once it exceeds `enough`, how much more it is does not matter any more.
    """
    total = 0.0
    short = len(_SLICES)
    next_bits: float | None = None
    # The more comes over free networks, the fewer slices of the metered ones are too little.
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
            break
    return total


def _sum(networks: Sequence[Waiting], within_s: float, q: float) -> float:
    total = 0.0
    for network, wait_s in networks:
        total += network.supply.bits(within_s, q, wait_s)
    return total

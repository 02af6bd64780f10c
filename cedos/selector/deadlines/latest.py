"""When transfers must begin at the latest, if only networks of one rate are left to carry them.

Served by deadline (EDF), the last one may begin so late that it just ends in time, and each one before
so late that it ends in time and the next one can begin: D2Sched's potential completion times (Cedos,
Algorithm 1), read from their end. Whoever sleeps until the first of these instants misses nothing.
"""

from collections.abc import Hashable, Iterable
from math import inf

from cedos.selector.deadlines.deadline_flow import DeadlineFlow


def latest_begins(
    flows: Iterable[DeadlineFlow], rate_bps: float, spare_s: float = 0.0
) -> dict[Hashable, float]:
    """By key the instant at which it must begin; -inf where nothing can carry it any more.

    `rate_bps` is what can be relied on (a low quantile, not a mean); `spare_s` is what each wants to be
    ready before its deadline.
    """
    begins: dict[Hashable, float] = {}
    next_s = inf
    for flow in sorted(flows, key=lambda each: each.deadline_at_s, reverse=True):
        end_s = min(flow.deadline_at_s - spare_s, next_s)
        if flow.left_bytes > 0.0:
            rate = min(rate_bps, flow.most_bps)
            next_s = end_s - 8.0 * flow.left_bytes / rate if rate > 0.0 else -inf
        else:
            next_s = min(end_s, next_s)
        begins[flow.key] = next_s if flow.left_bytes > 0.0 else inf
    return begins


def next_begin_s(flows: Iterable[DeadlineFlow], rate_bps: float, spare_s: float = 0.0) -> float:
    """The first instant at which anything must begin; inf: never (nothing is left to carry)."""
    return min(latest_begins(flows, rate_bps, spare_s).values(), default=inf)

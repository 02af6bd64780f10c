"""D2Sched, exactly (Cedos, Algorithm 1): one flow at a time over one network.

With the flows in the order of their deadlines, tau_i = sum over j <= i of ceil(f_j / r_c) is when flow i
would be done over the cellular network. While every tau_i is within its deadline nothing is urgent: the
first flow uses Wi-Fi, or all wait. Else the first flow uses the network that is faster. A new Wi-Fi's
first epoch carries nothing, as it is measured (III-D, "Scheduling Epochs").
"""

from collections.abc import Sequence
from math import ceil
from operator import attrgetter

from cedos.selector.deadlines.deadline_flow import DeadlineFlow
from cedos.selector.deadlines.network_state import NetworkState
from cedos.selector.deadlines.plan import DeadlinePlan

_BY_DEADLINE = attrgetter("deadline_at_s")


class D2Sched:
    """The networks with a price are cellular ones, of several the fastest; those without are Wi-Fi."""

    name = "d2sched"

    def plan(
        self,
        flows: Sequence[DeadlineFlow],
        networks: Sequence[NetworkState],
        now: float,
        before: DeadlinePlan,
    ) -> DeadlinePlan:
        waiting = sorted([flow for flow in flows if flow.left_bytes > 0.0], key=_BY_DEADLINE)
        if not waiting:
            return DeadlinePlan()
        wifi = _fastest([each for each in networks if each.up and each.free and not each.fresh])
        cellular = _fastest(
            [each for each in networks if each.up and not each.free and each.usable]
        )
        if _all_in_time(waiting, cellular.rate_bps if cellular else 0.0, now):
            chosen = wifi
        else:
            chosen = _fastest([each for each in (wifi, cellular) if each is not None])
        if chosen is None:
            return DeadlinePlan()
        paid = () if chosen.free else (chosen.name,)
        return DeadlinePlan({waiting[0].key: (chosen.name,)}, paid)


def _all_in_time(waiting: Sequence[DeadlineFlow], rate_bps: float, now: float) -> bool:
    if rate_bps < 1.0:
        return False
    tau_s = 0.0
    for flow in waiting:
        tau_s += ceil(8.0 * flow.left_bytes / rate_bps)
        if tau_s > flow.deadline_at_s - now:
            return False
    return True


def _fastest(networks: Sequence[NetworkState]) -> NetworkState | None:
    return max(networks, key=attrgetter("rate_bps"), default=None)

"""When a host that sleeps must be woken for its transfers (D-Lock: Cedos, III-E and IV-A.3). Pure.

While it sleeps nothing comes, and nobody knows in which Wi-Fi it will wake: what has to come is held
against the metered networks alone, which are there when they are needed, at rates that grow older
meanwhile. A host without any counts on the networks it has.
"""

from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Final

from cedos.selector.deadlines.chance import accepted
from cedos.selector.deadlines.deadline_demand import DeadlineDemand
from cedos.selector.deadlines.deadline_flow import DeadlineFlow
from cedos.selector.deadlines.missed import risky
from cedos.selector.deadlines.network_state import NetworkState

WAKING_S: Final = 15.0
"""A host needs this until its networks carry something again."""

_STEPS: Final = 16


def wake_in_s(
    flows: Sequence[DeadlineFlow],
    states_in: Callable[[float], Sequence[NetworkState]],
    now: float,
) -> float | None:
    """Seconds until the host must be awake, 0: from now on; None: there is nothing to wake it for.

    Args:
        flows: those that can be in time still.
        states_in: the networks as they will be known in so many seconds.
    """
    order = sorted(flows, key=attrgetter("deadline_at_s"))
    if not order:
        return None

    def too_late(in_s: float) -> bool:
        usable = [each for each in states_in(in_s) if each.usable]
        paid = [each for each in usable if not each.free]
        demand = DeadlineDemand.of(order, now + in_s)
        target = accepted(demand.within_s(0))
        return risky(demand, [], [(each, 0.0) for each in paid or usable], target)

    if not any(each.usable for each in states_in(0.0)):
        return None
    if too_late(WAKING_S):
        return 0.0
    low, high = WAKING_S, order[-1].deadline_at_s - now
    for _ in range(_STEPS):
        middle = (low + high) / 2.0
        low, high = (low, middle) if too_late(middle) else (middle, high)
    return max(low - WAKING_S, 1.0)

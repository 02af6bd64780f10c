"""What Cedos' Figure 6 compares with: Wi-Fi while there is any, and each flow scheduled for itself."""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

from cedos.selector.deadlines.d2sched import D2Sched
from cedos.selector.deadlines.deadline_flow import DeadlineFlow
from cedos.selector.deadlines.network_state import NetworkState
from cedos.selector.deadlines.plan import DeadlinePlan


@dataclass(frozen=True, slots=True)
class AtOnce:
    """No delay: all are served, over Wi-Fi where there is any, else over the other.

    Figure 6a (i), called so there: blindly Wi-Fi; deadlines are not looked at.
    """

    name: str = "no-delay"

    def plan(
        self,
        flows: Sequence[DeadlineFlow],
        networks: Sequence[NetworkState],
        now: float,
        before: DeadlinePlan,
    ) -> DeadlinePlan:
        up = [each for each in networks if each.up]
        if not up or not flows:
            return DeadlinePlan()
        chosen = next((each for each in up if each.free), up[0])
        paid = () if chosen.free else (chosen.name,)
        return DeadlinePlan({flow.key: (chosen.name,) for flow in flows}, paid)


class EachAlone:
    """Figure 6b and c (i): each flow by Algorithm 1 as if it were the only one, all at the same time."""

    name = "each-alone"

    def plan(
        self,
        flows: Sequence[DeadlineFlow],
        networks: Sequence[NetworkState],
        now: float,
        before: DeadlinePlan,
    ) -> DeadlinePlan:
        served: dict[Hashable, tuple[str, ...]] = {}
        paid: set[str] = set()
        alone = D2Sched()
        for flow in flows:
            plan = alone.plan([flow], networks, now, before)
            served |= plan.served
            paid |= set(plan.paid)
        return DeadlinePlan(served, tuple(paid))

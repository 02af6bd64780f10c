"""Flows with deadlines, the plans that schedulers return, and D2Sched, the published scheduler.

D2Sched is exactly Cedos' Algorithm 1: one flow at a time over one network. With the flows in the
order of their deadlines, tau_i = sum over j <= i of ceil(f_j / r_c) is the time at which flow i
would end over the cellular network. While every tau_i is within its deadline nothing is urgent: the
first flow uses Wi-Fi, or all wait. Else the first flow uses the faster network. A new Wi-Fi's first
epoch carries nothing, as it is measured (III-D, "Scheduling Epochs").
"""

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from math import ceil, inf
from operator import attrgetter
from typing import NamedTuple, Protocol

from cedos.selector.deadlines.network_state import NetworkState


class DeadlineFlow(NamedTuple):
    """A flow of the table."""

    key: Hashable
    # What is still to be carried (Cedos' f_i); of unknown size: what is to be expected.
    left_bytes: float
    deadline_at_s: float  # when all of it is wanted, on the clock of `now`
    # It cannot be carried faster, whatever the networks can (its server, its own limit).
    most_bps: float = inf
    exact: bool = True  # whether the size is known


def expected_bytes(received_bytes: float) -> float:
    """Return the rest of a transfer of unknown size: as much as it has received, 10 MB at least.

    The profiler makes the same guess for messages without a length.
    """
    return max(received_bytes, 10e6)


# The time between two plans, which every change brings forward (Cedos, III-D).
EPOCH_S = 1.0


@dataclass(frozen=True, slots=True)
class DeadlinePlan:
    """A plan until the next epoch or change."""

    # By key the networks that a flow may use now; a flow without an entry waits.
    served: Mapping[Hashable, tuple[str, ...]] = field(default_factory=dict)
    paid: tuple[str, ...] = ()  # the metered networks in use: waiting for free ones was too risky
    # Flows that cannot be in time as far as is known; they come last.
    late: frozenset[Hashable] = frozenset()


class DeadlineScheduler(Protocol):
    """A scheduler: flows and networks in, a plan out. Pure."""

    @property
    def name(self) -> str: ...

    def plan(
        self,
        flows: Sequence[DeadlineFlow],
        networks: Sequence[NetworkState],
        now: float,
        before: DeadlinePlan,
    ) -> DeadlinePlan:
        """Return the plan for an epoch, given the one before."""
        ...


_BY_DEADLINE = attrgetter("deadline_at_s")


class D2Sched:
    """Cedos' Algorithm 1, with free networks as its Wi-Fi and all others as cellular ones."""

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
        # Cellular alone could still carry all in time later: wait for Wi-Fi, or use it if it is here.
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
    # One flow after the other at this rate, in whole epochs.
    for flow in waiting:
        tau_s += ceil(8.0 * flow.left_bytes / rate_bps)
        if tau_s > flow.deadline_at_s - now:
            return False
    return True


def _fastest(networks: Sequence[NetworkState]) -> NetworkState | None:
    return max(networks, key=attrgetter("rate_bps"), default=None)

"""What a scheduler of deadlines answers: who is carried now, and over which networks."""

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from cedos.selector.deadlines.deadline_flow import DeadlineFlow
from cedos.selector.deadlines.network_state import NetworkState

EPOCH_S = 1.0
"""Decided again so often, and on every change (Cedos, III-D)."""


@dataclass(frozen=True, slots=True)
class DeadlinePlan:
    """Until the next epoch or change.

    Attributes:
        served: by key the networks that a flow may use now; who is not in it waits.
        paid: networks with a price that are in use: it was found too risky to go without.
        late: flows that cannot be in time any more, as far as can be told; they come last.
    """

    served: Mapping[Hashable, tuple[str, ...]] = field(default_factory=dict)
    paid: tuple[str, ...] = ()
    late: frozenset[Hashable] = frozenset()


class DeadlineScheduler(Protocol):
    """Flows and networks in, who is carried out. Pure."""

    @property
    def name(self) -> str: ...

    def plan(
        self,
        flows: Sequence[DeadlineFlow],
        networks: Sequence[NetworkState],
        now: float,
        before: DeadlinePlan,
    ) -> DeadlinePlan:
        """The plan for an epoch, given the one before."""
        ...

"""A transfer that was the only one of its flow, so that its beginning and end are known. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass

from cedos.controller.events import FlowClosed
from cedos.controller.flows.living_flow import SMALL_BYTES, LivingFlow
from cedos.model import (
    Context,
    Direction,
    FlowRecord,
    Network,
    Prediction,
    SizeEstimate,
    Transfer,
)
from cedos.selector.decision.case import Roles, pairs
from cedos.selector.decision.features import features
from cedos.selector.decision.times import lengthen_all, own_queues, with_empty_paths
from cedos.selector.uncertainty.times import CompletionModel, interval_of
from predictors.base import Distribution

# A network with a smaller share of the bytes does not count as a carrier of the transfer.
_PART = 0.1


@dataclass(frozen=True, slots=True)
class FinishedTransfer:
    """A transfer that was carried one way from beginning to end, and its time.

    `strategy` as predictors say it where its networks play `roles`.
    """

    strategy: str
    roles: Roles
    network: str
    direction: Direction
    carried_bytes: int
    time_s: float

    @property
    def asked(self) -> Transfer:
        """Return the transfer of that size, as predictors are asked for it."""
        size = self.carried_bytes
        return Transfer(SizeEstimate(size, size, size, "progress"), self.direction)

    def predict(self, context: Context, model: CompletionModel) -> Prediction | None:
        """Return the prediction from what was known when the transfer began; None without one."""
        roles, asked = self.roles, self.asked
        known = features(context, asked, roles, model.features)
        queues_s = own_queues(context, roles)
        columns = with_empty_paths(known, queues_s)
        alone = model.predict(columns)
        if self.strategy not in alone:
            return None
        times = lengthen_all(alone, asked, context, roles, queues_s, joined=False)
        longer = times[self.strategy].quantile(0.5) / alone[self.strategy].quantile(0.5)
        role = self.strategy.removeprefix("mptcp_")
        return Prediction(
            self.strategy,
            self.network,
            self.direction,
            self.carried_bytes,
            self.time_s,
            columns.get(f"{role}_rate_age_s", 0.0),
            {name: _in_short(time) for name, time in times.items()},
            dict(columns),
            longer,
        )

    @property
    def tells(self) -> bool:
        """Return whether it tells how its network is: a small download over it alone."""
        alone = not self.strategy.startswith("mptcp")
        return alone and self.direction is Direction.DOWN and self.small

    @property
    def small(self) -> bool:
        return self.carried_bytes <= SMALL_BYTES


def finished_transfer(
    flow: LivingFlow, record: FlowRecord, closed: FlowClosed, networks: Sequence[Network]
) -> FinishedTransfer | None:
    """Return the time of a flow that has just ended; None if unknown."""
    transfer = flow.transfer
    if transfer is None or flow.transfers != 1 or not record.exact:
        return None
    if flow.read_slowly:
        return None  # it says how fast a program is
    if flow.paths[flow.key].near:
        return None  # it says nothing of what is behind the router
    named = _name_strategy(flow, record, networks, transfer.direction)
    network = flow.paths[flow.key].network
    down = transfer.direction is Direction.DOWN
    carried = sum(path.bytes_down if down else path.bytes_up for path in record.subflows)
    idle_s = closed.idle_down_s if down else closed.idle_ack_s
    if named is None or network is None or carried <= 0 or idle_s is None:
        return None
    if flow.exact and carried < transfer.size.median_bytes:
        return None  # broken off
    time_s = closed.at_s - flow.started_at_s - idle_s
    if flow.tls:
        # Predictors were told nothing of its handshake, which is a round trip more.
        time_s -= record.subflows[0].rtt_min_s or 0.0
    if time_s <= 0.0:
        return None
    return FinishedTransfer(*named, network, transfer.direction, carried, time_s)


def _in_short(time: Distribution) -> tuple[float, float, float, float]:
    low_s, high_s = interval_of(time)
    return low_s, time.quantile(0.5), high_s, time.mean


def _name_strategy(
    flow: LivingFlow, record: FlowRecord, networks: Sequence[Network], direction: Direction
) -> tuple[str, Roles] | None:
    """Return the predictors' name of a flow's strategy, and the roles in its decision."""
    for roles in pairs(networks):
        if (name := _strategy(flow, record, roles, direction)) is not None:
            return name, roles
    return None


def _strategy(
    flow: LivingFlow, record: FlowRecord, roles: Roles, direction: Direction
) -> str | None:
    """Return the predictors' name of a flow's strategy; None if it was moved or is unknown."""
    role_of = {network.name: role for role, network in roles.players()}
    carried: dict[str, int] = {}
    for path in record.subflows:
        role = role_of.get(path.network or "")
        if role is None:
            return None
        of_path = path.bytes_down if direction is Direction.DOWN else path.bytes_up
        carried[role] = carried.get(role, 0) + of_path
    most = max(carried.values(), default=0)
    used = [role for role, count in carried.items() if count >= _PART * max(most, 1)]
    first = flow.paths[flow.key].network
    if len(used) > 1:
        return f"mptcp_{role_of[first]}" if first in role_of else None
    if not used or used[0] != role_of.get(first or ""):
        return None  # it was moved in the middle
    return used[0]

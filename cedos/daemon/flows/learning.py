"""What finished transfers teach the predictors about the place they were made at.

A transfer counts where it was the only one of its flow, so that its beginning and end are known, and
where it was carried one way from beginning to end.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from cedos.daemon import state_file
from cedos.daemon.flows.living_flow import LivingFlow
from cedos.model import Context, Direction, FlowRecord, Network, SizeEstimate, Transfer
from cedos.monitor.events import FlowClosed
from cedos.selector.decision.features import features
from cedos.selector.decision.roles import Roles, assign
from predictors.adapt import Adaptive, fingerprint
from predictors.base import Distribution
from predictors.completion import CompletionModel
from predictors.posterior import Posterior

PLACES_FILE = "places.json"
POSTERIOR_FILE = "posterior.json"
_PLACES = "what was learned at places"
_POSTERIOR = "what came of predictions"
LEAST_S = 0.1
"""Transfers expected to be shorter teach nothing: their ends are known to some hundredths of a second."""

_PART = 0.1
"""A network with less than this share of the bytes had no part in a transfer."""


class Learning:
    """The predictors as they are at this place; itself a `CompletionModel` of the selector.

    Errors: ValueError, the state is none, or another model's.

    Args:
        adapt: whether predictions are to become this place's own.
        posterior: corrects them by what came of such ones before (the method "bayesian").
    """

    def __init__(
        self,
        model: CompletionModel,
        state: Mapping[str, Any] | None = None,
        *,
        adapt: bool = True,
        posterior: Posterior | None = None,
    ) -> None:
        self.place = ""
        self._adapt, self._posterior = adapt, posterior
        self._adaptive = Adaptive(model) if state is None else Adaptive.from_state(model, state)

    @property
    def features(self) -> Sequence[str]:
        return self._adaptive.features

    @property
    def note(self) -> str:
        """What people should know beside a prediction: whether it was corrected by what was seen here."""
        if seen := self._adaptive.seen(self.place):
            return f"corrected by what {seen} transfer{'s' * (seen > 1)} at this place took"
        if self._posterior is not None and (seen := self._posterior.seen):
            return f"corrected by what {seen} transfer{'s' * (seen > 1)} took"
        return ""

    def predict(self, features: Mapping[str, float], /) -> Mapping[str, Distribution]:
        predicted = self._adaptive.predict(features, self.place)
        return predicted if self._posterior is None else self._posterior.of(predicted)

    def state(self) -> dict[str, Any]:
        return self._adaptive.state()

    def keep(self, folder: Path) -> None:
        """Writes what is learned, each to its file; what is not learned now stays as it was kept."""
        if self._adapt:
            state_file.write(folder / PLACES_FILE, self._adaptive.state(), _PLACES)
        if self._posterior is not None:
            # Which strategy is favoured, and when rightly so, is another thing with another model.
            state = {"model": fingerprint(self._adaptive.model), **self._posterior.state()}
            state_file.write(folder / POSTERIOR_FILE, state, _POSTERIOR)

    def moved(self, networks: Sequence[Network], context: Context) -> None:
        """Takes where the host is: the access point, else the Wi-Fi's router, else its name."""
        self.place = place_of(networks, context)

    def finished(
        self,
        flow: LivingFlow,
        record: FlowRecord,
        closed: FlowClosed,
        networks: Sequence[Network],
    ) -> None:
        """Learns from a flow that has just ended, if there is something to be learned."""
        context, transfer = flow.context, flow.transfer
        if context is None or transfer is None or flow.transfers != 1 or not record.exact:
            return
        roles = assign(networks)
        name = _strategy(flow, record, roles, transfer.direction)
        down = transfer.direction is Direction.DOWN
        carried = sum(path.bytes_down if down else path.bytes_up for path in record.subflows)
        idle_s = closed.idle_down_s if down else closed.idle_ack_s
        if name is None or carried <= 0 or idle_s is None:
            return
        if flow.exact and carried < transfer.size.median_bytes:
            return  # broken off
        time_s = closed.at_s - flow.started_at_s - idle_s
        size = SizeEstimate(carried, carried, carried, "progress")
        columns = features(context, Transfer(size, transfer.direction), roles, self.features)
        predicted = self._adaptive.predict(columns, self.place)
        expected = predicted.get(name)
        if time_s <= 0.0 or expected is None or expected.mean < LEAST_S:
            return
        if self._posterior is not None:
            self._posterior.learn(predicted, name, time_s)
        if self._adapt:
            # What is known of places outlives restarts of the host, which the monotonic clock does not.
            self._adaptive.update(columns, name, time_s, self.place, record.ended_unix_s)


def place_of(networks: Sequence[Network], context: Context) -> str:
    """A name for where the host is, that is the same when it comes back."""
    wifi = assign(networks).wifi
    if wifi is None:
        return ""
    attachment = context.attachments.get(wifi.name)
    if attachment is not None:
        return attachment.point
    router = str(wifi.gateways[0]) if wifi.gateways else ""
    return f"{wifi.name} {router}".strip()


def _strategy(
    flow: LivingFlow, record: FlowRecord, roles: Roles, direction: Direction
) -> str | None:
    """The predictors' name for how a flow was carried; None where it was moved, or is not known."""
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


def load(model: CompletionModel, folder: Path, *, adapt: bool, bayesian: bool) -> Learning:
    """The predictors with what was learned earlier; anew where that cannot be used."""
    posterior = _posterior(model, folder / POSTERIOR_FILE) if bayesian else None
    path = folder / PLACES_FILE
    try:
        state = state_file.read(path, _PLACES) if adapt else None
        return Learning(model, state, adapt=adapt, posterior=posterior)
    except ValueError as error:
        state_file.unusable(path, _PLACES, error)
    return Learning(model, adapt=adapt, posterior=posterior)


def _posterior(model: CompletionModel, path: Path) -> Posterior:
    state = state_file.read(path, _POSTERIOR)
    if state is None:
        return Posterior()
    try:
        found = Posterior.from_state(state)
        if state.get("model") != fingerprint(model):
            raise ValueError("it was learned of another model")
    except ValueError as error:
        state_file.unusable(path, _POSTERIOR, error)
        return Posterior()
    return found

"""Teach the predictors about a place from transfers that finished there."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from cedos.daemon import state_file
from cedos.daemon.flows.finished_transfer import FinishedTransfer
from cedos.model import Context, Network
from cedos.selector.decision.features import features
from cedos.selector.decision.roles import assign
from predictors.base import Distribution
from predictors.completion import CompletionModel
from predictors.online import Adaptive, Posterior

PLACES_FILE = "places.json"
POSTERIOR_FILE = "posterior.json"
_PLACES = "what was learned at places"
_POSTERIOR = "what came of predictions"
LEAST_S = 0.1
"""Transfers expected to be shorter teach nothing: their ends are known to some hundredths of a second."""


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
        """Return a sentence on how predictions were corrected by transfers at this place; else ""."""
        if seen := self._adaptive.transfers_at(self.place):
            return f"Predictions are corrected by {seen} transfer{'s' * (seen > 1)} at this place"
        if self._posterior is not None and (seen := self._posterior.seen):
            return f"Predictions are corrected by {seen} earlier transfer{'s' * (seen > 1)}"
        return ""

    def predict(self, features: Mapping[str, float], /) -> Mapping[str, Distribution]:
        predicted = self._adaptive.predict(features, self.place)
        return predicted if self._posterior is None else self._posterior.of(predicted)

    def state(self) -> dict[str, Any]:
        return self._adaptive.state()

    def keep(self, folder: Path) -> None:
        """Write what is learned, each to its file; what is not learned now stays as it was kept."""
        if self._adapt:
            state_file.write(folder / PLACES_FILE, self._adaptive.state(), _PLACES)
        if self._posterior is not None:
            # Which strategy is favoured, and when rightly so, is another thing with another model.
            state = {"model": self._adaptive.model.fingerprint(), **self._posterior.state()}
            state_file.write(folder / POSTERIOR_FILE, state, _POSTERIOR)

    def on_move(self, networks: Sequence[Network], context: Context) -> None:
        """Take where the host is: the access point, else the Wi-Fi's router, else its name."""
        self.place = place_of(networks, context)

    def on_transfer(
        self, transfer: FinishedTransfer, context: Context, ended_unix_s: float
    ) -> None:
        """Learn from a transfer that has just ended; `context`: what was known when it began."""
        name, time_s = transfer.strategy, transfer.time_s
        columns = features(context, transfer.asked, transfer.roles, self.features)
        predicted = self._adaptive.predict(columns, self.place)
        expected = predicted.get(name)
        if expected is None or expected.mean < LEAST_S:
            return
        if self._posterior is not None:
            self._posterior.learn(predicted, name, time_s)
        if self._adapt:
            # What is known of places outlives restarts of the host, which the monotonic clock does not.
            self._adaptive.update(columns, name, time_s, self.place, ended_unix_s)


def place_of(networks: Sequence[Network], context: Context) -> str:
    """Return a name for where the host is, that is the same when it comes back."""
    wifi = assign(networks).wifi
    if wifi is None:
        return ""
    attachment = context.attachments.get(wifi.name)
    if attachment is not None:
        return attachment.point
    router = str(wifi.gateways[0]) if wifi.gateways else ""
    return f"{wifi.name} {router}".strip()


def load(model: CompletionModel, folder: Path, *, adapt: bool, bayesian: bool) -> Learning:
    """Return the predictors with what was learned earlier, or new ones if that cannot be used."""
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
        if state.get("model") != model.fingerprint():
            raise ValueError("it was learned of another model")
    except ValueError as error:
        state_file.unusable(path, _POSTERIOR, error)
        return Posterior()
    return found

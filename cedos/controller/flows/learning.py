"""Compare predictions with what came of them, and teach the predictors.

They are taught by the method "bayesian" (dissertation, 4.3.3).
"""

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from cedos.controller.flows.finished_transfer import FinishedTransfer
from cedos.model import Context, FlowRecord
from cedos.selector.decision.features import features
from predictors.base import Calibration, Distribution, Judged, calibration
from predictors.completion import CompletionModel
from predictors.posterior import Posterior

# The shortest expected time of a transfer that teaches. Ends are known to some hundredths of a
# second only.
LEAST_S = 0.1


class Learning:
    """The predictors, corrected by transfers that finished here; itself a model of the selector."""

    def __init__(self, model: CompletionModel, posterior: Posterior) -> None:
        self._model, self._posterior = model, posterior

    @property
    def trained(self) -> CompletionModel:
        """Return the trained model, without what was learned here."""
        return self._model

    @property
    def features(self) -> Sequence[str]:
        return self._model.features

    @property
    def note(self) -> str:
        """Return a sentence on how predictions were corrected by earlier transfers; else ""."""
        if seen := self._posterior.seen:
            return f"Predictions are corrected by {seen} earlier transfer{'s' * (seen > 1)}"
        return ""

    def predict(self, features: Mapping[str, float], /) -> Mapping[str, Distribution]:
        return self._posterior.of(self._model.predict(features))

    def kept(self) -> dict[str, Any]:
        """Return what is learned, for the next start."""
        # Which strategy is favoured, and when rightly so, is another thing with another model.
        return {"model": self._model.fingerprint(), **self._posterior.state()}

    def on_transfer(self, transfer: FinishedTransfer, context: Context) -> None:
        """Learn from a transfer that has just ended; `context`: what was known when it began."""
        columns = features(context, transfer.asked, transfer.roles, self.features)
        predicted = self._model.predict(columns)
        expected = predicted.get(transfer.strategy)
        if expected is not None and expected.mean >= LEAST_S:
            self._posterior.learn(predicted, transfer.strategy, transfer.time_s)


# The number of latest transfers of each network that count.
TRANSFERS = 200

_NETWORKS = 32


class Reliability:
    """The measure of how well each network is predicted: by the last flows over it alone."""

    def __init__(self, records: Iterable[FlowRecord] = ()) -> None:
        """Begin with earlier `records`, the oldest first."""
        self._judged: dict[str, deque[Judged]] = {}
        for record in records:
            self.add(record)

    def add(self, record: FlowRecord) -> None:
        prediction = record.prediction
        if prediction is None or prediction.strategy.startswith("mptcp"):
            return
        # (A record of the history may be damaged: SQLite has no sum over it.)
        expected = prediction.expected.get(prediction.strategy)
        if expected is None or prediction.took_s <= 0.0:
            return
        judged = self._judged.pop(prediction.network, None) or deque(maxlen=TRANSFERS)
        judged.append(Judged(*expected, prediction.took_s))
        # The network of the newest transfer is last, so the one not heard of for longest goes first.
        self._judged[prediction.network] = judged
        if len(self._judged) > _NETWORKS:
            del self._judged[next(iter(self._judged))]

    def of(self, network: str) -> Calibration | None:
        return calibration(self._judged.get(network, ()))

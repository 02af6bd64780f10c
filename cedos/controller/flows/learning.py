"""Compare predictions with what came of them."""

from collections import deque
from collections.abc import Iterable

from cedos.model import FlowRecord
from predictors.base import Calibration, Judged, calibration

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

"""Measure how well this host's networks are predicted, by the last transfers over each alone."""

from collections import deque
from collections.abc import Iterable

from cedos.model import FlowRecord
from predictors.base import Calibration, Judged, calibration

# The number of latest transfers of each network that count.
TRANSFERS = 200

_NETWORKS = 32


class Reliability:
    """Takes finished flows; those over one network alone say how well it is predicted."""

    def __init__(self, records: Iterable[FlowRecord] = ()) -> None:
        """Begin with earlier `records`, the oldest first."""
        self._judged: dict[str, deque[Judged]] = {}
        for record in records:
            self.add(record)

    def add(self, record: FlowRecord) -> None:
        prediction = record.prediction
        if prediction is None or prediction.strategy.startswith("mptcp"):
            return
        judged = self._judged.pop(prediction.network, None) or deque(maxlen=TRANSFERS)
        judged.append(Judged(*prediction.expected[prediction.strategy], prediction.took_s))
        # The network of the newest transfer is last, so the one not heard of for longest goes first.
        self._judged[prediction.network] = judged
        if len(self._judged) > _NETWORKS:
            del self._judged[next(iter(self._judged))]

    def of(self, network: str) -> Calibration | None:
        return calibration(self._judged.get(network, ()))

"""Keeps what finished flows tell: their records, their sizes, and the choices that they were."""

from dataclasses import dataclass

from cedos.daemon.driver import ControllerDriver
from cedos.daemon.loop.flow_events import sizes_known
from cedos.daemon.loop.opportunities import Opportunities
from cedos.model import FlowKey, FlowRecord
from cedos.profiler.profiler import Profiler
from cedos.storage.history import History


@dataclass(frozen=True, slots=True)
class FlowRecords:
    """The keepers of finished flows."""

    driver: ControllerDriver
    profiler: Profiler
    opportunities: Opportunities
    history: History | None

    def add(self, record: FlowRecord, *, chosen: bool) -> None:
        """Keep a finished flow; `chosen`: it could have gone over another network."""
        down: int | None = sum(path.bytes_down for path in record.subflows)
        up: int | None = sum(path.bytes_up for path in record.subflows)
        if not record.exact:
            down = up = None  # nothing is learnt from bytes that were not counted to the end
        first, *further = record.subflows
        self.profiler.on_close(first.key, down, up)
        for subflow in further:
            self.profiler.forget(subflow.key)
        if chosen:
            self.opportunities.finished(record, self.driver.context)
        if self.history is not None:
            self.history.add_flow(record)
        if (sizes := sizes_known(self.profiler, first.key)) is not None:
            self.driver.post(sizes)

    def forget(self, key: FlowKey) -> None:
        """Forget what was learned of a flow that was none."""
        self.profiler.forget(key)

"""Tell the controller and the profiler of flows, and keep the records of ended ones."""

import time
from dataclasses import dataclass, replace

from cedos.controller.events import FlowClosed, FlowOpened, SizesKnown, Steerable, SubflowJoined
from cedos.daemon.driver import ControllerDriver
from cedos.daemon.loop.packet_handler import PacketHandler
from cedos.host.monitor.flows.flow_monitor import FlowMonitor
from cedos.host.monitor.flows.own_flows import is_own
from cedos.host.profiler.profiler import Profiler
from cedos.host.steer.mptcp.connection import ConnectionClosed, ConnectionOpened, SubflowUp
from cedos.host.steer.steering import Steering
from cedos.model import Direction, FlowKey, FlowRecord
from cedos.storage.history import History


@dataclass(frozen=True, slots=True)
class FlowEvents:
    """The events of flows and MPTCP connections."""

    driver: ControllerDriver
    monitor: FlowMonitor
    steering: Steering
    profiler: Profiler
    packets: PacketHandler

    async def follow_flows(self) -> None:
        async for event in self.monitor.events():
            if isinstance(event, FlowOpened):
                await self._opened(event)
            else:
                self._closed(event)

    async def follow_connections(self) -> None:
        async for event in self.steering.events():
            if event.key.local.is_loopback:  # no network carries it, and its end is not told
                continue
            ours = event.connection.unsteerable is None
            if isinstance(event, ConnectionOpened | SubflowUp):
                self.driver.post(SubflowJoined(event.token, event.key, ours))
            else:
                ended = isinstance(event, ConnectionClosed)
                self.driver.post(Steerable(event.token, ours and not ended))

    async def _opened(self, event: FlowOpened) -> None:
        mark = await self._mark(event)
        self.driver.post(replace(event, own=is_own(event.key), mark=mark))
        now_s = time.monotonic()
        for learned in self.profiler.on_open(event.key, now_s, incoming=event.incoming, mark=mark):
            self.driver.post(learned)
        if (sizes := sizes_known(self.profiler, event.key)) is not None:
            self.driver.post(sizes)

    async def _mark(self, event: FlowOpened) -> int | None:
        """Return the socket's mark, if a program's hint depends on it (`cedos exec`)."""
        if event.incoming or event.key.protocol != "tcp" or not self.profiler.wants_marks:
            return None
        return await self.monitor.mark(event.key)

    def _closed(self, event: FlowClosed) -> None:
        self.packets.read_before(event.at_s)  # the flow's last message may still wait
        self.driver.post(event)


@dataclass(frozen=True, slots=True)
class FlowRecords:
    """The keepers of finished flows."""

    driver: ControllerDriver
    profiler: Profiler
    history: History | None

    def add(self, record: FlowRecord) -> None:
        """Keep a finished flow."""
        down: int | None = sum(path.bytes_down for path in record.subflows)
        up: int | None = sum(path.bytes_up for path in record.subflows)
        if not record.exact:
            down = up = None  # nothing is learnt from bytes that were not counted to the end
        first, *further = record.subflows
        self.profiler.on_close(first.key, down, up)
        for subflow in further:
            self.profiler.forget(subflow.key)
        if self.history is not None:
            self.history.add_flow(record)
        if (sizes := sizes_known(self.profiler, first.key)) is not None:
            self.driver.post(sizes)

    def forget(self, key: FlowKey) -> None:
        """Forget what was learned of a flow that was none."""
        self.profiler.forget(key)


def sizes_known(profiler: Profiler, key: FlowKey) -> SizesKnown | None:
    """Return how large transfers with a flow's other end have been; None: that is not known."""
    if key.protocol != "tcp":
        return None
    address, history = str(key.remote), profiler.history
    sizes = {
        way: history.estimate(address, key.remote_port, way)
        for way in Direction
        if history.samples(address, key.remote_port, way)
    }
    return SizesKnown(key.remote, key.remote_port, sizes) if sizes else None

"""The sources of events about flows, and the end of a flow: its record is kept, and teaches sizes.

Openings and ends come as events of the kernel, packets as they were captured. A look at the living flows
is one dump of the sockets (half a millisecond for a few), when the controller asks for it: between looks
nothing is polled.
"""

import asyncio
import math
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from cedos.controller.events import (
    FlowClosed,
    FlowOpened,
    FlowsSampled,
    SizesKnown,
    Steerable,
    SubflowJoined,
)
from cedos.daemon.driver import ControllerDriver
from cedos.daemon.observer import Observer
from cedos.host.monitor.flow_monitor import FlowMonitor
from cedos.host.profiler.capture import Capture
from cedos.host.profiler.frame import CapturedPacket
from cedos.host.profiler.profiler import Profiler
from cedos.host.steer.mptcp.connection import ConnectionClosed, ConnectionOpened, SubflowUp
from cedos.host.steer.steering import Steering
from cedos.kernel.netlink import BatchedReader
from cedos.logs import get_logger
from cedos.model import Direction, FlowKey, FlowRecord, FlowSample
from cedos.storage.history import History

_log = get_logger(__name__)

# Seconds between two looks at the captured packets.
_TOGETHER_S = 0.02

_AT_ONCE = 256

# No network carries loopback's packets, and no event reports the ends of its flows.
_LOOPBACK = "lo"

# The most packets from outside that wait for their flow to be known, and for how many seconds.
_HELD, _HELD_S = 64, 2.0


@dataclass(slots=True)
class PacketHandler:
    """From packets to sizes."""

    capture: Capture | None
    profiler: Profiler
    driver: ControllerDriver
    _read_at_s: float = -math.inf
    _held: deque[tuple[float, CapturedPacket]] = field(default_factory=lambda: deque(maxlen=_HELD))

    def begin(self) -> Callable[[], None]:
        """Read what is captured from now on; return a function that ends it."""
        if self.capture is None:
            return lambda: None
        return BatchedReader(self.capture.fileno(), self._read, _TOGETHER_S).close

    def read_before(self, at_s: float) -> None:
        """Take what was captured before a monotonic instant, if there may be any."""
        if self._read_at_s < at_s:
            self._read()

    def _read(self) -> bool:
        now_s = self._read_at_s = time.monotonic()
        packets = self.capture.read(_AT_ONCE) if self.capture else []
        for captured in self._own_packets(packets, now_s):
            # A message may begin on any subflow; the profiler knows a connection by its first one.
            flow = self.driver.controller.flows.find(captured.key)
            about = captured if flow is None else captured._replace(key=flow.key)
            for event in self.profiler.observe(about, now_s):
                self.driver.post(event)
        return bool(packets)

    def _own_packets(
        self, packets: Iterable[CapturedPacket], now_s: float
    ) -> Iterator[CapturedPacket]:
        """Return those of flows of this host, as far as that is known by now.

        Any host can send a packet that looks like an answer. It is one where this host has sent
        something on that flow, or has a socket for it; until then it is kept for a moment.
        """
        held = list(self._held)
        self._held.clear()
        for at_s, captured in (*held, *((now_s, each) for each in packets)):
            if captured.interface == _LOOPBACK:
                continue
            if (
                captured.outgoing
                or self.driver.controller.flows.find(captured.key) is not None
                or self.profiler.has_seen(captured.key)
            ):
                yield captured
            elif now_s - at_s <= _HELD_S:
                self._held.append((at_s, captured))


@dataclass(frozen=True, slots=True)
class FlowEvents:
    """The events of flows and MPTCP connections, looks at them, and the records of finished flows."""

    driver: ControllerDriver
    monitor: FlowMonitor
    steering: Steering
    observer: Observer
    profiler: Profiler
    packets: PacketHandler
    history: History | None
    _due: asyncio.Event = field(default_factory=asyncio.Event)

    async def follow_flows(self) -> None:
        async for event in self.monitor.events():
            if isinstance(event, FlowOpened):
                await self._on_opened(event)
            else:
                self._on_closed(event)

    async def follow_connections(self) -> None:
        async for event in self.steering.events():
            if self.monitor.is_within(event.key):  # no network carries it, and its end is not told
                continue
            ours = event.connection.unsteerable is None
            if isinstance(event, ConnectionOpened | SubflowUp):
                self.driver.post(SubflowJoined(event.token, event.key, ours))
            else:
                ended = isinstance(event, ConnectionClosed)
                self.driver.post(Steerable(event.token, ours and not ended))

    async def _on_opened(self, event: FlowOpened) -> None:
        mark = await self._mark(event)
        self.driver.post(event if mark is None else replace(event, mark=mark))
        now_s = time.monotonic()
        for learned in self.profiler.on_open(event.key, now_s, incoming=event.incoming, mark=mark):
            self.driver.post(learned)
        if not self.driver.controller.destinations.has_sizes(event.key):
            self._tell_sizes(event.key)

    async def _mark(self, event: FlowOpened) -> int | None:
        """Return the socket's mark, if a program's hint depends on it (`cedos exec`)."""
        if event.incoming or event.key.protocol != "tcp" or not self.profiler.wants_marks:
            return None
        return await self.monitor.mark(event.key)

    def _on_closed(self, event: FlowClosed) -> None:
        self.packets.read_before(event.at_s)  # the flow's last message may still wait
        self.driver.post(event)

    def look(self) -> None:
        """Look soon; the answer is an event."""
        self._due.set()

    async def follow_looks(self) -> None:
        while True:
            await self._due.wait()
            self._due.clear()
            await self._look()
            self.observer.follow_heard()  # also of flows that ended since the last look

    async def _look(self) -> None:
        asked_at_s = self.observer.prober.asked_at_s()
        if not self.driver.controller.worth_a_look(asked_at_s):
            self.driver.post(FlowsSampled((), asked_at_s, looked=False))
            return
        began_s = time.monotonic()
        try:
            samples = await self.monitor.snapshot()
        except (OSError, TimeoutError) as error:
            _log.warning("the sockets cannot be looked at", why=str(error))
            self.driver.post(FlowsSampled((), asked_at_s, looked=False))
            return
        self._take(samples, asked_at_s, began_s)

    def _take(
        self, samples: Sequence[FlowSample], asked_at_s: dict[str, float], began_s: float
    ) -> None:
        flows = self.driver.controller.flows
        now_s = time.monotonic()
        self.driver.post(FlowsSampled(tuple(samples), asked_at_s, now_s - began_s))
        # A flow that has carried more than was expected has another size.
        known = [found for each in samples if (found := flows.find(each.key)) is not None]
        for flow in dict.fromkeys(found for found in known if not found.still):
            carried = flow.carried_bytes(Direction.DOWN), flow.carried_bytes(Direction.UP)
            for learned in self.profiler.on_progress(flow.key, *carried):
                self.driver.post(replace(learned, progressed=True))

    def keep(self, record: FlowRecord) -> None:
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
        self._tell_sizes(first.key)

    def _tell_sizes(self, key: FlowKey) -> None:
        if (sizes := sizes_known(self.profiler, key)) is not None:
            self.driver.post(sizes)


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

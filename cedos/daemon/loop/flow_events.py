"""Handle the events of flows: they begin, become connections with several paths, and end."""

import time
from dataclasses import dataclass, field, replace
from typing import Final

from cedos.daemon.decisions.director import Director
from cedos.daemon.decisions.rescue import Rescuer
from cedos.daemon.flows.finished_transfer import FinishedTransfer, finished_transfer
from cedos.daemon.flows.learning import Learning
from cedos.daemon.flows.living_flows import LivingFlows
from cedos.daemon.flows.reliability import Reliability
from cedos.daemon.loop.opportunities import Opportunities
from cedos.daemon.loop.packet_handler import PacketHandler
from cedos.daemon.networks.adaptive_probing import AdaptiveProbing
from cedos.daemon.networks.observer import Observer
from cedos.model import Context, FlowRecord
from cedos.monitor.events import FlowClosed, FlowOpened
from cedos.monitor.flows.flow_monitor import FlowMonitor
from cedos.monitor.flows.own_flows import is_own
from cedos.profiler.profiler import Profiler
from cedos.steer.mptcp.connection import ConnectionClosed, ConnectionOpened, SubflowUp
from cedos.steer.steering import Steering
from cedos.storage.history import History
from cedos.token_bucket import TokenBucket

JUDGED_PER_S: Final = 10
"""The small transfers per second that are compared with their prediction: 100
cost a fifth of what they cost the daemon otherwise, and the others say the same."""


@dataclass(frozen=True, slots=True)
class FlowEvents:
    """Tells everybody whom an event concerns."""

    monitor: FlowMonitor
    steering: Steering
    flows: LivingFlows
    profiler: Profiler
    packets: PacketHandler
    observer: Observer
    director: Director
    rescuer: Rescuer
    probing: AdaptiveProbing
    opportunities: Opportunities
    learning: Learning | None
    reliability: Reliability
    history: History | None
    small_judged: TokenBucket = field(
        default_factory=lambda: TokenBucket(JUDGED_PER_S, 2 * JUDGED_PER_S, time.monotonic())
    )

    async def follow_flows(self) -> None:
        async for event in self.monitor.events():
            if isinstance(event, FlowOpened):
                await self._opened(event)
            else:
                self.rescuer.on_close(event.key)
                self._closed(event)

    async def follow_connections(self) -> None:
        async for event in self.steering.events():
            if event.key.local.is_loopback:  # no network carries it, and its end is not told
                continue
            ended = isinstance(event, ConnectionClosed)
            ours = event.connection.unsteerable is None
            self.director.moves.steerable(event.token, ours and not ended)
            if not isinstance(event, ConnectionOpened | SubflowUp):
                continue
            now_s = time.monotonic()
            flow = self.flows.joined(event.token, event.key, now_s)
            self.director.on_connection(flow, now_s)
            if ours:
                async with self.director.turn:
                    await self.director.moves.reconsider(flow, self.observer.context())

    async def _opened(self, event: FlowOpened) -> None:
        now_s = time.monotonic()
        self.probing.on_transfer_begun()
        flow = self.flows.on_open(event)
        self.observer.on_open(event.key, event.at_s)
        if event.key.protocol == "tcp":
            flow.began_in(self.observer.recent_context())
        mark = await self._mark(event)
        for learned in self.profiler.on_open(event.key, now_s, incoming=event.incoming, mark=mark):
            self.flows.on_size(learned)
        self.director.on_connection(flow, now_s, mark)
        if not event.incoming:
            self.rescuer.on_open(event.key, event.at_s)

    async def _mark(self, event: FlowOpened) -> int | None:
        """Return the socket's mark, if a program's hint depends on it (`cedos exec`)."""
        if event.incoming or event.key.protocol != "tcp" or not self.profiler.wants_marks:
            return None
        return await self.monitor.mark(event.key)

    def _closed(self, event: FlowClosed) -> None:
        self.packets.read_before(event.at_s)  # the flow's last message may still wait
        flow = self.flows.find(event.key)
        path = flow.paths[event.key] if flow is not None else None
        self.observer.on_close(
            event, path.network if path is not None and not path.rescued else None
        )
        record = self.flows.on_close(event)
        if flow is None:
            self.profiler.forget(event.key)
        if record is None or flow is None:
            return
        if event.key.protocol == "udp" and not event.bytes_down:
            self.profiler.forget(event.key)
            return  # no peer answered: that was no flow
        finished = finished_transfer(flow, record, event, self.director.networks)
        if finished is not None:
            if finished.tells and flow.alone_on(finished.network, self.observer.recent_context()):
                self.observer.transferred(finished.network, finished.carried_bytes, finished.time_s)
            # Own checks go where they have to: they say nothing of how well choices are founded.
            if flow.context is not None and not is_own(event.key):
                record = self._judged(record, finished, flow.context)
        down: int | None = sum(path.bytes_down for path in record.subflows)
        up: int | None = sum(path.bytes_up for path in record.subflows)
        if not record.exact:
            down = up = None  # nothing is learnt from bytes that were not counted to the end
        first, *further = record.subflows
        self.profiler.on_close(first.key, down, up)
        for subflow in further:
            self.profiler.forget(subflow.key)
        self.opportunities.finished(flow, record, self.observer.context)
        if record.token is not None:
            self.director.moves.steerable(record.token, False)
        if self.history is not None:
            self.history.add_flow(record)

    def _judged(
        self, record: FlowRecord, finished: FinishedTransfer, context: Context
    ) -> FlowRecord:
        """Return the record with its prediction, and learn from it."""
        if self.learning is not None:
            self.learning.on_transfer(finished, context)
        model = self.director.decider.choices.model
        counts = not finished.small or self.small_judged.take(time.monotonic())
        if model is not None and counts:
            record = replace(record, prediction=finished.expected(context, model))
            self.reliability.add(record)
        return record

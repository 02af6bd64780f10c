"""The daemon's life: what it opens, the tasks that run, and the order in which all is undone."""

import asyncio
import math
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path

import structlog

from cedos.api.server import ControlServer
from cedos.config import Config
from cedos.daemon import kept, learning, opening
from cedos.daemon.answers import Answers
from cedos.daemon.budgets import Budgets
from cedos.daemon.choices import choices, curves
from cedos.daemon.director import Director
from cedos.daemon.flows import Flows, LivingFlow
from cedos.daemon.learning import Learning
from cedos.daemon.looking import Looking
from cedos.daemon.metering import Metering, money_per_mb, radios_of
from cedos.daemon.observe import Observer
from cedos.daemon.opportunities import Opportunities
from cedos.daemon.paths import measured_paths
from cedos.daemon.probing import AdaptiveProbing
from cedos.daemon.rescue import Rescuer
from cedos.directories import directories
from cedos.errors import CedosError
from cedos.history import History
from cedos.history_usage import Usage
from cedos.model import Context, Decision, FlowKey, Network
from cedos.monitor.battery import BatteryReader
from cedos.monitor.bus import SystemBus
from cedos.monitor.counters import Counters
from cedos.monitor.events import FlowClosed, FlowOpened
from cedos.monitor.flows import FlowMonitor
from cedos.monitor.links import LinkMonitor
from cedos.monitor.resolvers import HostResolvers
from cedos.notify import Notifier
from cedos.profiler.capture import Capture
from cedos.profiler.priors import CHUNKED, Prior
from cedos.profiler.profiler import Profiler, SizeLearned
from cedos.profiler.sizes import SizeHistory
from cedos.selector.liveness import dead_networks
from cedos.selector.objective import Objective
from cedos.selector.probing import Moment
from cedos.steer.connections import ConnectionClosed, ConnectionOpened, PathUp
from cedos.steer.steering import Steering

_log = structlog.get_logger(__name__)

_FLUSH_S = 1.0
_SIZES_FILE = "sizes.json"
_PLACES_FILE = "places.json"
_USAGE_FILE = "usage.sqlite"
_KEEP_S = 60.0
"""What is learned is kept so often, and at the end."""

_CAPTURE_REST_S = 0.025
"""After a look at the captured packets the next ones wait so long, and are looked at together."""

_CHANGED_AT_MOST_S = 0.1
"""Bursts of changes are answered together, at most so much later."""


async def run(config: Config, dry_run: bool) -> None:
    """Runs the daemon until it is cancelled; everything it changed is undone when it returns.

    Raises:
        HostError: there are not two usable networks, or the kernel lacks what is indispensable.
        PrivilegeError: CAP_NET_ADMIN or CAP_NET_RAW is missing.
    """
    where = directories()
    where.state.mkdir(parents=True, exist_ok=True)
    problems: list[str] = []
    async with AsyncExitStack() as stack:
        bus = SystemBus() if config.providers.host else None
        if bus is not None:
            stack.push_async_callback(bus.close)
        links = await stack.enter_async_context(
            LinkMonitor(config.network_overrides(), resolvers=HostResolvers(bus))
        )
        opening.require_two(links.networks())
        history = opening.history(config, where.history, stack, problems)
        sizes = opening.sizes(where.state / _SIZES_FILE)
        usage = opening.usage(where.state / _USAGE_FILE, stack, problems)
        flow_monitor = await stack.enter_async_context(FlowMonitor(links.is_local))
        steering = await stack.enter_async_context(
            Steering(
                where.state,
                dry_run=dry_run,
                mptcp=config.steering.mptcp,
                filter_flows=config.steering.iptables,
                rescue=config.steering.rescue and config.steering.iptables,
            )
        )
        capture = opening.first_packets(config, stack, problems)
        daemon = Daemon(
            *(
                config,
                where.state,
                links,
                flow_monitor,
                steering,
                capture,
                history,
                sizes,
                usage,
                bus,
            ),
            *(problems, dry_run),
        )
        stack.callback(daemon.finished)
        await daemon.networks_changed()
        server = ControlServer(daemon.answers, where.socket)
        await stack.enter_async_context(server)
        notifier = Notifier()
        notifier.ready(f"{len(links.networks())} networks")
        _log.info("ready", networks=[each.name for each in links.networks()], dry_run=dry_run)
        await daemon.run(notifier)


class Daemon:
    """What happens, in one event loop: every event ends in a look at what it changes."""

    def __init__(
        self,
        config: Config,
        state: Path,
        links: LinkMonitor,
        flow_monitor: FlowMonitor,
        steering: Steering,
        capture: Capture | None,
        history: History | None,
        sizes: SizeHistory,
        usage: Usage,
        bus: SystemBus | None,
        problems: list[str],
        dry_run: bool,
    ) -> None:
        self._config = config
        self._state = state
        self._links = links
        self._flow_monitor = flow_monitor
        self._steering = steering
        self._capture = capture
        self._history = history
        self._sizes = sizes
        self._own_problems = problems
        self._rest: asyncio.TimerHandle | None = None
        self._told: asyncio.Queue[LivingFlow] = asyncio.Queue()
        self._flows = Flows()
        self._profiler = Profiler(
            sizes,
            unknown=Prior(config.profiler.default_size_bytes),
            chunked=replace(CHUNKED, median_bytes=config.profiler.default_large_bytes),
        )
        self._observer = Observer(config, bus, self._context_changed, self._metered)
        chosen = choices(config, state / _PLACES_FILE, problems)
        self._learning = chosen.model if isinstance(chosen.model, Learning) else None
        self._director = Director(
            steering,
            self._flows,
            sizes,
            chosen,
            self._recorded,
            history.next_number if history else 1,
        )
        self.answers = Answers(
            self._director,
            self._flows,
            self._profiler,
            history,
            self._observer.context,
            self.problems,
            dry_run=dry_run,
            ledger=self._observer.prober.ledger,
        )
        self._wake = asyncio.Event()
        self._urgent = False
        self._dead: frozenset[str] = frozenset()
        self._decided_at_s = -math.inf
        self._metering = Metering(
            usage, opening.boot(), links.networks(), radios_of(config), money_per_mb(config)
        )
        self._budgets = self.answers.budgets = Budgets(
            config,
            state,
            usage,
            self._metering,
            links.networks,
            self._prefer,
            chosen.objective,
            curves=curves(config),
            battery=BatteryReader(bus) if bus is not None else None,
        )
        self._opportunities = Opportunities(self._budgets, self._director, self._flows)
        self._looking = Looking(
            flow_monitor,
            self._flows,
            self._observer,
            self._profiler,
            self._learned,
            self._looked,
            config.decision.reevaluate_interval_s,
        )
        self._probing = AdaptiveProbing(config, self._observer.prober, self._moment)
        self._rescuer = Rescuer(
            steering, self._observer.context, self._was_rescued, dry_run=dry_run
        )

    def problems(self) -> list[str]:
        """What is degraded, in words."""
        now = (self._flow_monitor.problem, self._history.problem if self._history else None)
        return [
            *self._own_problems,
            *self._observer.problems,
            *self._steering.problems,
            *self._budgets.problems,
            *(said for said in now if said),
        ]

    async def networks_changed(self) -> None:
        """Tells everybody what networks there are, and decides anew."""
        networks = self._links.networks()
        self._observer.networks_changed(networks)
        async with self._director.turn:
            self._director.networks_changed(networks)
            await self._steering.networks_changed(networks)
            self._rescuer.networks_changed(networks)
            self._probing.networks_changed(networks)
            await self._director.reconsider(self._observer.context())
        # An interface that goes takes its counter with it: what it showed last is kept now.
        await self._budgets.keep()

    async def run(self, notifier: Notifier) -> None:
        """Runs until it is cancelled."""
        loop = asyncio.get_running_loop()
        if self._capture is not None:
            loop.add_reader(self._capture.fileno(), self._captured)
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._observer.run(), name="observe")
                tasks.create_task(self._follow_links(), name="links")
                tasks.create_task(self._follow_flows(), name="flows")
                tasks.create_task(self._follow_connections(), name="connections")
                tasks.create_task(self._follow_sizes(), name="sizes")
                tasks.create_task(self._looking.run(), name="look")
                tasks.create_task(self._budgets.run(), name="budgets")
                tasks.create_task(self._probing.run(), name="probing")
                tasks.create_task(self._reconsider(), name="reconsider")
                tasks.create_task(self._keep(notifier), name="keep")
        finally:
            if self._rest is not None:
                self._rest.cancel()
            if self._capture is not None:
                loop.remove_reader(self._capture.fileno())

    def finished(self) -> None:
        """The end: whoever listens is told, and what was learned is kept."""
        self._rescuer.close()
        self.answers.decided.close()
        self._keep_learned()

    def _keep_learned(self) -> None:
        kept.write(self._state / _SIZES_FILE, self._sizes.state(), opening.SIZES)
        if self._learning is not None:
            kept.write(self._state / _PLACES_FILE, self._learning.state(), learning.WHAT)

    def _recorded(self, decision: Decision) -> None:
        if self._history is not None:
            self._history.add_decision(decision)
        self.answers.recorded(decision)
        _log.info("decided", choice=str(decision.choice), why=decision.reason)

    def _moment(self, now_s: float, pending: bool, per_s: float) -> Moment:
        """What a probing rule may look at."""
        default = self._director.default
        return Moment(
            now_s,
            self._observer.screen.active(),
            pending,
            self._observer.context().networks,
            default.evaluations if default else (),
            per_s,
        )

    async def _context_changed(self) -> None:
        self._wake.set()

    def _looked(self, urgent: bool) -> None:
        self._urgent = self._urgent or urgent
        self._wake.set()

    def _prefer(self, objective: Objective, urgent: bool) -> None:
        before, self._director.objective = self._director.objective, objective
        # Prices move all the time; what follows them a little does with the next look.
        if urgent or (objective.prices == before.prices and objective != before):
            self._looked(urgent=True)

    def _metered(self, network: Network, counted: Counters) -> None:
        self._metering.counted(network, counted, time.monotonic())

    async def _reconsider(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            context = self._observer.context()
            self._rescuer.looked(context)
            if self._due(context):
                async with self._director.turn:
                    await self._director.reconsider(context)
                    if self._config.steering.short_queues:
                        await self._bound_queues(context)
            await asyncio.sleep(_CHANGED_AT_MOST_S)

    def _due(self, context: Context) -> bool:
        """Whether to decide again: while nothing runs only now and then, or when a network dies."""
        dead = frozenset(dead_networks(context, self._director.networks))
        urgent, self._urgent = self._urgent or dead != self._dead, False
        self._dead = dead
        idle = not len(self._flows)
        interval_s = self._config.decision.idle_interval_s if idle else 0.0
        if not urgent and context.at_s - self._decided_at_s < interval_s:
            return False
        self._decided_at_s = context.at_s
        if self._learning is not None:
            self._learning.moved(self._director.networks, context)
        return True

    async def _bound_queues(self, context: Context) -> None:
        try:
            await self._steering.paths_measured(measured_paths(context, self._flows))
        except CedosError as error:
            _log.warning("the queues cannot be bounded", why=str(error))

    async def _follow_links(self) -> None:
        async for event in self._links.events():
            _log.info("network", change=str(event.change), name=event.network.name)
            await self.networks_changed()

    async def _follow_flows(self) -> None:
        async for event in self._flow_monitor.events():
            now_s = time.monotonic()
            if isinstance(event, FlowOpened):
                self._probing.begun()
                flow = self._flows.opened(event)
                if self._learning is not None and event.key.protocol == "tcp":
                    flow.context = self._observer.context()
                mark = await self._mark(event)
                self._learned(
                    self._profiler.opened(event.key, now_s, incoming=event.incoming, mark=mark)
                )
                self._director.visited(flow, now_s)
                if not event.incoming:
                    self._rescuer.opened(event.key, event.at_s)
            else:
                self._rescuer.closed(event.key)
                self._closed(event)

    async def _mark(self, event: FlowOpened) -> int | None:
        """The socket's mark, where somebody's hint depends on it (`cedos exec`)."""
        if event.incoming or event.key.protocol != "tcp" or not self._profiler.wants_marks:
            return None
        return await self._flow_monitor.mark(event.key)

    def _was_rescued(self, key: FlowKey, network: str, reason: str) -> None:
        flow = self._flows.rescued(key, network)
        self._observer.portals.rescued(key)
        if flow is not None:
            self._director.rescued(flow, network, reason, self._observer.context())

    def _closed(self, event: FlowClosed) -> None:
        self._read_captured()  # the flow's last message may still wait, and begins before its end
        flow = self._flows.find(event.key)
        record = self._flows.closed(event)
        if record is None or flow is None:
            return
        if self._learning is not None:
            self._learning.finished(flow, record, event, self._director.networks)
        down: int | None = sum(path.bytes_down for path in record.subflows)
        up: int | None = sum(path.bytes_up for path in record.subflows)
        if not record.exact:
            down = up = None  # nothing is learnt from bytes that were not counted to the end
        self._profiler.closed(record.subflows[0].key, down, up)
        self._opportunities.finished(flow, record, self._observer.context)
        if record.token is not None:
            self._director.steerable(record.token, False)
        if self._history is not None:
            self._history.add_flow(record)

    async def _follow_connections(self) -> None:
        async for event in self._steering.events():
            ended = isinstance(event, ConnectionClosed)
            ours = event.connection.unsteerable is None
            self._director.steerable(event.token, ours and not ended)
            if not isinstance(event, ConnectionOpened | PathUp):
                continue
            flow = self._flows.joined(event.token, event.key, time.monotonic())
            self._director.visited(flow, time.monotonic())
            if ours:
                async with self._director.turn:
                    await self._director.reconsider_flow(flow, self._observer.context())

    def _captured(self) -> None:
        assert self._capture is not None
        loop, fd = asyncio.get_running_loop(), self._capture.fileno()
        loop.remove_reader(fd)
        self._rest = loop.call_later(_CAPTURE_REST_S, loop.add_reader, fd, self._captured)
        self._read_captured()

    def _read_captured(self) -> None:
        now_s = time.monotonic()
        for captured in self._capture.read(256) if self._capture else ():
            # A message may begin on any subflow; the profiler knows a connection by its first one.
            flow = self._flows.find(captured.key)
            about = captured if flow is None else captured._replace(key=flow.key)
            for event in self._profiler.observe(about, now_s):
                learned = self._flows.learned(event)
                if learned is not None and learned.token is not None:
                    self._told.put_nowait(learned)

    async def _follow_sizes(self) -> None:
        while True:
            flow = await self._told.get()
            async with self._director.turn:
                await self._director.reconsider_flow(flow, self._observer.context())

    def _learned(self, events: Sequence[SizeLearned]) -> None:
        for event in events:
            self._flows.learned(event)

    async def _keep(self, notifier: Notifier) -> None:
        """Writes the history and feeds the watchdog; both stop if the loop hangs."""
        kept_at_s = time.monotonic()
        while True:
            if time.monotonic() - kept_at_s > _KEEP_S:
                kept_at_s = time.monotonic()
                self._keep_learned()
            if self._history is not None:
                await asyncio.to_thread(self._history.flush)
            notifier.alive()
            await asyncio.sleep(min(_FLUSH_S, notifier.watchdog_interval_s or _FLUSH_S))

"""The daemon's life: what it opens, the tasks that run, and the order in which all is undone."""

import asyncio
import time
from contextlib import AsyncExitStack
from pathlib import Path

import msgspec
import structlog

from cedos.api.server import ControlServer
from cedos.config import Config, directories
from cedos.daemon.answers import Answers
from cedos.daemon.choices import choices
from cedos.daemon.director import Director
from cedos.daemon.flows import Flows
from cedos.daemon.observe import Observer
from cedos.errors import CedosError, HostError
from cedos.history import History
from cedos.model import Context, Decision, Direction, Network
from cedos.monitor.bus import SystemBus
from cedos.monitor.events import FlowClosed, FlowOpened
from cedos.monitor.flows import FlowMonitor
from cedos.monitor.links import LinkMonitor
from cedos.monitor.resolvers import HostResolvers
from cedos.notify import Notifier
from cedos.profiler.capture import Capture, open_capture
from cedos.profiler.profiler import Profiler, SizeLearned
from cedos.profiler.sizes import Prior, SizeHistory
from cedos.steer.connections import ConnectionClosed, ConnectionOpened, PathUp
from cedos.steer.steering import Steering

_log = structlog.get_logger(__name__)

_FLUSH_S = 1.0
_SIZES_FILE = "sizes.json"
_CAPTURE_REST_S = 0.01
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
        _require_two(links.networks())
        history = _history(config, where.history, stack, problems)
        sizes = _sizes(where.state / _SIZES_FILE)
        stack.callback(_save_sizes, sizes, where.state / _SIZES_FILE)
        flow_monitor = await stack.enter_async_context(FlowMonitor(links.is_local))
        steering = await stack.enter_async_context(
            Steering(
                where.state,
                dry_run=dry_run,
                mptcp=config.steering.mptcp,
                filter_flows=config.steering.iptables,
            )
        )
        capture = _capture(config, stack, problems)
        daemon = Daemon(
            config, links, flow_monitor, steering, capture, history, sizes, bus, problems, dry_run
        )
        stack.callback(daemon.finished)
        await daemon.networks_changed()
        server = ControlServer(daemon.answers, where.socket)
        await stack.enter_async_context(server)
        notifier = Notifier()
        notifier.ready(f"{len(links.networks())} networks")
        _log.info("ready", networks=[each.name for each in links.networks()], dry_run=dry_run)
        await daemon.run(notifier)


def _require_two(networks: list[Network]) -> None:
    usable = [network.name for network in networks if network.up]
    if len(usable) >= 2:
        return
    seen = ", ".join(
        f"{each.name} ({'up' if each.up else 'no address, carrier or default route'})"
        for each in networks
    )
    raise HostError(
        f"cedos chooses between networks and needs two that are usable; here: {seen or 'none'}. "
        "Connect a second one (a phone tethered by USB, say), or see `cedos doctor`"
    )


def _history(
    config: Config, path: Path, stack: AsyncExitStack, problems: list[str]
) -> History | None:
    if not config.history.enabled:
        return None
    history = History(config.history.path or path, max_rows=config.history.max_rows)
    stack.callback(history.close)
    if history.notice:
        problems.append(history.notice)
        _log.warning("history", notice=history.notice)
    return history


def _sizes(path: Path) -> SizeHistory:
    try:
        return SizeHistory.from_state(msgspec.json.decode(path.read_bytes()))
    except FileNotFoundError:
        pass
    except (OSError, ValueError, msgspec.DecodeError) as error:
        _log.warning("the sizes learned earlier cannot be used", file=str(path), why=str(error))
    return SizeHistory()


def _save_sizes(sizes: SizeHistory, path: Path) -> None:
    try:
        new = path.with_suffix(".new")
        new.write_bytes(msgspec.json.encode(sizes.state()))
        new.replace(path)
    except OSError as error:
        _log.warning("the sizes learned cannot be kept", file=str(path), why=str(error))


def _capture(config: Config, stack: AsyncExitStack, problems: list[str]) -> Capture | None:
    if not config.profiler.enabled:
        return None
    try:
        capture = open_capture()
    except HostError as error:
        problems.append(f"{error}; sizes are known when flows end")
        return None
    stack.callback(capture.close)
    return capture


def measured_paths(context: Context) -> dict[str, tuple[float, float]]:
    """Network -> (highest rate of late in bit/s, least round trip in s), where both are known."""
    found = {}
    for name, known in context.networks.items():
        rates = [
            known[key].value for key in ("past1_bps", "past5_bps", "past10_bps") if key in known
        ]
        if rates and "rtt_min_s" in known:
            found[name] = (max(rates), known["rtt_min_s"].value)
    return found


class Daemon:
    """What happens, in one event loop: every event ends in a look at what it changes."""

    def __init__(
        self,
        config: Config,
        links: LinkMonitor,
        flow_monitor: FlowMonitor,
        steering: Steering,
        capture: Capture | None,
        history: History | None,
        sizes: SizeHistory,
        bus: SystemBus | None,
        problems: list[str],
        dry_run: bool,
    ) -> None:
        self._config = config
        self._links = links
        self._flow_monitor = flow_monitor
        self._steering = steering
        self._capture = capture
        self._history = history
        self._own_problems = problems
        self._rest: asyncio.TimerHandle | None = None
        self._flows = Flows()
        self._profiler = Profiler(
            sizes,
            unknown=Prior(config.profiler.default_size_bytes),
            chunked=Prior(config.profiler.default_large_bytes),
        )
        self._observer = Observer(config, bus, self._context_changed)
        chosen = choices(config, problems)
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
            objective=chosen.objective.name,
        )
        self._wake = asyncio.Event()

    def problems(self) -> list[str]:
        """What is degraded, in words."""
        now = (self._flow_monitor.problem, self._history.problem if self._history else None)
        return [
            *self._own_problems,
            *self._observer.problems,
            *self._steering.problems,
            *(said for said in now if said),
        ]

    async def networks_changed(self) -> None:
        """Tells everybody what networks there are, and decides anew."""
        networks = self._links.networks()
        self._observer.networks_changed(networks)
        async with self._director.turn:
            self._director.networks_changed(networks)
            await self._steering.networks_changed(networks)
            await self._director.reconsider(self._observer.context())

    async def run(self, notifier: Notifier) -> None:
        """Runs until it is cancelled."""
        loop = asyncio.get_running_loop()
        sizes: asyncio.Queue[SizeLearned] = asyncio.Queue()
        if self._capture is not None:
            loop.add_reader(self._capture.fileno(), self._captured, sizes)
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._observer.run(), name="observe")
                tasks.create_task(self._follow_links(), name="links")
                tasks.create_task(self._follow_flows(), name="flows")
                tasks.create_task(self._follow_connections(), name="connections")
                tasks.create_task(self._follow_sizes(sizes), name="sizes")
                tasks.create_task(self._look(), name="look")
                tasks.create_task(self._reconsider(), name="reconsider")
                tasks.create_task(self._keep(notifier), name="keep")
        finally:
            if self._rest is not None:
                self._rest.cancel()
            if self._capture is not None:
                loop.remove_reader(self._capture.fileno())

    def finished(self) -> None:
        """The end: whoever listens is told."""
        self.answers.decided.close()

    def _recorded(self, decision: Decision) -> None:
        if self._history is not None:
            self._history.add_decision(decision)
        self.answers.recorded(decision)
        _log.info("decided", choice=str(decision.choice), why=decision.reason)

    async def _context_changed(self) -> None:
        self._wake.set()

    async def _reconsider(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            context = self._observer.context()
            async with self._director.turn:
                await self._director.reconsider(context)
                if self._config.steering.short_queues:
                    await self._bound_queues(context)
            await asyncio.sleep(_CHANGED_AT_MOST_S)

    async def _bound_queues(self, context: Context) -> None:
        try:
            await self._steering.paths_measured(measured_paths(context))
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
                flow = self._flows.opened(event)
                self._learned(self._profiler.opened(event.key, now_s, incoming=event.incoming))
                self._director.visited(flow, now_s)
            else:
                self._closed(event)

    def _closed(self, event: FlowClosed) -> None:
        record = self._flows.closed(event)
        if record is None:
            return
        down: int | None = sum(path.bytes_down for path in record.subflows)
        up: int | None = sum(path.bytes_up for path in record.subflows)
        if not record.exact:
            down = up = None  # nothing is learnt from bytes that were not counted to the end
        self._profiler.closed(record.subflows[0].key, down, up)
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

    def _captured(self, sizes: "asyncio.Queue[SizeLearned]") -> None:
        assert self._capture is not None
        loop, fd = asyncio.get_running_loop(), self._capture.fileno()
        loop.remove_reader(fd)
        self._rest = loop.call_later(_CAPTURE_REST_S, loop.add_reader, fd, self._captured, sizes)
        now_s = time.monotonic()
        for captured in self._capture.read():
            # A message may begin on any subflow; the profiler knows a connection by its first one.
            flow = self._flows.find(captured.key)
            about = captured if flow is None else captured._replace(key=flow.key)
            for event in self._profiler.observe(about, now_s):
                sizes.put_nowait(event)

    async def _follow_sizes(self, sizes: "asyncio.Queue[SizeLearned]") -> None:
        while True:
            flow = self._flows.learned(await sizes.get())
            if flow is not None and flow.token is not None:
                async with self._director.turn:
                    await self._director.reconsider_flow(flow, self._observer.context())

    def _learned(self, events: list[SizeLearned]) -> None:
        for event in events:
            self._flows.learned(event)

    async def _look(self) -> None:
        """Looks at the living flows, often only while there are any."""
        interval_s = self._config.decision.reevaluate_interval_s
        while True:
            await asyncio.sleep(interval_s)
            if not len(self._flows):
                continue
            try:
                samples = await self._flow_monitor.snapshot()
            except (OSError, TimeoutError) as error:
                _log.warning("the sockets cannot be looked at", why=str(error))
                continue
            now_s = time.monotonic()
            self._observer.observe_flows(samples)
            for flow in self._flows.sampled(samples, now_s):
                self._learned(
                    self._profiler.progressed(
                        flow.key, flow.carried(Direction.DOWN), flow.carried(Direction.UP), now_s
                    )
                )
            self._wake.set()

    async def _keep(self, notifier: Notifier) -> None:
        """Writes the history and feeds the watchdog; both stop if the loop hangs."""
        while True:
            if self._history is not None:
                await asyncio.to_thread(self._history.flush)
            notifier.alive()
            await asyncio.sleep(min(_FLUSH_S, notifier.watchdog_interval_s or _FLUSH_S))

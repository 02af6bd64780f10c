"""The daemon's life: what it opens, the tasks that run, and the order in which all is undone."""

import asyncio
import time
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack, suppress
from functools import partial
from pathlib import Path

from cedos.api.server import ControlServer
from cedos.config import Config
from cedos.config.directories import HISTORY_FILE, directories
from cedos.controller.controller import Controller
from cedos.controller.events import HostDefaultsChanged, NetworksChanged
from cedos.daemon import startup, state_file
from cedos.daemon.api_backend import ApiBackend
from cedos.daemon.budgets.host_budgets import LEARNED, LEARNED_FILE, HostBudgets
from cedos.daemon.budgets.metering import Metering, money_per_mb, radios_of
from cedos.daemon.budgets.prefetching import PrefetchingPrograms
from cedos.daemon.decision_log import DecisionLog
from cedos.daemon.driver import ControllerDriver, aligned_sleep
from cedos.daemon.event_log import EventLog, Recording
from cedos.daemon.executor import HostExecutor
from cedos.daemon.flows import FlowEvents, PacketHandler
from cedos.daemon.observer import Observer
from cedos.daemon.sleep_inhibitor import StayAwake
from cedos.daemon.startup import NamedNetworks, choices
from cedos.daemon.state_file import StateFile
from cedos.daemon.told_connections import ToldConnections
from cedos.daemon.transfers import FILE, WHAT, Transfers
from cedos.errors import HostError
from cedos.host.lookups.answers import AnswerWatch, OwnQueue
from cedos.host.lookups.watch import LookupWatch
from cedos.host.monitor.bus import SystemBus
from cedos.host.monitor.events import Change, NetworkEvent
from cedos.host.monitor.flow_monitor import FlowMonitor
from cedos.host.monitor.flow_source import KernelFlows, open_sockets
from cedos.host.monitor.links import LinkMonitor
from cedos.host.monitor.providers.battery import BatteryReader
from cedos.host.monitor.providers.metered import HostMetered
from cedos.host.monitor.resolvers import HostResolvers
from cedos.host.privileged.process import (
    PrivilegedProcess,
    SeparateJournal,
    SeparateKernel,
    SeparateQuestions,
    SeparateQueue,
)
from cedos.host.profiler.capture import Capture
from cedos.host.profiler.profiler import Profiler
from cedos.host.profiler.sizes import SizeHistory
from cedos.host.steer.kernel.filter_rules import QUEUE
from cedos.host.steer.steering import Steering
from cedos.kernel import conntrack, process_limits
from cedos.kernel.service_manager import Notifier
from cedos.logs import get_logger
from cedos.storage.history import History
from cedos.storage.sharing_status import neighbours
from cedos.storage.usage import Usage

_log = get_logger(__name__)

_FLUSH_S = 1.0
_SIZES_FILE = "sizes.json"
# Seconds between two writes of what was learned; it is written at the end, too.
_KEEP_S = 60.0
# The longest time that a command waits for what was looked up until then.
_SETTLED_S = 1.0


async def run(
    config: Config,
    dry_run: bool,
    config_file: Path | None,
    *,
    complaints: Sequence[str] = (),
    privileged: PrivilegedProcess | None = None,
    record: Path | None = None,
    goes_on: Callable[[], bool] = lambda: False,
) -> None:
    """Run the daemon until it is cancelled; everything it changed is undone when it returns.

    `config_file` is the one that `config` was read from; `complaints`: further problems that `status`
    is to name, now and later; `privileged`: the process that has the privileges, None: this one, or a dry
    run, which needs none; `record`: the file of the event log; `goes_on`: asked at the end, whether the
    next run begins at once.

    Raises:
        HostError: the kernel lacks what is indispensable.
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
            LinkMonitor(
                config.network_overrides(),
                resolvers=HostResolvers(bus),
                metered=HostMetered(bus),
            )
        )
        history = startup.history(config, where.history, stack, problems)
        sizes = startup.sizes(where.state / _SIZES_FILE)
        usage = startup.usage(where.state / Usage.FILE, stack, problems)
        questions = SeparateQuestions(privileged) if privileged is not None else None
        flow_monitor = await stack.enter_async_context(
            FlowMonitor(
                links.is_local, links.is_here, source=KernelFlows(questions, links.is_local)
            )
        )
        steering = await stack.enter_async_context(
            Steering(
                where.state,
                dry_run=dry_run,
                rescue=config.steering.rescue,
                tcp=config.steering.tcp,
                kernel=None if privileged is None else SeparateKernel(privileged),
                open_journal=None if privileged is None else partial(SeparateJournal, privileged),
                goes_on=goes_on,
            )
        )
        daemon = Daemon(
            config,
            where.state,
            links=links,
            flow_monitor=flow_monitor,
            steering=steering,
            capture=startup.first_packets(config, stack, problems),
            history=history,
            sizes=sizes,
            usage=usage,
            bus=bus,
            problems=problems,
            complaints=complaints,
            config_file=config_file,
            dry_run=dry_run,
            privileged=privileged,
            record=record,
        )
        stack.callback(daemon.finish)
        await daemon.networks_changed()
        await daemon.settle()
        server = await stack.enter_async_context(ControlServer(daemon.backend, where.socket))
        process_limits.give_back()
        notifier = Notifier()
        notifier.ready(seen := startup.usable_text(links))
        dry = {"dry_run": "nothing is changed"} if dry_run else {}
        _log.info("ready", networks=seen, **dry)
        await daemon.run(notifier, server)


def _describe_event(event: NetworkEvent) -> str:
    if event.change is Change.LOST:
        return "network gone"
    if event.before is not None and event.before.up == event.network.up:
        return "network has changed"  # (its addresses, whether it is metered)
    return "network up" if event.network.up else "network down"


class Daemon:
    def __init__(
        self,
        config: Config,
        state: Path,
        *,
        links: LinkMonitor,
        flow_monitor: FlowMonitor,
        steering: Steering,
        capture: Capture | None,
        history: History | None,
        sizes: SizeHistory,
        usage: Usage,
        bus: SystemBus | None,
        problems: list[str],
        complaints: Sequence[str],
        config_file: Path | None,
        dry_run: bool,
        privileged: PrivilegedProcess | None,
        record: Path | None = None,
    ) -> None:
        self._state = state
        self._privileged = privileged
        self._links = links
        self._flow_monitor = flow_monitor
        self._steering = steering
        self._history = history
        self._sizes = sizes
        self._own_problems, self._complaints = problems, complaints
        self._bus = bus
        self._profiler = Profiler(sizes)
        chosen = choices(config, problems)
        self._log = DecisionLog(history)
        settings = startup.controller_config(config, chosen, self._log.next_number, dry_run=dry_run)
        self._rules = state_file.RulesFile(state)
        self._controller = Controller(
            settings,
            self._rules.read(),
            state_file.read(state / FILE, WHAT),
            state_file.read(state / LEARNED_FILE, LEARNED),
            reversed(history.flows(startup.JUDGED_FLOWS)) if history is not None else (),
        )
        self._driver = driver = ControllerDriver(self._controller)
        first = EventLog(record, self._controller) if record is not None else None
        recording = Recording(self._controller, state, first)
        decider, ruled = self._controller.decider, self._controller.ruled
        steering.keep_to(ruled.may_use)
        steering.when_left_alone(
            lambda: driver.post(HostDefaultsChanged(dict(steering.host_defaults)))
        )
        radios, prices = radios_of(config), money_per_mb(config)
        metering = Metering(usage, startup.boot(), links.networks(), radios, prices)
        self._observer = Observer(
            config,
            bus,
            driver.post,
            self._controller.networks,
            metering.on_counters,
            self._controller.ruled.may_ask,
        )
        # -- budgets
        self._budgets = HostBudgets(
            config,
            state,
            usage,
            metering,
            self._controller.budgets,
            driver.post,
            battery=BatteryReader(bus) if bus is not None else None,
        )
        self._named = NamedNetworks(config, lambda: list(self._budgets.in_force.values()))
        # -- transfers with deadlines
        self._transfers = Transfers(state, driver)
        self._sizes_file = StateFile(state / _SIZES_FILE, startup.SIZES)
        self._files = [self._rules, self._transfers.file, self._sizes_file]
        awake = StayAwake(bus if config.transfers.stay_awake else None)
        # -- look-ups
        self._answers = self._answer_watch(privileged) if not dry_run else None
        deliver = partial(privileged.call, "answer_lookup") if privileged is not None else None
        self._lookups = (
            LookupWatch(
                driver.post,
                self._observer.find_network,
                deliver,
                self._answers.on_captured,
            )
            if config.steering.lookups and self._answers is not None
            else None
        )
        # -- flows
        self._packets = PacketHandler(capture, self._profiler, driver)
        self._events = FlowEvents(
            driver=driver,
            monitor=flow_monitor,
            steering=steering,
            observer=self._observer,
            profiler=self._profiler,
            packets=self._packets,
            history=history,
        )
        self._executor = HostExecutor(
            self._rules,
            driver,
            steering,
            self._observer,
            self._events,
            self._log,
            self._lookups,
            self._answers,
            self._budgets,
            self._transfers,
            awake,
        )
        driver.begin(self._executor.carry_out, recording)
        # -- people and programs
        self._carried = ToldConnections(
            lambda: (*decider.networks, *decider.helpers), self._log.recent, history
        )
        self.backend = ApiBackend(
            driver=driver,
            log=self._log,
            observer=self._observer,
            budgets=self._budgets,
            settle=self._carry_out_commands,
            programs=PrefetchingPrograms(driver, metering, radios),
            deadlines=self._transfers,
            carried=self._carried,
            recorder=recording,
            problems=self.problems,
            rule_problems=lambda: self._rules.problems,
            open_sockets=open_sockets,
            neighbours=partial(neighbours, directories().runtime),
            odometers=usage,
            history=self._history,
            history_file=state / HISTORY_FILE,
            config_file=config_file,
            dry_run=dry_run,
        )

    def problems(self) -> list[str]:
        optional = (
            self._flow_monitor.problem,
            conntrack.describe_full_table(),
            self._history.problem if self._history else None,
            self._bus.problem if self._bus else None,
        )
        return [
            *self._complaints,
            *self._own_problems,
            *self._observer.problems,
            *self._controller.portals.problems(self._driver.now_s()),
            *self._steering.problems,
            *self._budgets.problems,
            *self._controller.hard.problems,
            *self._named.problems,
            *(self._lookups.problems if self._lookups is not None else ()),
            *self._controller.lookups.problems,
            *self._controller.answers.problems,
            *self._rules.problems,
            *(problem for problem in optional if problem),
        ]

    async def networks_changed(self) -> None:
        """Tell all parts what networks there are; the controller decides again."""
        networks, helpers = self._links.networks(), self._links.helpers()
        self._observer.networks_changed(networks, helpers)
        self._named.networks_changed([*networks, *helpers])
        self._driver.post(NetworksChanged(tuple(networks), tuple(helpers)))
        await self._steering.barring.networks_changed()
        # An interface that goes takes its counter with it. And a budget that begins now counts from what
        # is kept.
        self._budgets.keep()

    async def settle(self) -> None:
        """Bar at the start what is spent already, and open what is not."""
        # A killed daemon has not written what was used in its last half minute.
        await self._observer.count_all()
        self._budgets.tick()
        await self._executor.settle()
        await self._steering.barring.take_down_unneeded()

    async def run(self, notifier: Notifier, server: ControlServer) -> None:
        async with AsyncExitStack() as stack:
            stack.callback(self._packets.begin())
            tasks = await stack.enter_async_context(asyncio.TaskGroup())
            tasks.create_task(self._observer.run(), name="observe")
            tasks.create_task(self._follow_links(), name="links")
            tasks.create_task(self._events.follow_flows(), name="flows")
            tasks.create_task(self._events.follow_connections(), name="connections")
            tasks.create_task(self._events.follow_looks(), name="samples")
            tasks.create_task(self._budgets.run(), name="budgets")
            for file in self._files:
                tasks.create_task(file.run(), name="files")
            if self._lookups is not None:
                tasks.create_task(self._lookups.run(), name="look-ups")
            if self._answers is not None:
                tasks.create_task(self._answers.run(), name="answers")
            tasks.create_task(self._keep(notifier, server), name="keep")
            if self._privileged is not None:
                tasks.create_task(self._end_with(self._privileged), name="privileges")

    def _answer_watch(self, privileged: PrivilegedProcess | None) -> AnswerWatch:
        return AnswerWatch(
            self._driver.post,
            lambda: self._controller.decider.usable,
            OwnQueue(QUEUE) if privileged is None else SeparateQueue(privileged),
            self._steering.hold_answers,
            look=self._look,
        )

    def _look(self) -> bool:
        return self._lookups is None or self._lookups.read()

    async def _carry_out_commands(self) -> None:
        """Carry out what was commanded: a rule, say, also for what was looked up until now."""
        over_s = time.monotonic() + _SETTLED_S
        while not self._look() or self._controller.ruled.behind:
            if time.monotonic() > over_s:
                break  # a program looks names up without end
            await asyncio.sleep(0.001)
        await self._executor.settle()
        await self._rules.wait_written()

    async def _end_with(self, privileged: PrivilegedProcess) -> None:
        await privileged.wait_ended()
        raise HostError(
            "the privileged part of the daemon has ended; `cedos restore` undoes what is left"
        )

    def finish(self) -> None:
        """Stop deciding, and keep what was learned."""
        self._driver.close()
        self._executor.close()
        self._keep_learned()
        for file in self._files:
            file.write()

    def _keep_learned(self) -> None:
        self._sizes_file.take(self._sizes.state())
        self._transfers.keep()

    async def _follow_links(self) -> None:
        async for event in self._links.events():
            if event.counters is not None:
                await self._observer.count_last(event.network, event.counters)
                self._budgets.keep()
            else:
                _log.info(_describe_event(event), network=event.network.name)
                await self.networks_changed()

    async def _keep(self, notifier: Notifier, server: ControlServer) -> None:
        """Keep the history and the control socket, and feed the watchdog; all stop if the loop hangs."""
        kept_at_s = time.monotonic()
        while True:
            if time.monotonic() - kept_at_s > _KEEP_S:
                kept_at_s = time.monotonic()
                self._keep_learned()
                process_limits.give_back()  # what a crowd of flows took for a moment
                if self._privileged is not None:
                    with suppress(HostError):  # it has ended, which another task says
                        await asyncio.to_thread(self._privileged.call, "give_back")
            self._carried.check(time.monotonic(), time.time())
            history = self._history
            if history is not None and (history.waiting or history.problem):
                await asyncio.to_thread(history.flush)
            await server.keep()
            notifier.feed_watchdog()
            self._driver.check_clock()
            await aligned_sleep(min(_FLUSH_S, notifier.watchdog_interval_s or _FLUSH_S))

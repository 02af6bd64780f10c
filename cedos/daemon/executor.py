"""Carries the controller's commands out: on the kernel, the prober, the records."""

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field
from itertools import chain
from typing import Final, TypeVar

from cedos.api.messages import flow_text
from cedos.controller import commands as do
from cedos.controller.commands import Command
from cedos.controller.events import (
    CommandDone,
    CommandFailed,
    FirstPacketAnswered,
    FirstPacketSeen,
    FirstTimeoutsSet,
)
from cedos.daemon.budgets.host_budgets import HostBudgets
from cedos.daemon.decision_log import DecisionLog
from cedos.daemon.driver import ControllerDriver
from cedos.daemon.flows import FlowEvents
from cedos.daemon.observer import Observer
from cedos.daemon.sleep_inhibitor import StayAwake
from cedos.daemon.state_file import RulesFile
from cedos.daemon.transfers import Transfers
from cedos.errors import CedosError
from cedos.host.lookups.answers import AnswerWatch
from cedos.host.lookups.watch import LookupWatch
from cedos.host.monitor.links import received_bytes
from cedos.host.steer.steering import Steering
from cedos.logs import get_logger
from cedos.model import NetworkLife

_log = get_logger(__name__)

# The most tries to lead places of which the kernel refuses some.
_MOST_TRIES: Final = 64
_Argument = TypeVar("_Argument")


@dataclass(slots=True)
class HostExecutor:
    """The executor of commands on this host."""

    rules: RulesFile
    driver: ControllerDriver
    steering: Steering
    observer: Observer
    flows: FlowEvents
    log: DecisionLog
    lookups: LookupWatch | None
    answers: AnswerWatch | None
    budgets: HostBudgets
    transfers: Transfers
    awake: StayAwake
    # The turns of commands that wait for others of their kind. (The packet filter keeps that of walls.)
    _holding: asyncio.Lock = field(default_factory=asyncio.Lock)
    _locking: asyncio.Lock = field(default_factory=asyncio.Lock)
    _tasks: set[asyncio.Task[None]] = field(default_factory=set)
    # By the kind of commands the places that the kernel refused at their last try.
    _refused: defaultdict[type, set[do.Place]] = field(default_factory=lambda: defaultdict(set))
    # The counters of all interfaces, for as long as one burst of looks lasts.
    _counters: tuple[float, Mapping[str, int]] = field(default=(float("-inf"), {}))

    def carry_out(self, command: Command) -> None:
        """Carry a command out; one that is refused is logged, and comes back as failed.

        The kernel changes under our hands (a connection ends, a link goes). The next look comes soon.
        """
        try:
            self._carry_out(command)
        except (CedosError, OSError) as error:
            _log.warning("steering failed", why=str(error))
            self.driver.post(CommandFailed(command))

    def _carry_out(self, command: Command) -> None:
        steering, observer, post = self.steering, self.observer, self.driver.post
        match command:
            # -- steering
            case do.FollowNetworks(networks):
                steering.follow(networks)
            case do.SetDefault(network, others):
                steering.set_default(network, others)
            case do.SetDestinations(wanted):
                self._lead(command, wanted, steering.set_destinations)
            case do.SetRuled(wanted):
                if self._lead(command, wanted, steering.set_ruled):
                    post(CommandDone(command))
            case do.ForbidPlaces(places):
                steering.forbid(places)
            case do.SetMark(mark, network):
                steering.set_mark(mark, network)
            case do.MoveConnection(token, strategy):
                _log.debug("flow moves", token=token, to=str(strategy))
                steering.steer_connection(token, strategy)
            case do.ReleasePath(token, network):
                _log.debug("a path is given up", token=token, network=network)
                steering.release(token, network)
            case do.LeaveSpares(networks):
                steering.without_spares(networks)
            case do.BoundQueues(paths):
                steering.paths_measured(paths)
            case do.CloseConnection(key, why):
                if steering.close_silent(key):
                    _log.info("closed", flow=flow_text(key), why=why)
                    post(CommandDone(command))
            # -- first packets
            case do.SetFirstTimeouts(timeouts_s):
                post(FirstTimeoutsSet(steering.rescues.set_first_timeouts(dict(timeouts_s))))
            case do.LookAtFirstPacket(key):
                waiting = steering.rescues.connecting(key)
                if waiting is None or waiting.join:
                    post(FirstPacketAnswered(key))
                else:
                    left_s, resent = waiting.resend_in_s, waiting.resent
                    received = self._received_bytes()
                    post(FirstPacketSeen(key, left_s, resent, received, waiting.user))
            case do.RescueFlow(key, network, why):
                if steering.rescues.rescue(key, network):
                    _log.info("rescued", flow=flow_text(key), to=network, why=why)
                    post(CommandDone(command))
            case do.EndRescue(key):
                steering.rescues.remove(key)
            # -- what is asked of networks
            case do.LookAtFlows():
                self.flows.look()
            case do.AskNetwork(name):
                observer.ping(name)
            case do.AskName() | do.CheckPage() | do.ShakeHands():
                observer.ask(command)
            case do.WatchNetworks(networks):
                observer.watch(networks)
            case do.WatchSilence(networks):
                observer.prober.silent(networks)
            case do.NoteUse(networks):
                observer.prober.in_use(networks)
            # -- records
            case do.RecordDecision(decision):
                self.log.record(decision)
            case do.RecordFlow(record, _):
                self.flows.keep(record)
            case do.ForgetFlow(key):
                self.flows.profiler.forget(key)
            case do.FollowHint(number, hint, mark):
                for learned in self.flows.profiler.hint(number, hint, mark):
                    post(learned)
            case do.ForgetHint(number):
                self.flows.profiler.unhint(number)
            case do.KeepRules(rules):
                self.rules.take(rules)
            case do.TellVerdict():
                _tell(command)
            # -- look-ups
            case do.AskResolver() if self.lookups is not None:
                self.lookups.ask(command)
            case do.AnswerLookup() if self.lookups is not None:
                self.lookups.answer(command)
            case do.HoldAnswers(on) if self.answers is not None:
                self._start(self._end(command, self.answers.hold, on, self._holding))
            case do.ReleaseAnswer(number, passes) if self.answers is not None:
                self.answers.release(number, passes=passes)
            case do.LookUpName() if self.answers is not None:
                self.answers.look_up(command)
            case do.Tell(what, about):
                _log.warning(what, **about)
            # -- hard budgets
            case do.BarNetworks(networks):
                self._start(self._end(command, steering.barring.bar, networks))
                self.budgets.keep()  # what is spent stays so, whatever kills the daemon
            # -- transfers with deadlines
            case do.TurnsChanged(keys):
                self.transfers.on_turns(keys)
            case do.KeepTransfers():
                self.transfers.keep()
            case do.KeepAwake():
                self._start(self._keep_awake(command))
            case do.CountUse():
                self._start(self._count_use())
            case do.AnswerChoice():
                raise AssertionError("the driver keeps answers for who asked")

    async def settle(self) -> None:
        """Return when all that is under way is done: networks are barred, the use is counted."""
        while self._tasks:
            await asyncio.wait(self._tasks)

    def close(self) -> None:
        """End what is under way."""
        for task in self._tasks:
            task.cancel()
        self.awake.release()

    def _start(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _end(
        self,
        command: do.BarNetworks | do.HoldAnswers,
        carry_out: Callable[[_Argument], Awaitable[None]],
        argument: _Argument,
        turn: asyncio.Lock | None = None,
    ) -> None:
        """Carry a command out that takes a while, in its turn if it has one; its end is an event."""
        async with turn or nullcontext():
            try:
                await carry_out(argument)
            except (CedosError, OSError) as error:
                why = (error.strerror if isinstance(error, OSError) else None) or str(error)
                self.driver.post(CommandFailed(command, why=why))
            else:
                self.driver.post(CommandDone(command))

    async def _keep_awake(self, command: do.KeepAwake) -> None:
        async with self._locking:
            if not await self.awake.hold(command.on):
                self.driver.post(CommandFailed(command))

    async def _count_use(self) -> None:
        await self.observer.count_all()
        self.budgets.tick()

    def _lead(
        self,
        command: Command,
        wanted: Mapping[do.Place, str | None],
        lead: Callable[[Mapping[do.Place, str | None]], None],
    ) -> bool:
        """Lead all places at once, as a name may have hundreds; in halves of these if that is refused.

        Each is waited for: what is left after some tries counts as refused. So what was refused before
        comes last. Return whether all are led.
        """
        failed: list[do.Place] = []
        why = ""
        before = self._refused[type(command)]
        parts = [sorted(wanted, key=before.__contains__)]
        for _ in range(_MOST_TRIES):
            if not parts:
                break
            part = parts.pop()
            try:
                lead({place: wanted[place] for place in part})
            except CedosError as error:
                why = str(error)
                middle = len(part) // 2
                if middle:
                    parts += part[middle:], part[:middle]
                else:
                    failed += part
        left = [*chain.from_iterable(parts)]
        self._refused[type(command)] = {*failed, *before.intersection(left)}
        failed += left
        if failed:
            _log.warning("steering failed", why=why)
            self.driver.post(CommandFailed(command, tuple(failed)))
        return not failed

    def _received_bytes(self) -> Mapping[str, int]:
        """Return the bytes that each interface received, read at most every 20 ms."""
        now_s = self.driver.now_s()
        if now_s - self._counters[0] > 0.02:
            self._counters = now_s, received_bytes()
        return self._counters[1]


def _tell(command: do.TellVerdict) -> None:
    life, before = command.life, command.before
    if NetworkLife.UNKNOWN in (life, before):
        _log.debug(life, network=command.network, was=before, why=command.why)
    elif life is NetworkLife.ALIVE:
        _log.info("replies again", network=command.network, was=before)
    else:
        _log.info(life, network=command.network, why=command.why)

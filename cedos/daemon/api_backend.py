"""The daemon's answers on its control socket."""

import asyncio
import heapq
import os
import time
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path

from cedos.api.budgets import BudgetMessage, UsageMessage
from cedos.api.messages import (
    CarriedReport,
    DecisionMessage,
    DefaultMessage,
    FlowMessage,
    HostDefaultMessage,
    NetworkMessage,
    OtherDefaultMessage,
    PhoneMessage,
    RecordingMessage,
    RecordingRequest,
    RuleMessage,
    StatusMessage,
    SubflowMessage,
    flow_text,
)
from cedos.api.programs import (
    ChoiceRequest,
    HintAccepted,
    PrefetchingAnswer,
)
from cedos.api.transfers import TransferInTable, TransferReport, TurnMessage
from cedos.controller.controller import Controller
from cedos.controller.decisions.user_rules import RuledDestinations
from cedos.controller.events import ChoiceAsked, HintGiven, HintWithdrawn, HostDefault, RuleSet
from cedos.controller.flows.living_flow import LivingFlow
from cedos.controller.hint import HintRequest, PrefetchReport
from cedos.controller.rule import RuleRequest
from cedos.daemon.budgets import used
from cedos.daemon.budgets.host_budgets import HostBudgets
from cedos.daemon.budgets.prefetching import PrefetchingPrograms
from cedos.daemon.decision_log import DecisionLog, Explanations
from cedos.daemon.driver import ControllerDriver
from cedos.daemon.event_log import Recording
from cedos.daemon.observer import Observer
from cedos.daemon.told_connections import ToldConnections
from cedos.daemon.transfers import Transfers
from cedos.errors import ConfigError, NotFoundError
from cedos.host.monitor.flow_source import OpenSockets, is_own
from cedos.host.steer.routing_plan import is_second_choice
from cedos.model import Budget, NetworkKind, PhoneUse
from cedos.selector.budgets.controller import PROHIBITIVE
from cedos.selector.decision.case import Sent
from cedos.selector.decision.reason import sentences
from cedos.selector.decision.sessions import Detour
from cedos.storage.history import History
from cedos.storage.usage import Usage

_RECENT = 1000
# The most flows in the status; `flows` lists all.
SHOWN_FLOWS = 100


@dataclass(slots=True, kw_only=True)
class ApiBackend:
    """The control socket's backend (`cedos.api.server.Backend`), over all parts of the daemon."""

    driver: ControllerDriver
    log: DecisionLog
    observer: Observer
    budgets: HostBudgets
    settle: Callable[[], Awaitable[None]]
    programs: PrefetchingPrograms
    deadlines: Transfers
    carried: ToldConnections
    recorder: Recording
    problems: Callable[[], Sequence[str]]  # what is degraded, in words
    rule_problems: Callable[[], list[str]]  # those about rules
    open_sockets: Callable[[], Awaitable[OpenSockets]]  # flows without one are over, and not shown
    neighbours: Callable[[], Mapping[str, str]]
    odometers: Usage
    history: History | None
    history_file: Path
    config_file: Path | None  # the one that was read
    dry_run: bool
    started_at_s: float = field(default_factory=time.monotonic)

    @property
    def _known(self) -> Controller:
        return self.driver.controller

    async def status(self) -> StatusMessage:
        shown, others = await self._largest_flows(SHOWN_FLOWS)
        carried, other_carried = self.carried.largest(SHOWN_FLOWS, time.monotonic())
        return StatusMessage(
            version=version("cedos"),
            pid=os.getpid(),
            uptime_s=time.monotonic() - self.started_at_s,
            dry_run=self.dry_run,
            objective=self._known.decider.objective.name,
            networks=await self.networks(),
            default=self._default(),
            flows=shown,
            other_flows=others,
            problems=[*self.problems(), *self.carried.problems(time.monotonic())],
            closed=self._known.stuck.messages(time.monotonic()),
            budget_problems=[*self.budgets.problems, *self._known.hard.problems],
            rule_problems=self.rule_problems(),
            decisions=self._known.decider.decisions,
            config_file=str(self.config_file) if self.config_file else None,
            carried=carried,
            other_carried=other_carried,
            reasons={
                number: decided.reason
                for number in {
                    *(each.decision for each in shown),
                    *(each.decision for each in carried),
                }
                if number is not None and (decided := self.log.recent(number))
            },
        )

    async def networks(self) -> list[NetworkMessage]:
        context = self.driver.context()
        decider, by_helpers = self._known.decider, self._known.networks.by_helpers
        neighbours = self.neighbours() if decider.helpers else {}
        return [
            NetworkMessage.of(
                network,
                context,
                context.at_s,
                decider.barred.get(network.name, ""),
                self._known.reliability.of(network.name),
                sum(by_helpers.of(network.name)),
                neighbours.get(str(network.addresses[0].ip), "") if network.addresses else "",
            )
            for network in (*decider.networks, *decider.helpers)
        ]

    async def flows(self) -> list[FlowMessage]:
        now_s = time.monotonic()
        return [_message(flow, now_s) for flow in await self._open_flows()]

    async def _largest_flows(self, most: int) -> tuple[list[FlowMessage], int]:
        """Return the flows that carried most, oldest first, and how many others there are."""
        flows = await self._open_flows()
        largest = {id(flow) for flow in heapq.nlargest(most, flows, key=_carried_bytes)}
        now_s = time.monotonic()
        shown = [_message(flow, now_s) for flow in flows if id(flow) in largest]
        return shown, len(flows) - len(shown)

    async def _open_flows(self) -> list[LivingFlow]:
        sockets = await self.open_sockets()
        return [
            flow
            for flow in self._known.flows
            if not is_own(flow.key) and any(map(sockets.carry, flow.paths))
        ]

    async def explain(self, flow: str | None) -> DecisionMessage:
        known = Explanations(
            self.log, self._known.flows, self.carried, self._known.ruled.decision_about
        )
        networks = (*self._known.decider.networks, *self._known.decider.helpers)
        return await known.of(flow, time.time(), self.driver.context(), networks)

    async def standing_budgets(self) -> list[BudgetMessage]:
        return budget_messages(self._known, self.budgets.source, time.time())

    async def usage(self, since_unix_s: float) -> UsageMessage:
        if self.history is not None:  # what has just ended would be nowhere
            await asyncio.to_thread(self.history.flush)
        counted = used.by_network(self.odometers, since_unix_s)
        living: dict[str, Counter[str]] = defaultdict(Counter)
        for flow in await self._open_flows():
            for path in flow.paths.values():
                if path.network is not None and (carried := path.bytes_down + path.bytes_up):
                    living[flow.server_name or str(flow.key.remote)][path.network] += carried
        through = self.carried.unwritten(time.time())
        return await asyncio.to_thread(used.by_server, counted, self.history_file, living, through)

    async def set_budget(self, budget: Budget) -> BudgetMessage:
        await self.budgets.set(budget)
        await self.settle()  # at once, so that the answer tells of it
        return next(each for each in await self.standing_budgets() if each.name == budget.name)

    async def phone(self) -> PhoneMessage:
        return PhoneMessage(phone=self._known.budgets.phone, source=self.budgets.phone_source)

    async def prefer(self, phone: PhoneUse | None) -> PhoneMessage:
        await self.budgets.prefer(phone)
        return await self.phone()

    async def remove_budget(self, name: str) -> None:
        await self.budgets.remove(name)
        await self.settle()

    async def choose(self, request: ChoiceRequest) -> DecisionMessage:
        detour = request.detour
        answer = self.driver.choose(
            ChoiceAsked(
                request.transfer,
                request.redundant,
                request.multipath,
                self._sent_by(request),
                None if detour is None else Detour(detour.rtt_s, detour.port),
                request.programs,
            )
        )
        direct = None if answer.detour is None else answer.detour.direct
        return DecisionMessage.of(answer.decision, direct=direct)

    def _sent_by(self, request: ChoiceRequest) -> Sent | None:
        name = request.sent_over
        if name is None:
            return None
        networks = (*self._known.decider.networks, *self._known.decider.helpers)
        for network in networks:
            if name in (network.name, network.egress):
                return Sent(network.name, request.waited_s)
        known = ", ".join(each.name for each in networks)
        raise ConfigError(f"There is no network {name}. The networks are: {known or 'none'}")

    async def prefetching(self, request: PrefetchReport, uid: int) -> PrefetchingAnswer:
        own = [each for each in await self.networks() if each.kind is not NetworkKind.HELPER]
        return self.programs.on_request(request, own, uid)

    async def transfer(self, report: TransferReport, uid: int) -> TurnMessage:
        return await self.deadlines.report(report, uid)

    async def transfers(self) -> list[TransferInTable]:
        return await self.deadlines.list_all()

    async def report_carried(self, report: CarriedReport, uid: int) -> None:
        self.carried.on_report(report, uid, time.monotonic(), time.time())

    async def rules(self) -> list[RuleMessage]:
        return rule_messages(self._known.ruled, self._known.decider.host_defaults)

    async def changes(self, seen: int = -1, wait_s: float = 0.0) -> int:
        return await self.driver.changes(seen, wait_s)

    async def add_rule(self, rule: RuleRequest) -> RuleMessage:
        number = self._known.ruled.rules.number_for(rule)
        self.driver.post(RuleSet(number, rule))
        await self.settle()
        return next(each for each in await self.rules() if each.number == number)

    async def remove_rule(self, number: int) -> None:
        if number not in self._known.ruled.rules.rules:
            raise NotFoundError(f"there is no rule {number}: `cedos rule` lists them")
        self.driver.post(RuleSet(number, None))
        await self.settle()

    async def recording(self) -> RecordingMessage:
        return self.recorder.state()

    async def record(self, request: RecordingRequest, uid: int) -> RecordingMessage:
        return self.recorder.ask(request, uid)

    async def hint(self, hint: HintRequest, uid: int) -> HintAccepted:
        self.driver.post(HintGiven(hint, uid))
        hints = self._known.hints
        number, given = hints.last, hints.in_force[hints.last]
        return HintAccepted(number=number, network=hints.network_of(number), mark=given.mark)

    async def unhint(self, number: int, uid: int) -> None:
        self._known.hints.check(number, uid)
        self.driver.post(HintWithdrawn(number))

    def _default(self) -> DefaultMessage:
        default = self._known.default
        decision = default.decision
        kept = self._known.decider.host_defaults.items()
        vpn = {str(version): each.interface for version, each in kept if each.vpn}
        host_defaults = {
            str(version): HostDefaultMessage(interface=each.interface, what=each.what)
            for version, each in kept
            if not each.vpn
        }
        if decision is None:
            return DefaultMessage(
                network=None, reason=default.reason, vpn=vpn, host_defaults=host_defaults
            )
        networks = decision.choice.networks
        return DefaultMessage(
            network=networks[0] if networks else None,
            reason=default.reason,
            age_s=max(0.0, time.monotonic() - decision.context.at_s),
            decision=decision.number,
            vpn=vpn,
            host_defaults=host_defaults,
            others=self._other_defaults(networks),
        )

    def _other_defaults(self, default: Sequence[str]) -> dict[str, OtherDefaultMessage]:
        """Return where connections go of IP versions that the default network lacks."""
        decider = self._known.decider
        by_name = {network.name: network for network in decider.networks}
        first = by_name.get(default[0]) if default else None
        found = {}
        for ip_version, decision in sorted(self._known.default.others.items()):
            led = decision.choice.networks
            barred = [
                why
                for name, why in decider.barred.items()
                if name in by_name and by_name[name].carries(ip_version)
            ]
            lacking = [f"{first.name} has no IPv{ip_version}"] if first is not None else []
            found[str(ip_version)] = OtherDefaultMessage(
                network=led[0] if led else None,
                why=sentences(*lacking, *(() if led else barred)),
                tcp_alone=bool(led)
                and first is not None
                and led[0] in by_name
                and is_second_choice(ip_version, first, by_name[led[0]]),
            )
        return found


def budget_messages(
    controller: Controller, source: Callable[[str], str], unix_s: float
) -> list[BudgetMessage]:
    """Return all budgets and how they stand, with their prices, and what networks each one bars.

    `source`: where a budget was set, by its name.
    """
    budgets, hard, found = controller.budgets, controller.hard, []
    for standing in budgets.standings(unix_s):
        budget, suspended = standing.budget, budgets.why_suspended(standing.budget)
        expected = standing.forecast
        spent_up = not standing.over and standing.rate >= PROHIBITIVE and not suspended
        priced = not (spent_up or standing.over or suspended)
        message = BudgetMessage.of(
            budget,
            spent=standing.spent,
            begins_unix_s=standing.period.begins_s,
            ends_unix_s=standing.period.ends_s,
            forecast=expected.likely if expected else None,
            forecast_low=expected.low if expected else None,
            forecast_high=expected.high if expected else None,
            s_per_unit=standing.rate if priced else None,
            spent_up=spent_up,
            bought_s=standing.bought_s,
            over=standing.over,
            suspended=suspended,
            source=source(budget.name),
            controller=budgets.keepers[budget.name].controller.name,
            barred=hard.barred_by(budget.name),
            unkept=hard.unkept(budget.name),
        )
        found.append(message)
    return found


def _carried_bytes(flow: LivingFlow) -> int:
    return sum(path.bytes_down + path.bytes_up for path in flow.paths.values())


def _message(flow: LivingFlow, now_s: float) -> FlowMessage:
    primary = flow.strategy.networks if flow.strategy else ()
    return FlowMessage(
        flow=flow_text(flow.key),
        strategy=flow.strategy,
        subflows=[
            SubflowMessage(
                flow=flow_text(path.key),
                network=path.network,
                backup=flow.token is not None and path.network not in primary,
                rtt_s=path.sample.rtt_s if path.sample else None,
                delivery_rate_bps=path.sample.delivery_rate_bps if path.sample else None,
            )
            for path in flow.paths.values()
            if path.closed is None
        ],
        token=flow.token,
        server_name=flow.server_name,
        age_s=now_s - flow.started_at_s,
        bytes_down=sum(path.bytes_down for path in flow.paths.values()),
        bytes_up=sum(path.bytes_up for path in flow.paths.values()),
        size=flow.transfer.size if flow.transfer else None,
        decision=flow.decision,
    )


def rule_messages(
    ruled: RuledDestinations, host_defaults: Mapping[int, HostDefault]
) -> list[RuleMessage]:
    """Return the rules as messages; `host_defaults`: by IP version what cedos leaves alone."""
    found = []
    addressed = {number for _, number in ruled.rules.places()}
    for number, rule in ruled.rules.rules.items():
        by_version = ruled.by_version(number)
        if not by_version:
            continue
        # What is refused is told beside what is not.
        led = [each for each in by_version.values() if each.network is not None]
        first = (led or list(by_version.values()))[0]
        left_to = {
            version: default
            for version, default in host_defaults.items()
            if version in by_version
            and number in addressed
            and (default.overrules or default.first)
        }
        found.append(
            RuleMessage(
                number=number,
                rule=rule,
                network=first.network,
                why=first.decision.reason,
                vpn={str(v): each.interface for v, each in left_to.items() if each.vpn},
                host_defaults={
                    str(v): each.interface for v, each in left_to.items() if not each.vpn
                },
                refused={str(v): each.refused for v, each in by_version.items() if each.refused},
            )
        )
    return found

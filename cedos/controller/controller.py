"""The controller: what the daemon decides, as a function of events.

The caller hands each event to `handle`, with the monotonic time, and then carries out `commands` in
order. It sends `TimerFired` at `next_timer_s`. What happened in one event is decided before the next.

Facts (round trips, samples of flows, look-ups) only wake the controller. It decides at its next timer, at
most ten times a second, so that a burst of facts is one decision. What a person or a network changes (a
rule, a hint, a network that went) is decided at once.
"""

import math
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Final

from cedos.controller import commands as give
from cedos.controller import events as on
from cedos.controller.budgets.hard_budgets import HardBudgets
from cedos.controller.budgets.keepers import BudgetKeepers
from cedos.controller.budgets.opportunities import Opportunities
from cedos.controller.budgets.prefetching import Prefetching
from cedos.controller.commands import Command
from cedos.controller.config import ControllerConfig
from cedos.controller.deadlines import DeadlineTransfers
from cedos.controller.decisions.decider import Decider
from cedos.controller.decisions.destinations import (
    DefaultNetwork,
    DestinationTrials,
    SteeredDestinations,
)
from cedos.controller.decisions.hints import Hints, Programs
from cedos.controller.decisions.moves import Moves
from cedos.controller.decisions.rescue import Rescuer
from cedos.controller.decisions.stuck import StuckConnections
from cedos.controller.decisions.user_rules import RuledDestinations, UserRules
from cedos.controller.events import Event, FlowClosed, FlowOpened, FlowsSampled
from cedos.controller.flows.finished_transfer import FinishedTransfer, finished_transfer
from cedos.controller.flows.learning import Reliability
from cedos.controller.flows.living_flow import LivingFlow
from cedos.controller.flows.living_flows import LivingFlows
from cedos.controller.held_answers import HeldAnswers
from cedos.controller.lookups import Lookups
from cedos.controller.networks.observation import NetworkObservation
from cedos.controller.networks.portals import Portals
from cedos.controller.outbox import Outbox, next_beat_s
from cedos.controller.rule import RuleRequest
from cedos.limits import TokenBucket
from cedos.model import (
    Context,
    Decision,
    FlowKey,
    FlowRecord,
    NetworkLife,
    Strategy,
    StrategyKind,
)
from cedos.selector.decision.features import RATES
from cedos.selector.decision.liveness import dead_networks

# The time between two looks at the flows while a transfer runs.
CLOSE_S: Final = 0.2
# The small transfers that are compared with their predictions: a page's, and so many a second. At 100 per
# second the comparison takes a fifth of the daemon's time and teaches no more.
JUDGED_AT_ONCE: Final = 20
JUDGED_PER_S: Final = 3
# After a look, the pause is at least this many times as long as the look took: at most 3 % of a
# core.
_SHARE: Final = 30.0
_DECIDED_APART_S: Final = 0.1
# Between looks while nothing is under way, and between decisions while flows live.
_FULL_S: Final = 1.0
# Between decisions while no flow lives.
_IDLE_S: Final = 5.0
# What the kernel refused is tried again after this time. If it refuses still, the next decision tries.
_AGAIN_S: Final = 1.0
# A look comes this long after the beat at which counters are read, for it depends on them.
_AFTER_COUNTERS_S: Final = 0.005


class Controller:
    """The state of networks, flows, rules and rescues, and the decisions on them.

    A caller may read its parts; only `handle` changes them.

    Args:
        config: the settings.
        rules: the user's rules as they were kept (`KeepRules`); None: none.
        transfers: the table of transfers with deadlines as it was kept (`KeepTransfers`); None: none.
        budgets: what budgets have learned (`BudgetKeepers.state`) as it was kept; None: nothing.
        records: finished flows of earlier, the oldest first, which say how well networks are predicted.
    """

    def __init__(
        self,
        config: ControllerConfig,
        rules: object = None,
        transfers: object = None,
        budgets: object = None,
        records: Iterable[FlowRecord] = (),
    ) -> None:
        self.config = config
        self._outbox = outbox = Outbox()
        self.flows = flows = LivingFlows()
        self.networks = NetworkObservation(outbox, flows)
        self.portals = Portals(outbox, self.networks.keeper)
        self.decider = decider = Decider(config.choices, flows, outbox, config.first_number)
        self.default = DefaultNetwork(outbox, decider)
        self.ruled = RuledDestinations(outbox, decider, UserRules(outbox, rules))
        trials = DestinationTrials(decider, flows.is_connected, outbox)
        self.destinations = SteeredDestinations(
            outbox, decider, self.default, self.ruled.covers, trials
        )
        self.programs = Programs(outbox, decider)
        self.hints = Hints(outbox, decider, self.destinations, self.programs)
        self.moves = Moves(outbox, decider, self.default)
        self.rescuer = Rescuer(
            outbox,
            dry_run=config.dry_run,
            may_use=self.ruled.may_use,
            heard_at_s=flows.heard_at_s,
        )
        self.stuck = StuckConnections(
            config, outbox, flows, self.networks, decider, self.default, self.ruled
        )
        self.lookups = Lookups(outbox, decider, self.networks, self.ruled.may_ask)
        self.answers = HeldAnswers(config, outbox, decider, self.ruled)
        prices = config.choices.price_per_mb
        self.transfers = DeadlineTransfers(outbox, decider, transfers)
        self.budgets = BudgetKeepers(config, outbox, decider, budgets)
        self.hard = HardBudgets(outbox, prices)
        self.prefetching = Prefetching(self.budgets, decider)
        self._opportunities = Opportunities(self.budgets, decider, self.prefetching)
        self.reliability = Reliability(records)
        self._small_judged: TokenBucket | None = None
        # When to look at the flows and at stuck connections, and to decide; None: not to.
        self._look_at_s: float | None = -math.inf
        self._stuck_at_s: float | None = None
        self._woken_at_s = self._decided_at_s = self._full_at_s = -math.inf
        self._refused_at_s = -math.inf
        self._again_at_s: float | None = None
        # What is to be decided in turn (`_take_turn`), and since when.
        self._turns: deque[SteeredDestinations | LivingFlow | int] = deque()
        self._turn_at_s = -math.inf
        # What the last look and the last decision found.
        self._asked_at_s: dict[str, float] = {}
        self._looked = True
        self._sent_at_look: int | None = None
        self._stalled: frozenset[FlowKey] = frozenset()
        self._dead: frozenset[str] = frozenset()
        self._lives: dict[str, NetworkLife] = {}

    # -- the caller's side --------------------------------------------------------------------

    def commands(self) -> list[Command]:
        """Return the commands since the last call; the caller carries them out in their order."""
        return self._outbox.take()

    def next_timer_s(self) -> float | None:
        """Return the monotonic instant at which the caller is to send `TimerFired`; None: never."""
        decide_s = self._woken_at_s + _DECIDED_APART_S if self._outbox.woken else None
        timers = (
            self._look_at_s,
            self._stuck_at_s,
            decide_s,
            self._again_at_s,
            self._turn_at_s if self._turns else None,
            self.destinations.next_timer_s(),
            self.rescuer.next_timer_s(),
            self.lookups.next_timer_s(),
            self.hard.next_timer_s(),
            self.transfers.next_timer_s(),
            self.portals.next_timer_s(),
            self.hints.next_timer_s(),
            self.ruled.next_timer_s(),
            self.answers.next_timer_s(),
        )
        return min([each for each in timers if each is not None], default=None)

    @property
    def followed(self) -> tuple[object, ...]:
        """Return what programs follow of networks, walls and rules: other objects after each change."""
        decider = self.decider
        return decider.networks, decider.helpers, decider.barred, self.ruled.rules.by_address

    def context(self, now_s: float) -> Context:
        """Return all that is known of the networks now; later events do not use this answer."""
        return self.networks.context(now_s, keep=False)

    def handle(self, event: Event, now_s: float) -> None:
        """Take an event that happened at a monotonic instant."""
        match event:
            case on.TimerFired():
                self._on_timer(now_s)
            # -- flows
            case FlowOpened():
                self._on_open(event, now_s)
            case FlowClosed():
                self._on_close(event, now_s)
            case FlowsSampled():
                self._on_samples(event, now_s)
            case on.SizeLearned():
                self._on_size(event, now_s)
            case on.SubflowJoined(token, key, steerable):
                self.moves.steerable(token, steerable)
                self.rescuer.on_answer(key)  # MPTCP tells of established subflows alone
                flow = self.flows.join(token, key, now_s)
                self._lead(flow, now_s)
                if steerable and flow.transfer is not None:
                    self.moves.reconsider(flow, self.networks.recent_context(now_s))
            case on.Steerable(token, steerable):
                self.moves.steerable(token, steerable)
            case on.SizesKnown(remote, port, sizes):
                self.destinations.on_sizes(give.place_of(remote, port), sizes)
            # -- first packets
            case on.FirstPacketSeen():
                self.rescuer.on_look(event, self._context(now_s), now_s)
            case on.FirstPacketAnswered(key):
                self.rescuer.on_answer(key)
            case on.FirstTimeoutsSet(early):
                self.rescuer.on_timeouts_set(early)
            # -- networks
            case on.NetworksChanged(networks, helpers):
                self._outbox.give(give.FollowNetworks(networks))
                self.networks.networks_changed(networks, helpers, now_s)
                self.decider.networks_changed(networks, helpers)
                self.budgets.networks_changed(now_s)
                if self.hard.networks_changed(networks, now_s):
                    self.decider.bar(self.hard.why)
                self.destinations.networks_changed(networks)
                self.flows.networks_changed((*networks, *helpers))
                self._usable_changed(now_s)
                context = self._context(now_s)
                self.reconsider(context)
                self.transfers.plan(context)
            case on.HostDefaultsChanged(defaults):
                self.decider.leave_alone(defaults)
                self._outbox.wake(urgent=True)
            case on.IndicatorsRead(network, indicators):
                self.networks.keeper.update(network, indicators)
            case on.Attached(network, point, name):
                if self.networks.keeper.observe_attachment(network, point, name, now_s):
                    # Another access point is another place.
                    self.portals.recheck(now_s, network)
                    self._outbox.give(give.AskNetwork(network))
            case on.CountersRead(network, received_bytes, sent_bytes):
                self.networks.on_counters(network, received_bytes, sent_bytes, now_s)
                self.portals.on_bytes(network, received_bytes, now_s)
            case on.PingEnded(network, rtt_s, asked_s, at_s):
                self.networks.on_ping(network, rtt_s, asked_s, at_s)
            case on.Witnessed():
                self._on_witness(event, now_s)
            case on.ProvidersRead():
                self._outbox.wake()
            case on.HostSlept(slept_s):
                self.networks.keeper.on_sleep(slept_s)
                self.portals.recheck(now_s)
            case on.DecisionMade():
                self._record(event, now_s)
            case on.ClockRead(unix_s):
                self.decider.on_clock(unix_s, now_s)
                self.answers.follow()
                self.transfers.begin(now_s)
            # -- people and programs
            case on.BudgetSet():
                self.budgets.on_set(event, now_s)
            case on.BudgetRemoved(name):
                self.budgets.on_removed(name)
            case on.BudgetsCounted():
                self.prefetching.update(now_s)
                self.budgets.on_counted(event, now_s)
                self._bar(self.hard.on_counted(event, self.budgets.in_force, now_s), now_s)
            case on.PhoneUseChanged(use):
                self.budgets.wanted_phone = use
            case on.PrefetchingChanged(report):
                self.prefetching.on_report(report, now_s)
            case on.ChoiceAsked():
                self._outbox.give(self.decider.choose(event, self._context(now_s)))
            case on.HintGiven():
                self.hints.on_given(event, self._context(now_s), now_s)
            case on.HintWithdrawn(number):
                self.hints.end(number)
            case on.TransferReported():
                self.transfers.on_report(event, self._context(now_s))
            case on.TransferEnded():
                self.transfers.on_ended(event, self._context(now_s))
            case on.BatteryRead():
                self.budgets.on_battery(event, now_s)
            case on.RuleSet(number, rule):
                self._on_rule(number, rule, now_s)
            case on.AnswersRead():
                if self.answers.learn(event, now_s):
                    self.ruled.lead()
                self.answers.on_read(event, now_s)
            case on.NameLookedUp():
                if self.answers.learn(event, now_s):
                    self.ruled.lead()
                self.answers.on_looked_up(event)
            case on.LookupAsked():
                self.lookups.on_asked(event, now_s)
            case on.LookupAnswered():
                self.lookups.on_answered(event, now_s)
            case on.ResolverReplied():
                self.lookups.on_reply(event, now_s)
            case on.HostsFileRead(hosts):
                if self.ruled.rules.hosts_read(hosts):
                    self.ruled.lead()
            case on.PageChecked():
                if self.portals.on_page(event, now_s):
                    self._portals_changed(now_s)
            case on.HandshakeEnded():
                if self.portals.on_handshake(event, now_s):
                    self._portals_changed(now_s)
            # -- commands
            case on.CommandDone(give.BarNetworks()):
                self._bar(self.hard.on_barred(), now_s)
            case on.CommandDone(give.HoldAnswers(held)):
                self.answers.on_hold(held)
            case on.CommandDone(give.SetRuled(wanted)):
                self.ruled.on_done(wanted, now_s)
            case on.CommandDone(command):
                self._on_done(command, now_s)
            case on.CommandFailed(give.BarNetworks(), _, why):
                self._bar(self.hard.on_barred(why), now_s)
            case on.CommandFailed(give.KeepAwake()):
                self.transfers.lock.on_refused(now_s)
            case on.CommandFailed(give.HoldAnswers(held), _, why):
                self.answers.on_hold(held, why)
            case on.CommandFailed(command, places):
                self._on_failure(command, places, now_s)
        self.ruled.go_on(partial(self._context, now_s), now_s)
        self.answers.review(now_s)

    def _context(self, now_s: float) -> Context:
        return self.networks.context(now_s)

    # -- timers -------------------------------------------------------------------------------

    def _on_timer(self, now_s: float) -> None:
        self.rescuer.on_timer(now_s)
        self.lookups.on_timer(now_s)
        self.hard.on_timer(now_s)
        if self.portals.on_timer(now_s):
            self._portals_changed(now_s)
        self.hints.on_timer(now_s)
        plan_at_s = self.transfers.next_timer_s()
        if plan_at_s is not None and now_s >= plan_at_s:
            self.transfers.on_timer(self._context(now_s), now_s)
        if self._look_at_s is not None and now_s >= self._look_at_s:
            self._look_at_s = None  # until the look is over
            self._outbox.give(give.LookAtFlows())
        if self._stuck_at_s is not None and now_s >= self._stuck_at_s:
            if len(self.flows):
                self.stuck.check(self._context(now_s), self._asked_at_s)
            self._plan_stuck(now_s)
        if self._again_at_s is not None and now_s >= self._again_at_s:
            self._again_at_s = None
            self._outbox.wake(urgent=True)
        if self._outbox.woken and now_s >= self._woken_at_s + _DECIDED_APART_S:
            self._woken_at_s, self._outbox.woken = now_s, False
            context = self._context(now_s)
            self.rescuer.context_changed(context)
            if self._due(context):
                self.reconsider(context)
                if self.config.short_queues:
                    self._outbox.give(give.BoundQueues(measured_paths(context, self.flows)))
        elif self._turns:
            self._take_turn(self._context(now_s))
        elif (turn_at_s := self.destinations.next_timer_s()) is not None and now_s >= turn_at_s:
            self.destinations.on_timer(self._context(now_s), now_s)

    def _due(self, context: Context) -> bool:
        """Return whether to decide now; if so, note the time.

        While no flow lives, or none sends, there is a decision every `_IDLE_S`, and at once if a
        network died or came back, or there is an urgent reason.
        """
        dead = frozenset(dead_networks(context, self.decider.networks))
        urgent, self._outbox.urgent = self._outbox.urgent or dead != self._dead, False
        self._dead = dead
        interval_s = 0.0 if len(self.flows) and self._looked else _IDLE_S
        if not urgent and context.at_s - self._decided_at_s < interval_s:
            return False
        self._decided_at_s = context.at_s
        return True

    def reconsider(self, context: Context) -> None:
        """Decide on everything again: on rules and the default now, on the rest in turn, one a timer.

        So an event takes no longer where there are many flows, programs and destinations.
        """
        self.ruled.reconsider(context)
        self.default.reconsider(context)
        self.moves.keep_spares(context.at_s)
        flows = filter(self.moves.may_move, self.flows)
        # What still waits for its turn comes before what has had one.
        waiting = (*self._turns, *self.programs.marks, *flows)
        self._turns = deque(dict.fromkeys((self.destinations, *waiting)))
        self._turn_at_s = context.at_s

    def _take_turn(self, context: Context) -> None:
        """Look at all destinations, or decide on a program, by its mark, or on the move of a flow."""
        match self._turns.popleft():
            case SteeredDestinations() as destinations:
                destinations.reconsider(context)
            case int(mark):
                self.programs.reconsider(mark, context)
            case flow if self.moves.may_move(flow):
                if self.ruled.decision(flow.key, flow.server_name) is not None:
                    self.ruled.keep(flow)  # it stays where its rule has led it
                else:
                    self.moves.reconsider(flow, context)

    def _bar(self, changed: bool, now_s: float) -> None:
        """Keep to what hard budgets bar, if that has changed."""
        if changed:
            self.decider.bar(self.hard.why)
            self._usable_changed(now_s)
            self.ruled.reconsider(self._context(now_s))  # before any flow's turn: see `keep`
            self._outbox.wake(urgent=True)

    def _usable_changed(self, now_s: float) -> None:
        self._outbox.give(give.WatchNetworks(tuple(self.decider.usable)))
        self.portals.networks_changed(self.decider.usable, now_s)
        if self.config.rescue:
            self.rescuer.networks_changed(self.decider.usable, self._context(now_s))
        self._plan_stuck(now_s)

    def _plan_stuck(self, now_s: float) -> None:
        self._stuck_at_s = self.stuck.next_timer_s(now_s, self._context(now_s))

    # -- flows --------------------------------------------------------------------------------

    def _on_open(self, event: FlowOpened, now_s: float) -> None:
        flow = self.flows.on_open(event)
        self.networks.on_open(event)
        if event.key.protocol == "tcp":
            flow.began_in(self.networks.recent_context(now_s))
        self._lead(flow, now_s, event.mark)
        if not event.incoming and self.config.rescue:
            self.rescuer.on_open(event.key, event.at_s)

    def _lead(self, flow: LivingFlow, now_s: float, mark: int | None = None) -> None:
        """Note a connection that began with this mark: it follows the decision in force."""
        if flow.incoming or flow.key.protocol != "tcp":
            return
        network = flow.paths[flow.key].network
        if any(each.name == network for each in self.decider.helpers):
            flow.note_leading(None)  # a session has bound it to the helper
            return
        if flow.key.remote.version in self.decider.host_defaults and network is None:
            return  # the host's own default carries it
        # (MPTCP connections are told of again with each subflow.)
        new = network if flow.strategy is None else None
        destination = self.destinations.on_connection(flow.key, new, now_s)
        flow.note_leading(
            self.ruled.decision(flow.key) or self.programs.decision(mark) or destination
        )

    def _on_size(self, event: on.SizeLearned, now_s: float) -> None:
        if event.server_name is not None and not event.progressed:
            self.answers.on_named(event.server_name, event.key.remote, now_s)
        flow = self.flows.on_size(event)
        if flow is None:
            self.flows.on_early_size(event, now_s)
        elif self.moves.may_move(flow) and not event.progressed:
            self.moves.reconsider(flow, self._context(now_s))

    def worth_a_look(self, asked_at_s: Mapping[str, float]) -> bool:
        """Return whether the sockets may tell anything new; `asked_at_s`: of pings without an answer yet.

        They do not once all flows rest, until a network sends: what arrives is acknowledged, too.
        """
        if self.networks.pending(asked_at_s) or self.networks.silent:
            return True
        sent_bytes = self.networks.sent_bytes
        return bool(len(self.flows)) and (
            sent_bytes is None
            or sent_bytes != self._sent_at_look
            or bool(self.decider.helpers)  # how much they carried is known by the sockets alone
            or not all(flow.rests for flow in self.flows)
        )

    def _on_samples(self, event: FlowsSampled, now_s: float) -> None:
        asked_at_s = self._asked_at_s = self.networks.pending(event.asked_at_s)
        full = now_s - self._full_at_s >= _FULL_S - CLOSE_S / 2
        # A look that is a little early counts, or every second one would be late.
        self._looked = event.looked
        if event.looked:
            self._sent_at_look = self.networks.sent_bytes
        if event.looked and full:
            self._full_at_s = now_s
        here, elsewhere = self.flows.split(event.samples)
        used = self.networks.on_samples(here, now_s, full=event.looked and full)
        if used:
            self._outbox.give(give.NoteUse(used))
        if event.looked:
            seen = self.flows.on_samples(event.samples, now_s)
            if self.portals.observe_flows(here, elsewhere, now_s):
                self._outbox.wake()
            urgent = self._take_seen(seen, asked_at_s, now_s)
            if urgent or full:
                self._outbox.wake(urgent)
        self._plan_look(event, bool(asked_at_s), now_s)

    def _take_seen(
        self, seen: Iterable[LivingFlow], asked_at_s: dict[str, float], now_s: float
    ) -> bool:
        """Take how the flows are; return whether that is a reason to decide at once."""
        for flow in seen:
            network, transfer = flow.small_on, flow.transfer
            if network is None or transfer is None:
                continue
            if flow.alone_on(network, self.networks.recent_context(now_s)):
                waited_s = now_s - flow.started_at_s
                size_bytes = transfer.size.median_bytes
                self.networks.keeper.observe_wait(network, size_bytes, waited_s, now_s)
        silent = self.networks.listen(asked_at_s, now_s)
        self._note_verdicts(now_s)
        # Late is a network that is silent, a transfer that stands still, and one of which nothing has
        # come for twice the time that it was expected to take (dissertation, 4.4.3.1).
        flows = [flow for flow in self.flows if not flow.still]
        stalled = frozenset([flow.key for flow in flows if flow.rate_bps == 0.0])
        stands = not stalled <= self._stalled
        self._stalled = stalled
        overdue = [flow for flow in flows if flow.overdue(now_s)]
        return silent or stands or bool(overdue)

    def _plan_look(self, event: FlowsSampled, asked: bool, now_s: float) -> None:
        """Look again soon while something is under way, else with the next full interval."""
        busy = asked or self.networks.silent or any(flow.under_way for flow in self.flows)
        if event.looked and busy:
            self._look_at_s = now_s + min(_FULL_S, max(CLOSE_S, _SHARE * event.took_s))
        else:
            self._look_at_s = next_beat_s(now_s, _FULL_S) + _AFTER_COUNTERS_S

    def _on_close(self, event: FlowClosed, now_s: float) -> None:
        self.rescuer.on_close(event.key)
        flow = self.flows.find(event.key)
        path = flow.paths[event.key] if flow is not None else None
        rescued = self.flows.is_rescued(event.key)
        carrier = path.network if path is not None and not rescued else None
        # An answer to a flow that another network carries, or a host on the link, shows no portal.
        if event.rtt_s is not None and (path is None or rescued or path.near):
            self.portals.answered_elsewhere(event.key)
        self.networks.on_close(event, carrier, now_s)
        record = self.flows.on_close(event)
        if flow is None or (record and event.key.protocol == "udp" and not event.bytes_down):
            self._outbox.give(give.ForgetFlow(event.key))
            return  # no peer answered: that was no flow
        if record is None:
            return
        finished = finished_transfer(flow, record, event, self.decider.networks)
        if finished is not None:
            recent = self.networks.recent_context(now_s)
            if finished.tells and flow.alone_on(finished.network, recent):
                self.networks.keeper.observe_transfer(
                    finished.network, finished.carried_bytes, finished.time_s, now_s
                )
            # Own checks go where they have to: they say nothing of how well choices are founded.
            if flow.context is not None and not flow.own:
                record = self._judge(record, finished, flow.context, now_s)
        if record.token is not None:
            self.moves.steerable(record.token, False)
        chosen = not flow.incoming and (event.key.protocol != "tcp" or flow.decision is not None)
        self._outbox.give(give.RecordFlow(record, chosen))
        if chosen:
            self._opportunities.on_finished(record, lambda: self._context(now_s))

    def _judge(
        self, record: FlowRecord, finished: FinishedTransfer, context: Context, now_s: float
    ) -> FlowRecord:
        """Return the record with its prediction."""
        if self._small_judged is None:
            self._small_judged = TokenBucket(JUDGED_PER_S, JUDGED_AT_ONCE, now_s)
        model = self.decider.choices.model
        if not finished.small or self._small_judged.take(now_s):
            record = replace(record, prediction=finished.predict(context, model))
            self.reliability.add(record)
        return record

    # -- networks, rules ----------------------------------------------------------------------

    def _on_witness(self, event: on.Witnessed, now_s: float) -> None:
        liveness = self.networks.keeper.liveness(event.network)
        if not event.heard:
            liveness.on_missed(event.witness, event.at_s, event.asked_s)
            self._outbox.wake()
        else:
            liveness.on_heard(event.witness, event.at_s)
        self._note_verdicts(now_s)

    def _portals_changed(self, now_s: float) -> None:
        """Follow what a check has found: verdicts, and the hosts on the way to log-in pages."""
        self._note_verdicts(now_s)
        self._outbox.wake(urgent=self.ruled.rules.portals(self.portals.on_the_way()))

    def _note_verdicts(self, now_s: float) -> None:
        """Tell people of the networks whose state has changed."""
        verdicts = self.networks.keeper.verdicts(now_s)
        before, self._lives = self._lives, {}
        for network in self.decider.networks:
            verdict = verdicts.get(network.name)
            if verdict is None or not network.up:
                continue
            life = self._lives[network.name] = verdict.life
            known = before.get(network.name)
            if known is not None and known is not life:
                self._outbox.give(give.TellVerdict(network.name, life, known, verdict.why))

    def _on_rule(self, number: int, rule: RuleRequest | None, now_s: float) -> None:
        context = self._context(now_s)
        if rule is not None:
            self.ruled.rules.set(number, rule)
            self.ruled.reconsider(context)
        else:
            self.ruled.rules.remove(number)
            self.ruled.reconsider(context)
            self.destinations.reconsider(context)
        self.answers.follow()

    # -- commands -----------------------------------------------------------------------------

    def _on_done(self, command: Command, now_s: float) -> None:
        if isinstance(command, give.CloseConnection):
            closing = self.stuck.on_close(command, now_s)
            if closing is not None:
                self._led_elsewhere(closing.flow, closing.living, closing.reason, now_s)
        if not isinstance(command, give.RescueFlow):
            return
        self.rescuer.on_rescue(command.key)
        self.portals.on_rescue(command.key, now_s)
        flow = self.flows.on_rescue(command.key, command.network)
        for each in self.decider.usable:  # on which the first packet had no reply
            if each.up and any(command.key.local == address.ip for address in each.addresses):
                self._outbox.give(give.AskNetwork(each.name))
        if flow is not None:
            self._led_elsewhere(flow, command.network, command.why, now_s)

    def _led_elsewhere(self, flow: LivingFlow, network: str, reason: str, now_s: float) -> None:
        """Record that a flow without an answer goes over another network now."""
        transfer = replace(flow.transfer or self.decider.unknown(), flow=flow.key)
        choice = Strategy(StrategyKind.SINGLE, (network,))
        flow.on_decision(self._record(on.DecisionMade(transfer, choice, reason), now_s))

    def _record(self, made: on.DecisionMade, now_s: float) -> Decision:
        """Record a decision that was not taken by `decide`, with the next number."""
        return self.decider.record(
            Decision(
                number=self.decider.number,
                made_unix_s=self.decider.unix_s(now_s),
                transfer=made.transfer,
                context=self._context(now_s),
                evaluations=made.evaluations,
                choice=made.choice,
                objective=self.decider.objective.name,
                reason=made.reason,
            )
        )

    def _on_failure(self, command: Command, places: Sequence[give.Place], now_s: float) -> None:
        """Count a command as not done; the next decision gives it again."""
        if now_s - self._refused_at_s > _IDLE_S:
            self._again_at_s = now_s + _AGAIN_S
        self._refused_at_s = now_s
        match command:
            case give.SetDefault():
                self.default.on_failure()
            case give.SetDestinations(wanted):
                self.destinations.led.on_refused(places or wanted)
            case give.SetRuled(wanted):
                self.ruled.on_done(wanted, now_s, failed=places or wanted)
            case give.SetMark(mark, _):
                self.programs.led.on_refused((mark,))
            case give.LeaveSpares():
                self.moves.on_spares_failed()
            case give.SetFirstTimeouts():
                self.rescuer.on_timeouts_failed()
            case give.MoveConnection(token, _):
                if (flow := self.flows.of_token(token)) is not None:
                    flow.on_move_failed()
            case _:
                pass  # the next look or decision gives it again


def measured_paths(
    context: Context, flows: Iterable[LivingFlow] = ()
) -> dict[str, tuple[float, float]]:
    """Return network -> (highest recent rate in bit/s, round trip in s), where both are known.

    The round trip is the least one of the network, or that of a living flow which receives data, if that
    is longer: servers are often farther away than the host that answers pings.
    """
    longest_s: dict[str, float] = {}
    for flow in flows:
        for path in flow.paths.values():
            sample = path.sample
            if path.network and sample and sample.rtt_min_s and sample.bytes_down:
                longest_s[path.network] = max(sample.rtt_min_s, longest_s.get(path.network, 0.0))
    found = {}
    for name, known in context.networks.items():
        rates = [known[key].value for key in RATES if key in known]
        if rates and "rtt_min_s" in known:
            rtt_s = max(known["rtt_min_s"].value, longest_s.get(name, 0.0))
            found[name] = (max(rates), rtt_s)
    return found

"""Takes one decision by what is known now, numbers it and has it recorded."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from cedos.controller.commands import AnswerChoice, RecordDecision
from cedos.controller.config import Choices
from cedos.controller.events import ChoiceAsked, HostDefault
from cedos.controller.flows.living_flow import LivingFlow
from cedos.controller.flows.living_flows import LivingFlows
from cedos.controller.outbox import Outbox
from cedos.model import (
    Bulk,
    Context,
    Decision,
    Evaluation,
    Label,
    Network,
    SizeEstimate,
    Strategy,
    StrategyKind,
    Transfer,
    Urgency,
)
from cedos.selector.decision.case import Case, Sent
from cedos.selector.decision.decide import decide, decide_again
from cedos.selector.decision.helpers import with_helpers
from cedos.selector.decision.liveness import having, silent_s, usable, why_dead
from cedos.selector.decision.living import MARGIN, Living, rest_of
from cedos.selector.decision.reason import sentences
from cedos.selector.decision.sessions import Looks, weigh
from cedos.selector.energy import not_worth_a_spare
from cedos.selector.objective import Objective, WeightedCost

# The time between two trials with fewer networks, for a program that reads slowly.
_TRIED_S = 30.0

_SINGLE = frozenset({StrategyKind.SINGLE})
_MPTCP = frozenset({StrategyKind.SINGLE, StrategyKind.MPTCP})
_SHORT_AND_URGENT = Label(Urgency.FOREGROUND, Bulk.SMALL)
_NEVER_TWICE = "Nothing is sent twice, because [decision] redundant = false"


class Decider:
    """Decides; its callers carry out, and say with `record` what was carried out.

    Attributes:
        networks: all networks of this host.
        helpers: neighbours by whom sessions reach the gateway; nothing else is led to them.
        barred: those among them that programs are kept off, or should be -> why, in words.
        host_defaults: by IP version the host's own default, where that is left alone.
        decisions: how many were taken.
    """

    def __init__(
        self,
        choices: Choices,
        flows: LivingFlows,
        outbox: Outbox,
        first_number: int = 1,
    ) -> None:
        self.choices = choices
        self.networks: Sequence[Network] = ()
        self.helpers: Sequence[Network] = ()
        self.barred: Mapping[str, str] = {}
        self.host_defaults: Mapping[int, HostDefault] = {}
        self.decisions = 0
        self._flows = flows
        self._outbox = outbox
        self._unix_offset_s = 0.0
        self._first_number = first_number
        self._looks = Looks()

    @property
    def usable(self) -> Sequence[Network]:
        """Return the networks; what is barred counts as down."""
        return usable(self.networks, self.barred)

    @property
    def objective(self) -> Objective:
        return self.choices.objective

    def networks_changed(
        self, networks: Sequence[Network], helpers: Sequence[Network] = ()
    ) -> None:
        self.networks, self.helpers = networks, helpers

    def bar(self, why: Mapping[str, str]) -> None:
        """Exclude these networks, and no others, from decisions; each with the reason in words."""
        self.barred = why

    def leave_alone(self, defaults: Mapping[int, HostDefault]) -> None:
        """Leave the host's own defaults, by IP version."""
        self.host_defaults = defaults

    def on_clock(self, unix_s: float, now_s: float) -> None:
        """Take the wall clock's time at a monotonic instant."""
        self._unix_offset_s = unix_s - now_s

    def unix_s(self, at_s: float) -> float:
        """Return the wall clock's time at a monotonic instant."""
        return at_s + self._unix_offset_s

    def prefer(self, objective: Objective) -> None:
        self.choices = replace(self.choices, objective=objective)

    @property
    def number(self) -> int:
        return self._first_number + self.decisions

    def unknown(self) -> Transfer:
        """Return a transfer of which nothing is known: Delphi's guess of a small one (section 4)."""
        guess = self.choices.default_size_bytes
        return Transfer(SizeEstimate(guess, guess, guess, "default"))

    def renew(
        self,
        transfer: Transfer,
        context: Context,
        before: Decision | None,
        *,
        version: int | None = None,
    ) -> tuple[Decision, Decision]:
        """Return the decision for new connections that is in force from now on, and what is seen now.

        The one before holds, and nothing is recorded, while its choice is still possible and not clearly
        (by `MARGIN`) worse than the best. Then what is seen now does not say why.
        """
        if before is not None:
            seen = self.consider(transfer, context, before, version=version, worded=False)
            if seen.choice == before.choice:
                return before, seen
        seen = self.consider(transfer, context, before, version=version)
        return self.record(seen), seen

    def consider(
        self,
        transfer: Transfer,
        context: Context,
        before: Decision | None,
        *,
        version: int | None = None,
        worded: bool = True,
    ) -> Decision:
        """Return what would be decided by what is known now, and why; not recorded.

        `version`: the IP version that the transfer needs; None: any. `worded`: whether to say why.
        """
        decision = self._decide(transfer, context, version=version, worded=worded)
        if before is None or decision.choice == before.choice:
            return decision
        costs = {each.strategy: each.cost for each in decision.evaluations}
        best, kept = costs.get(decision.choice), costs.get(before.choice)
        if best is None or kept is None or best <= kept * (1 - MARGIN):
            return decision
        if any(why_dead(context, name) for name in decision.choice.networks[:1]):
            return replace(decision, choice=before.choice)  # no network works
        if not worded:
            return replace(decision, choice=before.choice)
        better = decision.choice.networks[0] if decision.choice.networks else "to wait"
        little = f"{better} would be better, but too little for a change"
        return replace(decision, choice=before.choice, reason=sentences(little, decision.reason))

    def choose(self, asked: ChoiceAsked, context: Context) -> AnswerChoice:
        """Decide on one transfer that a program carries out, redundantly if it can and may.

        Only what is short and waited for is worth sending twice, whatever bytes cost. With `multipath`
        the program can spread it over several networks, as MPTCP does. `sent`: it is under way already,
        and has no answer; then it is only sent again or waited for. A given `detour` is judged, too.
        Where several `programs` wait for it, its time counts for each.
        """
        transfer, sent, kinds = asked.transfer, asked.sent, set(_SINGLE)
        twice = asked.redundant and transfer.label == _SHORT_AND_URGENT
        if twice and self.choices.redundant:
            kinds.add(StrategyKind.REDUNDANT)
        if asked.multipath and sent is None:
            kinds.add(StrategyKind.MPTCP)
        decision = self._decide(transfer, context, kinds, sent, programs=asked.programs)
        if StrategyKind.MPTCP in kinds and self.helpers:
            case = self.case(transfer, context, kinds, self.usable, programs=asked.programs)
            decision = with_helpers(case, decision, self.helpers)
        if StrategyKind.MPTCP in kinds and asked.detour is None:
            decision = self._looks.add_look(decision, self.usable)
        if twice and not self.choices.redundant:
            decision = replace(decision, reason=sentences(decision.reason, _NEVER_TWICE))
        if asked.detour is None:
            return AnswerChoice(self.record(decision), None)
        route = weigh(decision, self.usable, asked.detour)
        told = replace(decision, reason=sentences(route.reason, decision.reason))
        return AnswerChoice(self.record(told), route)

    def not_worth_a_spare(self, now_s: float) -> frozenset[str]:
        """Return the networks over which spare subflows cost more than they are worth now."""
        choices = self.choices
        return not_worth_a_spare(
            self.networks, choices.objective, choices.power, self._flows.idle_s(now_s)
        )

    def weigh(self, transfer: Transfer, context: Context) -> tuple[Evaluation, ...]:
        """Return what each network would take for a transfer; nothing is decided."""
        return self._decide(transfer, context, worded=False).evaluations

    def decide_again(
        self,
        flow: LivingFlow,
        strategy: Strategy,
        transfer: Transfer,
        context: Context,
        margin: float,
    ) -> Decision:
        """Decide on the rest of a living flow's transfer; not recorded, as it may well stay.

        `margin`: the share that a move must save. Only a move says why.
        """
        remaining = max(flow.remaining_bytes or 0, self.choices.default_size_bytes)
        version = flow.key.remote.version  # its subflows are of this one alone
        networks = [
            each if each.leads_out(version) else replace(each, up=False) for each in self.usable
        ]
        rest = rest_of(transfer, remaining)
        case = self.case(rest, context, _MPTCP, networks, worded=False)
        may_try: frozenset[str] = frozenset()
        if flow.unread and not flow.tried_since(context.at_s - _TRIED_S):
            names = (network.name for network in self.usable)
            may_try = frozenset(name for name in names if silent_s(context, name) == 0.0)
        living = Living(
            current=strategy,
            margin=margin,
            observed_bps=flow.rate_bps,
            stalled_s=flow.stalled_s,
            waited_s=flow.waited_s(context.at_s),
            pace_bps=flow.paced_bps(context.at_s),
            unread=flow.unread,
            may_try=may_try,
        )
        return self._with_barred(decide_again(case, living))

    def record(self, decision: Decision) -> Decision:
        """Count a decision that is being carried out."""
        self.decisions += 1
        self._outbox.give(RecordDecision(decision))
        return decision

    def _decide(
        self,
        transfer: Transfer,
        context: Context,
        kinds: Collection[StrategyKind] = _SINGLE,
        sent: Sent | None = None,
        version: int | None = None,
        *,
        programs: int = 1,
        worded: bool = True,
    ) -> Decision:
        networks = self.usable
        if sent is not None:
            # What a helper has not answered may be sent again over this host's own networks.
            networks = [*networks, *(each for each in self.helpers if each.name == sent.network)]
        able = networks if version is None else having(networks, version)
        case = self.case(transfer, context, kinds, able, sent, programs=programs, worded=worded)
        decision = decide(case)
        lacking = [
            each.name
            for each in networks
            if worded and version is not None and each.up and not each.carries(version)
        ]
        if lacking:
            without = (
                f"{' and '.join(lacking)} {'have' if len(lacking) > 1 else 'has'} no IPv{version}"
            )
            decision = replace(decision, reason=sentences(decision.reason, without))
        return self._with_barred(decision)

    def case(
        self,
        transfer: Transfer,
        context: Context,
        kinds: Collection[StrategyKind],
        networks: Sequence[Network],
        sent: Sent | None = None,
        *,
        programs: int = 1,
        worded: bool = True,
    ) -> Case:
        """Return all that a decision on a transfer takes into account; `networks`: to choose from."""
        choices, objective = self.choices, self.choices.objective
        if isinstance(objective, WeightedCost):
            objective = replace(objective, programs=programs)
        return Case(
            transfer=transfer,
            context=context,
            networks=networks,
            model=choices.model,
            objective=objective,
            power=choices.power,
            kinds=kinds,
            idle_s=self._flows.idle_s(context.at_s),
            price_per_mb=choices.price_per_mb,
            number=self.number,
            made_unix_s=self.unix_s(context.at_s),
            sent=sent,
            barred=self.barred,
            worded=worded,
        )

    def _with_barred(self, decision: Decision) -> Decision:
        if not decision.reason or not self.barred:
            return decision
        told = decision.reason.lower()
        untold = [why for why in self.barred.values() if why.lower() not in told]
        return replace(decision, reason=sentences(decision.reason, *untold))

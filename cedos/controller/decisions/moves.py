"""The moves of living MPTCP connections, and the connections of programs with hints."""

import math
from dataclasses import dataclass

from cedos.controller.commands import LeaveSpares, MoveConnection, ReleasePath, SetMark
from cedos.controller.decisions.decider import Decider
from cedos.controller.decisions.destinations import (
    DefaultNetwork,
)
from cedos.controller.flows.living_flow import LivingFlow
from cedos.controller.outbox import Outbox
from cedos.model import Context, Decision, Strategy, Transfer
from cedos.selector.decision.liveness import dead_networks, silent_s


@dataclass(slots=True)
class _MarkedProgram:
    """A hinted program: its transfer, the decision, and where its mark's rule leads."""

    transfer: Transfer
    decision: Decision | None = None
    rule: str | None = None


class Programs:
    """The programs with hints about their transfers (`cedos exec`): their connections bear a mark."""

    def __init__(self, outbox: Outbox, decider: Decider) -> None:
        self._outbox = outbox
        self._decider = decider
        self._known: dict[int, _MarkedProgram] = {}

    def add(self, mark: int, transfer: Transfer, context: Context) -> None:
        """Lead the connections of a new program, which bear `mark`."""
        known = self._known[mark] = _MarkedProgram(transfer)
        self._lead(mark, known, context)

    def network_of(self, mark: int) -> str | None:
        """Return the network of connections with a mark; None where none is up."""
        known = self._known.get(mark)
        return None if known is None else known.rule

    def remove(self, mark: int) -> None:
        """Lead the connections of an ended program like all others."""
        known = self._known.pop(mark, None)
        if known is not None and known.rule is not None:
            self._outbox.give(SetMark(mark, None))

    def decision(self, mark: int | None) -> Decision | None:
        """Return the decision that connections with this mark follow; None: they follow the default."""
        known = None if mark is None else self._known.get(mark)
        return None if known is None else known.decision

    def reconsider(self, context: Context) -> None:
        for mark, known in list(self._known.items()):
            self._lead(mark, known, context)

    def _lead(self, mark: int, known: _MarkedProgram, context: Context) -> None:
        known.decision, _ = self._decider.renewed(known.transfer, context, known.decision)
        wanted = next(iter(known.decision.choice.networks), None)
        if wanted != known.rule:
            known.rule = wanted
            self._outbox.give(SetMark(mark, wanted))

    def on_failure(self, mark: int) -> None:
        """Take it that a mark has no rule: the next decision adds it again."""
        if (known := self._known.get(mark)) is not None:
            known.rule = None


_MOVES_S = 30.0
# A connection on which nothing comes over any network moves no more often than so.
_OFTEN_S, _MOST_OFTEN = 10.0, 6
# The largest margin for the next move. Each recent move of a flow triples the margin: its reason
# may have been noise, and each move costs time.
_MOST_MARGIN = 0.8


class Moves:
    """The moves of living MPTCP connections to another network (Delphi, section 8)."""

    def __init__(self, outbox: Outbox, decider: Decider, default: DefaultNetwork) -> None:
        self._outbox = outbox
        self._decider = decider
        self._default = default
        self._steerable: set[int] = set()
        self._without_spares: frozenset[str] | None = None

    def steerable(self, token: int, possible: bool) -> None:
        if possible:
            self._steerable.add(token)
        else:
            self._steerable.discard(token)

    def may_move(self, flow: LivingFlow) -> bool:
        return flow.token in self._steerable

    def keep_spares(self, now_s: float) -> None:
        """Keep spare subflows only over networks where they are worth their joules."""
        without = self._decider.not_worth_a_spare(now_s)
        if without != self._without_spares:
            self._without_spares = without
            self._outbox.give(LeaveSpares(without))

    def on_spares_failed(self) -> None:
        """Take it that spares are as they were: the next decision asks again."""
        self._without_spares = None

    def reconsider(self, flow: LivingFlow, context: Context) -> bool:
        """Return whether the flow was moved."""
        strategy, transfer = flow.strategy, flow.transfer
        if transfer is None or strategy is None or flow.token is None:
            return False
        self._give_up(flow, flow.token, context)
        small = (flow.remaining_bytes or 0) <= self._decider.choices.default_size_bytes
        stuck = flow.rate_bps == 0.0 or flow.late(context.at_s)
        alive = not stuck and not self._lost(strategy, context)
        if alive and flow.pace.sets(context.at_s) and flow.paced_bps(context.at_s) is None:
            return False  # its program sets the pace, and which is not known yet
        if small and alive:
            # It is over before a move could help, unless it takes longer than it should.
            flow.expects(self._default.small_s(strategy), context.at_s)
            return False
        decision = self._decider.again(
            flow, strategy, transfer, context, self._margin(flow, context.at_s)
        )
        rest_s = next((e.time_s for e in decision.evaluations if e.strategy == strategy), math.inf)
        flow.expects(rest_s, context.at_s)
        if decision.choice == strategy:
            return False
        often = flow.switched_since(context.at_s - _OFTEN_S) >= _MOST_OFTEN
        if often and not self._lost(strategy, context) and not _flees(strategy, decision, context):
            return False
        self._outbox.give(MoveConnection(flow.token, decision.choice))
        flow.on_decision(decision)
        flow.forget_rate()
        self._decider.record(decision)
        self._give_up(flow, flow.token, context, stuck=stuck)
        return True

    def _give_up(
        self, flow: LivingFlow, token: int, context: Context, *, stuck: bool = False
    ) -> None:
        """Call back what is under way on networks that the flow has left, where it would hold it up.

        That is where the network is silent or dead, and where the flow is held up already while the
        networks that it uses are alive; `stuck`: it was, where it has just left.
        """
        left = flow.left_behind()
        if not left or flow.strategy is None:
            return
        silent = {name for name in context.networks if silent_s(context, name) > 0.0}
        quiet = silent | dead_networks(context, self._decider.usable).keys()
        if quiet.issuperset(flow.strategy.networks):
            return  # no other network would carry it sooner
        for name in left if stuck or flow.held_up(context.at_s) else left & quiet:
            self._outbox.give(ReleasePath(token, name))

    def _margin(self, flow: LivingFlow, now_s: float) -> float:
        margin = self._decider.choices.margin
        if flow.tries:  # it comes back as easily as it went
            return margin
        moves = flow.switched_since(now_s - _MOVES_S)
        return min(margin * 3.0**moves, max(_MOST_MARGIN, margin))

    def _lost(self, strategy: Strategy, context: Context) -> bool:
        networks = self._decider.usable
        up = {network.name for network in networks if network.up}
        dead = dead_networks(context, networks)
        return not up.issuperset(strategy.networks) or not dead.keys().isdisjoint(strategy.networks)


def _flees(strategy: Strategy, decision: Decision, context: Context) -> bool:
    """Return whether a decision leads from a silent network to one that is not."""
    here, there = (
        any(silent_s(context, name) > 0.0 for name in networks)
        for networks in (strategy.networks, decision.choice.networks)
    )
    return here and not there

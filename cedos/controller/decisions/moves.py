"""The moves of living MPTCP connections."""

import math

from cedos.controller.commands import LeaveSpares, MoveConnection, ReleasePath
from cedos.controller.decisions.decider import Decider
from cedos.controller.decisions.destinations import DefaultNetwork
from cedos.controller.flows.living_flow import LivingFlow
from cedos.controller.outbox import Outbox
from cedos.model import Context, Decision, Strategy
from cedos.selector.decision.liveness import dead_networks, silent_s
from cedos.selector.decision.living import MARGIN

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
        stuck = flow.rate_bps == 0.0 or flow.is_late(context.at_s)
        alive = not stuck and not self._is_lost(strategy, context)
        if alive and flow.pace.sets(context.at_s) and flow.paced_bps(context.at_s) is None:
            return False  # its program sets the pace, and which is not known yet
        if small and alive:
            # It is over before a move could help, unless it takes longer than it should.
            flow.expects(self._default.small_s(strategy), context.at_s)
            return False
        margin = self._margin(flow, context.at_s)
        decision = self._decider.decide_again(flow, strategy, transfer, context, margin)
        rest_s = next((e.time_s for e in decision.evaluations if e.strategy == strategy), math.inf)
        flow.expects(rest_s, context.at_s)
        if decision.choice == strategy:
            return False
        often = flow.switched_since(context.at_s - _OFTEN_S) >= _MOST_OFTEN
        if (
            often
            and not self._is_lost(strategy, context)
            and not _flees(strategy, decision, context)
        ):
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
        if flow.tries:  # it comes back as easily as it went
            return MARGIN
        moves = flow.switched_since(now_s - _MOVES_S)
        return min(MARGIN * 3.0**moves, _MOST_MARGIN)

    def _is_lost(self, strategy: Strategy, context: Context) -> bool:
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

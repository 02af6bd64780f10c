"""Moves living MPTCP connections to another network where that is worth while (Delphi, section 8)."""

import math

import structlog

from cedos.daemon.decisions.decider import Decider
from cedos.daemon.decisions.default_network import DefaultNetwork
from cedos.daemon.decisions.steer_interface import Steer, carried_out
from cedos.daemon.flows.living_flow import LivingFlow
from cedos.model import Context, Strategy
from cedos.selector.decision.liveness import dead_networks, silent_s

_log = structlog.get_logger(__name__)

_MOVES_S = 30.0
_MOST_MARGIN = 0.8
"""Each move that a flow made in the last seconds triples what the next one must save, up to this:
what made it move may have been noise, and moving to and fro costs every time."""


class Moves:
    def __init__(self, steer: Steer, decider: Decider, default: DefaultNetwork) -> None:
        self._steer = steer
        self._decider = decider
        self._default = default
        self._steerable: set[int] = set()

    def steerable(self, token: int, possible: bool) -> None:
        if possible:
            self._steerable.add(token)
        else:
            self._steerable.discard(token)

    def may_move(self, flow: LivingFlow) -> bool:
        return flow.token in self._steerable

    async def keep_spares(self, now_s: float) -> None:
        """Keep spare subflows only over networks where they are worth their joules."""
        await carried_out(self._steer.without_spares(self._decider.not_worth_a_spare(now_s)))

    async def reconsider(self, flow: LivingFlow, context: Context) -> bool:
        """Return whether the flow was moved."""
        strategy, transfer = flow.strategy, flow.transfer
        if transfer is None or strategy is None or flow.token is None:
            return False
        await self._give_up(flow, flow.token, context)
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
        _log.debug("flow moves", flow=str(flow.key), to=str(decision.choice), why=decision.reason)
        if not await carried_out(self._steer.steer_connection(flow.token, decision.choice)):
            return False
        flow.decided(decision)
        flow.moved()
        self._decider.record(decision)
        await self._give_up(flow, flow.token, context, stuck=stuck)
        return True

    async def _give_up(
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
            _log.debug("a path is given up", flow=str(flow.key), network=name)
            await carried_out(self._steer.release(token, name))

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

"""Everything that is decided on: where new connections go, and living ones."""

import asyncio
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import structlog

from cedos.daemon.decisions.decider import Decider
from cedos.daemon.decisions.destinations import (
    DefaultNetwork,
    DestinationTrials,
    SteeredDestinations,
)
from cedos.daemon.decisions.steer_interface import Steer, carried_out
from cedos.daemon.decisions.user_rules import RuledDestinations, UserRules
from cedos.daemon.flows.living_flow import LivingFlow
from cedos.daemon.flows.living_flows import LivingFlows
from cedos.model import Context, Decision, Network, Strategy, StrategyKind, Transfer
from cedos.profiler.sizes import SizeHistory
from cedos.selector.decision.liveness import dead_networks, silent_s


@dataclass(slots=True)
class _MarkedProgram:
    """A hinted program: its transfer, the decision, and where its mark's rule leads."""

    transfer: Transfer
    decision: Decision | None = None
    rule: str | None = None


class Programs:
    """The programs with hints about their transfers (`cedos exec`): their connections bear a mark."""

    def __init__(self, steer: Steer, decider: Decider) -> None:
        self._steer = steer
        self._decider = decider
        self._known: dict[int, _MarkedProgram] = {}

    async def add(self, mark: int, transfer: Transfer, context: Context) -> str | None:
        """Lead the connections of a new program, which bear `mark`; return its network.

        Returns:
            The network that its connections get; None where none is up.
        """
        known = self._known[mark] = _MarkedProgram(transfer)
        return await self._lead(mark, known, context)

    async def remove(self, mark: int) -> None:
        """Lead the connections of an ended program like all others."""
        known = self._known.pop(mark, None)
        if known is not None and known.rule is not None:
            await carried_out(self._steer.set_mark(mark, None))

    def decision(self, mark: int | None) -> Decision | None:
        """Return the decision that connections with this mark follow; None: they follow the default."""
        known = None if mark is None else self._known.get(mark)
        return None if known is None else known.decision

    async def reconsider(self, context: Context) -> None:
        for mark, known in list(self._known.items()):
            await self._lead(mark, known, context)

    async def _lead(self, mark: int, known: _MarkedProgram, context: Context) -> str | None:
        known.decision, _ = self._decider.renewed(known.transfer, context, known.decision)
        wanted = next(iter(known.decision.choice.networks), None)
        if wanted != known.rule and await carried_out(self._steer.set_mark(mark, wanted)):
            known.rule = wanted
        return wanted


_log = structlog.get_logger(__name__)

_MOVES_S = 30.0
_MOST_MARGIN = 0.8
"""Each move that a flow made in the last seconds triples what the next one must save, up to this:
what made it move may have been noise, and moving to and fro costs every time."""


class Moves:
    """The moves of living MPTCP connections to another network (Delphi, section 8)."""

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
        flow.on_decision(decision)
        flow.forget_rate()
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


class Director:
    """Decides and steers; `ask` pings a network now, `wake` has all decided on again soon.

    Decisions are taken one after the other: a caller of a coroutine of it or of its parts holds
    `turn`.
    """

    def __init__(
        self,
        steer: Steer,
        flows: LivingFlows,
        sizes: SizeHistory,
        decider: Decider,
        rules: UserRules | None = None,
        ask: Callable[[Network], None] = lambda _: None,
        wake: Callable[[], None] = lambda: None,
    ) -> None:
        self.turn = asyncio.Lock()
        self.decider = decider
        self.default = DefaultNetwork(steer, decider)
        self.ruled = RuledDestinations(steer, decider, rules or UserRules())
        trials = DestinationTrials(decider, flows.connected, ask, wake)
        self.destinations = SteeredDestinations(
            steer, decider, self.default, sizes, self.ruled.covers, trials
        )
        self.programs = Programs(steer, decider)
        self.moves = Moves(steer, decider, self.default)
        self._flows = flows
        self._steer = steer

    @property
    def networks(self) -> Sequence[Network]:
        return self.decider.networks

    def networks_changed(self, networks: Sequence[Network]) -> None:
        """Take the networks; the next `reconsider` uses them."""
        self.decider.networks_changed(networks)
        self.destinations.networks_changed(networks)
        self._flows.networks_changed(networks)

    async def reconsider(self, context: Context) -> None:
        """Decide on everything again: what has a rule, the default, destinations, programs, flows."""
        await self.ruled.reconsider(context)
        await self.default.reconsider(context)
        await self.destinations.reconsider(context)
        await self.programs.reconsider(context)
        await self.moves.keep_spares(context.at_s)
        for flow in self._flows:
            if self.ruled.decision(flow.key, flow.server_name) is not None:
                if self.moves.may_move(flow):
                    await self.ruled.keep(flow)
                continue  # it stays where its rule has led it
            if self.moves.may_move(flow) and await self.moves.reconsider(flow, context):
                # The next one finds it where it is now.
                context = replace(context, competing=self._flows.competing(context.at_s))

    def on_connection(self, flow: LivingFlow, now_s: float, mark: int | None = None) -> None:
        """Note a connection that began with this mark: it follows the decision in force."""
        if flow.incoming or flow.key.protocol != "tcp":
            return
        if (
            flow.key.remote.version in self._steer.host_defaults
            and flow.paths[flow.key].network is None
        ):
            return  # the host's own default carries it
        # (MPTCP connections are told of again with each subflow.)
        network = flow.paths[flow.key].network if flow.strategy is None else None
        destination = self.destinations.on_connection(flow.key, network, now_s)
        flow.note_leading(
            self.ruled.decision(flow.key) or self.programs.decision(mark) or destination
        )

    def on_rescue(self, flow: LivingFlow, network: str, reason: str, context: Context) -> None:
        """Note that a flow without an answer goes over another network now."""
        decision = Decision(
            number=self.decider.number,
            made_unix_s=time.time(),
            transfer=replace(flow.transfer or self.decider.unknown(), flow=flow.key),
            context=context,
            evaluations=(),
            choice=Strategy(StrategyKind.SINGLE, (network,)),
            objective=self.decider.objective.name,
            reason=reason,
        )
        flow.on_decision(decision)
        self.decider.record(decision)

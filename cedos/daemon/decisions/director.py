"""Everything that is decided on: where new connections go, and living ones."""

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from cedos.daemon.decisions.decider import Decider
from cedos.daemon.decisions.default_network import DefaultNetwork
from cedos.daemon.decisions.destination_trials import DestinationTrials
from cedos.daemon.decisions.destinations import SteeredDestinations
from cedos.daemon.decisions.moves import Moves
from cedos.daemon.decisions.programs import Programs
from cedos.daemon.decisions.ruled_destinations import RuledDestinations
from cedos.daemon.decisions.steer_interface import Steer
from cedos.daemon.decisions.user_rules import UserRules
from cedos.daemon.flows.living_flow import LivingFlow
from cedos.daemon.flows.living_flows import LivingFlows
from cedos.model import Context, Decision, Network, Strategy, StrategyKind
from cedos.profiler.sizes import SizeHistory


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
            if self.ruled.covers(flow.key.remote, flow.key.remote_port):
                if self.moves.may_move(flow):
                    await self.ruled.keep(flow)
                continue  # it stays where its rule has led it
            if self.moves.may_move(flow) and await self.moves.reconsider(flow, context):
                # The next one finds it where it is now.
                context = replace(context, competing=self._flows.competing(context.at_s))

    def visited(self, flow: LivingFlow, now_s: float, mark: int | None = None) -> None:
        """Note a connection that began with this mark: it follows the decision in force."""
        if flow.incoming or flow.key.protocol != "tcp":
            return
        # (MPTCP connections are told of again with each subflow.)
        network = flow.paths[flow.key].network if flow.strategy is None else None
        destination = self.destinations.visited(flow.key, network, now_s)
        flow.led(self.ruled.decision(flow.key) or self.programs.decision(mark) or destination)

    def rescued(self, flow: LivingFlow, network: str, reason: str, context: Context) -> None:
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
        flow.decided(decision)
        self.decider.record(decision)

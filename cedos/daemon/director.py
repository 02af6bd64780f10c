"""Takes the decisions, for new connections and for living ones, and has them carried out.

New connections go where Delphi's guess of a small transfer is best (section 4), but for destinations
whose transfers are known to be otherwise; a living MPTCP connection is decided on again whenever the
size of its transfer becomes known and while the networks change (section 8).
"""

import asyncio
import math
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from ipaddress import ip_network

import structlog

from cedos.daemon.flows import Flows, LivingFlow
from cedos.daemon.steer_interface import Steer
from cedos.errors import CedosError
from cedos.model import (
    Bulk,
    Context,
    Decision,
    Direction,
    Evaluation,
    FlowKey,
    Label,
    Network,
    SizeEstimate,
    Strategy,
    StrategyKind,
    Transfer,
    Urgency,
)
from cedos.profiler.sizes import SizeHistory
from cedos.selector.energy import DELPHI, PowerModel
from cedos.selector.liveness import dead_networks
from cedos.selector.objective import Objective
from cedos.selector.selector import decide, decide_again
from cedos.selector.uncertainty import CompletionModel

_log = structlog.get_logger(__name__)

_SINGLE = frozenset({StrategyKind.SINGLE})
_MPTCP = frozenset({StrategyKind.SINGLE, StrategyKind.MPTCP})
_HEDGED = frozenset({StrategyKind.SINGLE, StrategyKind.REDUNDANT})
_SHORT_AND_URGENT = Label(Urgency.FOREGROUND, Bulk.SMALL)
_DESTINATIONS = 64
_DESTINATION_S = 600.0
"""At most so many destinations have rules of their own, for so long after their last connection."""

_SAMPLES = 2
"""So many transfers with a destination must be known before it gets a rule of its own."""

_MOVES_S = 30.0
_MOST_MARGIN = 0.8
"""Each move that a flow made in the last seconds triples what the next one must save, up to this:
what made it move may have been noise, and moving to and fro costs every time."""


@dataclass(frozen=True, slots=True)
class Choices:
    """How decisions are taken.

    `margin` is the share that a change must save, `switch_cost_s` what moving a living flow costs,
    `power` the radios, `redundant` whether the same data may go over several networks,
    `price_per_mb` what networks cost by name, where somebody said so.
    """

    objective: Objective
    model: CompletionModel | None
    default_size_bytes: int
    margin: float
    switch_cost_s: float
    destinations: bool = True
    redundant: bool = False
    power: PowerModel = DELPHI
    price_per_mb: Mapping[str, float] = field(default_factory=dict)


class Director:
    """Decides and steers.

    Decisions are taken one after the other: whoever calls one of its coroutines holds `turn`.

    Args:
        steer: carries decisions out.
        flows: the living flows.
        sizes: what transfers with each destination were like.
        choices: how to decide.
        recorded: is given every decision that was taken, for history and listeners.
        first_number: of the first decision.
    """

    def __init__(
        self,
        steer: Steer,
        flows: Flows,
        sizes: SizeHistory,
        choices: Choices,
        recorded: Callable[[Decision], None],
        first_number: int = 1,
    ) -> None:
        self.turn = asyncio.Lock()
        self.default: Decision | None = None
        self.decisions = 0
        self._steer = steer
        self._flows = flows
        self._sizes = sizes
        self._choices = choices
        self._recorded = recorded
        self._number = first_number
        self._networks: Sequence[Network] = ()
        self._destinations: OrderedDict[tuple[str, int | None], _Destination] = OrderedDict()
        self._programs: dict[int, _Program] = {}
        self._steerable: dict[int, bool] = {}

    @property
    def objective(self) -> Objective:
        """What is best now."""
        return self._choices.objective

    @objective.setter
    def objective(self, objective: Objective) -> None:
        self._choices = replace(self._choices, objective=objective)

    @property
    def networks(self) -> Sequence[Network]:
        """The networks of this host."""
        return self._networks

    @property
    def default_size_bytes(self) -> int:
        """What is assumed of a transfer about which nothing is known."""
        return self._choices.default_size_bytes

    def networks_changed(self, networks: Sequence[Network]) -> None:
        """Takes the networks; the next `reconsider` uses them."""
        self._networks = networks
        self._flows.networks_changed(networks)

    def visited(self, flow: LivingFlow, now_s: float) -> None:
        """A connection to a destination began: it may be worth a rule of its own from now on."""
        if flow.incoming or flow.key.protocol != "tcp":
            return
        known = self._destination(f"{flow.key.remote}/{flow.key.remote.max_prefixlen}", flow.key)
        known.until_s = max(known.until_s, now_s + _DESTINATION_S)
        decision = known.decision or self.default
        if flow.decision is None and decision is not None:
            flow.decision = decision.number
        path = flow.paths[flow.key]
        if flow.strategy is None and path.network is not None:
            flow.strategy = Strategy(StrategyKind.SINGLE, (path.network,))

    def steerable(self, token: int, possible: bool) -> None:
        """Whether this MPTCP connection can be moved to another network."""
        if possible:
            self._steerable[token] = True
        else:
            self._steerable.pop(token, None)

    async def reconsider(self, context: Context) -> None:
        """Decides on everything again: the default, destinations, living connections."""
        await self.reconsider_default(context)
        await self._reconsider_destinations(context)
        for mark in list(self._programs):
            await self._reconsider_program(mark, context)
        for flow in self._flows:
            if flow.token in self._steerable:
                await self.reconsider_flow(flow, context)

    async def reconsider_default(self, context: Context) -> None:
        """Decides where new connections go."""
        guess = self._choices.default_size_bytes
        transfer = Transfer(SizeEstimate(guess, guess, guess, "default"))
        decision = self._decide(transfer, context, self.default)
        if decision is None:
            return
        if decision.choice.kind is not StrategyKind.DEFER:
            await self._carry_out(self._steer.set_default(decision.choice.networks[0]))
        self.default = self._record(decision)

    def _destination(
        self, prefix: str, key: FlowKey | None, port: int | None = None
    ) -> "_Destination":
        """The destination, moved to the end of the line; made where it is new."""
        place = (prefix, key.remote_port if key else port)
        known = self._destinations.pop(place, None) or _Destination(
            str(key.remote) if key else None
        )
        self._destinations[place] = known
        return known

    async def _reconsider_destinations(self, context: Context) -> None:
        if not self._choices.destinations or self.default is None:
            return
        for place, known in list(self._destinations.items()):
            if context.at_s > known.until_s or len(self._destinations) > _DESTINATIONS:
                del self._destinations[place]
                await self._rule(place, known, None)
                continue
            transfer = known.hinted or self._expected(known.address, place[1])
            if transfer is not None:
                decision = self._decide(transfer, context, known.decision)
                if decision is not None:
                    known.decision = self._record(decision)
            choice = known.decision.choice if known.decision else None
            await self._rule(
                place, known, choice.networks[0] if choice and choice.networks else None
            )

    async def _rule(
        self, place: tuple[str, int | None], known: "_Destination", wanted: str | None
    ) -> None:
        """A destination has a rule only where it differs from the default."""
        if self.default is not None and self.default.choice.networks[:1] == (wanted,):
            wanted = None
        if wanted != known.rule and await self._carry_out(
            self._steer.set_destination(*place, wanted)
        ):
            known.rule = wanted

    def _expected(self, address: str | None, port: int | None) -> Transfer | None:
        """What transfers with a destination have been like; None where too little is known."""
        if address is None or port is None:
            return None
        known = {
            way: self._sizes.estimate(address, port, way)
            for way in Direction
            if self._sizes.samples(address, port, way) >= _SAMPLES
        }
        if not known:
            return None
        direction = max(known, key=lambda way: known[way].median_bytes)
        return Transfer(known[direction], direction, server_name=f"{address}:{port}")

    async def hinted(
        self,
        destination: str,
        port: int | None,
        size: SizeEstimate,
        direction: Direction,
        until_s: float,
        context: Context,
    ) -> str | None:
        """An application says what it will transfer with a destination (an address or a prefix).

        The hint holds until the monotonic instant `until_s`, in place of what history says.

        Returns:
            The network that such transfers get; None where none is up.
        """
        prefix = str(ip_network(destination, strict=False))
        known = self._destination(prefix, None, port)
        known.hinted = Transfer(size, direction, server_name=f"{prefix}:{port or '*'}")
        known.until_s = until_s
        await self._reconsider_destinations(context)
        decision = known.decision or self.default
        return decision.choice.networks[0] if decision and decision.choice.networks else None

    async def hint_ended(self, destination: str, port: int | None, context: Context) -> None:
        """A hint about a destination was taken back: it is like all others again."""
        known = self._destinations.pop((str(ip_network(destination, strict=False)), port), None)
        if known is not None:
            await self._rule((str(ip_network(destination, strict=False)), port), known, None)
            await self._reconsider_destinations(context)

    async def program(self, mark: int, transfer: Transfer, context: Context) -> str | None:
        """A program begins, of whose transfers something was said; its connections carry `mark`.

        Returns:
            The network that its connections get; None where none is up.
        """
        known = self._programs[mark] = _Program(transfer)
        await self._reconsider_program(mark, context)
        decision = known.decision
        return decision.choice.networks[0] if decision and decision.choice.networks else None

    async def program_ended(self, mark: int) -> None:
        """A program has ended; what it left behind is led like everything else."""
        known = self._programs.pop(mark, None)
        if known is not None and known.rule is not None:
            await self._carry_out(self._steer.set_mark(mark, None))

    async def _reconsider_program(self, mark: int, context: Context) -> None:
        known = self._programs.get(mark)
        if known is None:
            return
        decision = self._decide(known.transfer, context, known.decision)
        if decision is not None:
            known.decision = self._record(decision)
        choice = known.decision.choice if known.decision else None
        wanted = choice.networks[0] if choice and choice.networks else None
        if wanted != known.rule and await self._carry_out(self._steer.set_mark(mark, wanted)):
            known.rule = wanted

    async def reconsider_flow(self, flow: LivingFlow, context: Context) -> None:
        """Decides on the rest of a living MPTCP connection's transfer, and moves it if worth while."""
        if flow.transfer is None or flow.strategy is None or flow.token is None:
            return
        remaining = flow.remaining_bytes or 0
        small = remaining <= self._choices.default_size_bytes
        stuck = flow.rate_bps == 0.0 or flow.late(context.at_s)
        if small and not stuck and not self._lost(flow.strategy, context):
            # It is over before a move could help, unless it takes longer than it should.
            flow.expects(self._small_s(flow.strategy), context.at_s)
            return
        decision = decide_again(
            flow.transfer,
            context,
            self._networks,
            self._choices.model,
            self._choices.objective,
            self._choices.power,
            current=flow.strategy,
            bytes_remaining=max(remaining, self._choices.default_size_bytes),
            switch_cost_s=self._choices.switch_cost_s,
            number=self._number,
            made_unix_s=time.time(),
            margin=self._margin(flow),
            observed_bps=flow.rate_bps,
            stalled_s=flow.stalled_s,
            waited_s=flow.waited_s(context.at_s),
            kinds=_MPTCP,
            idle_s=self._flows.idle_s(context.at_s),
            price_per_mb=self._choices.price_per_mb,
        )
        rest_s = next(
            (e.time_s for e in decision.evaluations if e.strategy == flow.strategy), math.inf
        )
        flow.expects(rest_s, context.at_s)
        if decision.choice == flow.strategy:
            return
        _log.debug("flow moves", flow=str(flow.key), to=str(decision.choice), why=decision.reason)
        if await self._carry_out(self._steer.steer_connection(flow.token, decision.choice)):
            flow.strategy = decision.choice
            flow.decision = decision.number
            flow.switches.append((decision.made_unix_s, decision.choice))
            flow.moved()
            self._record(decision)

    def rescued(self, flow: LivingFlow, network: str, reason: str, context: Context) -> None:
        """A flow's first packet found no answer, and goes over another network now."""
        guess = self._choices.default_size_bytes
        transfer = flow.transfer or Transfer(SizeEstimate(guess, guess, guess, "default"))
        decision = Decision(
            number=self._number,
            made_unix_s=time.time(),
            transfer=replace(transfer, flow=flow.key),
            context=context,
            evaluations=(),
            choice=Strategy(StrategyKind.SINGLE, (network,)),
            objective=self.objective.name,
            reason=reason,
        )
        flow.strategy, flow.decision = decision.choice, decision.number
        flow.switches.append((decision.made_unix_s, decision.choice))
        self._record(decision)

    def _margin(self, flow: LivingFlow) -> float:
        """The share that the flow's next move must save."""
        since_unix_s = time.time() - _MOVES_S
        moves = sum(at_s > since_unix_s for at_s, _ in flow.switches)
        return min(self._choices.margin * 3.0**moves, max(_MOST_MARGIN, self._choices.margin))

    def _small_s(self, strategy: Strategy) -> float:
        """How long a small transfer takes this way, by the last decision about one."""
        known = self.default.evaluations if self.default is not None else ()
        first = strategy.networks[:1]
        return min((e.time_s for e in known if e.strategy.networks[:1] == first), default=math.inf)

    def _lost(self, strategy: Strategy, context: Context) -> bool:
        up = {network.name for network in self._networks if network.up}
        dead = dead_networks(context, self._networks)
        return not up.issuperset(strategy.networks) or not dead.keys().isdisjoint(strategy.networks)

    def _decide(
        self, transfer: Transfer, context: Context, before: Decision | None
    ) -> Decision | None:
        """A decision for new connections, None where the one before still holds.

        It holds while its choice is still possible and not clearly (by `margin`) worse than the best.
        """
        decision = decide(
            transfer,
            context,
            self._networks,
            self._choices.model,
            self._choices.objective,
            self._choices.power,
            number=self._number,
            made_unix_s=time.time(),
            kinds=_SINGLE,
            idle_s=self._flows.idle_s(context.at_s),
            price_per_mb=self._choices.price_per_mb,
        )
        if before is None:
            return decision
        if decision.choice == before.choice:
            return None
        costs = {each.strategy: each.cost for each in decision.evaluations}
        best, kept = costs.get(decision.choice), costs.get(before.choice)
        if best is not None and kept is not None and best > kept * (1 - self._choices.margin):
            return None
        return decision

    def choose(self, transfer: Transfer, context: Context, *, redundant: bool) -> Decision:
        """Decides on one transfer that somebody else carries out, redundantly if they can and may.

        Only what is short and waited for is worth sending twice, whatever bytes cost.
        """
        twice = redundant and self._choices.redundant and transfer.label == _SHORT_AND_URGENT
        return self._record(
            decide(
                transfer,
                context,
                self._networks,
                self._choices.model,
                self._choices.objective,
                self._choices.power,
                number=self._number,
                made_unix_s=time.time(),
                kinds=_HEDGED if twice else _SINGLE,
                idle_s=self._flows.idle_s(context.at_s),
                price_per_mb=self._choices.price_per_mb,
            )
        )

    def weighed(self, transfer: Transfer, context: Context) -> tuple[Evaluation, ...]:
        """What each network would take for a transfer, budgets aside; nothing is decided."""
        return decide(
            transfer,
            context,
            self._networks,
            self._choices.model,
            power=self._choices.power,
            number=0,
            made_unix_s=0.0,
            kinds=_SINGLE,
            idle_s=self._flows.idle_s(context.at_s),
        ).evaluations

    def _record(self, decision: Decision) -> Decision:
        self._number += 1
        self.decisions += 1
        self._recorded(decision)
        return decision

    @staticmethod
    async def _carry_out(action: Awaitable[None]) -> bool:
        try:
            await action
        except CedosError as error:
            # The kernel changes under our hands (a connection ends, a link goes); the next look is
            # never far away.
            _log.warning("steering failed", why=str(error))
            return False
        return True


@dataclass(slots=True)
class _Destination:
    """A destination of late or of a hint: until when it counts, what was decided, which rule it has."""

    address: str | None
    until_s: float = 0.0
    hinted: Transfer | None = None
    decision: Decision | None = None
    rule: str | None = None


@dataclass(slots=True)
class _Program:
    """A program with hints: what it transfers, what was decided, where its mark's rule leads."""

    transfer: Transfer
    decision: Decision | None = None
    rule: str | None = None

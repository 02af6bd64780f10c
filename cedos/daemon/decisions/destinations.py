"""Destinations whose transfers are known to be unlike others: their connections may go another way."""

from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from ipaddress import ip_network

from cedos.daemon.decisions.decider import Decider
from cedos.daemon.decisions.default_network import DefaultNetwork
from cedos.daemon.decisions.steer_interface import Steer, carried_out
from cedos.model import (
    Address,
    Context,
    Decision,
    Direction,
    FlowKey,
    Network,
    SizeEstimate,
    Strategy,
    StrategyKind,
    Transfer,
)
from cedos.profiler.sizes import SizeHistory
from cedos.selector.decision.reason import sentences
from cedos.selector.probing.trial import OF_LATE_S, Recurring, Trial, Trials, lives

_MOST = 64
_REMEMBERED_S = 600.0
"""At most so many destinations have rules of their own, for so long after their last connection."""

_SAMPLES = 1
"""So many transfers with a destination must be known before it gets a rule of its own: what is expected
of it covers the next one from the first on (`profiler.sizes`), and a guess of 3 KB does not."""

_COUNTED = 32
"""Of the connections with a destination the last ones are counted."""

_TRIED_S = 5.0
"""A trial that no connection takes ends after so long."""

Place = tuple[str, int | None]
"""A prefix and a port; None: all ports."""


@dataclass(slots=True)
class _SteeredDestination:
    """A destination of late or of a hint: until when it counts, what was decided, which rule it has.

    `newest` is what would be decided by what is known now, `begun_at_s` when connections began.
    """

    address: str | None
    until_s: float = 0.0
    hinted: Transfer | None = None
    decision: Decision | None = None
    newest: Decision | None = None
    rule: str | None = None
    begun_at_s: deque[float] = field(default_factory=lambda: deque(maxlen=_COUNTED))

    def begun_since(self, at_s: float) -> int:
        """How many connections began since an instant that is later each time."""
        while self.begun_at_s and self.begun_at_s[0] < at_s:
            self.begun_at_s.popleft()
        return len(self.begun_at_s)


@dataclass(slots=True)
class _RunningTrial:
    """The next connection with a place goes over a network, until an instant; `taken`: one went."""

    place: Place
    network: str
    decision: Decision
    until_s: float
    taken: bool = False


class SteeredDestinations:
    """Leads them, and tries now and then what another network does (`selector.probing.trial`).

    Args:
        ruled: whether a destination is under a rule of the user's: then nothing else leads it.
        connected: whether a connection with an address and port lives.
        ask: pings a network now.
    """

    def __init__(
        self,
        steer: Steer,
        decider: Decider,
        default: DefaultNetwork,
        sizes: SizeHistory,
        ruled: Callable[[Address, int | None], bool] = lambda *_: False,
        connected: Callable[[str, int | None], bool] = lambda *_: True,
        ask: Callable[[Network], None] = lambda _: None,
    ) -> None:
        self._ruled = ruled
        self._connected = connected
        self._ask = ask
        self._steer = steer
        self._decider = decider
        self._default = default
        self._sizes = sizes
        self._known: OrderedDict[Place, _SteeredDestination] = OrderedDict()
        self._trials = Trials()
        self._trial: _RunningTrial | None = None

    def visited(self, key: FlowKey, network: str | None, now_s: float) -> Decision | None:
        """A connection to a destination began: it may be worth a rule of its own from now on.

        Returns:
            The decision by which the connection went where it goes.
        """
        address = str(key.remote)
        place = (f"{address}/{key.remote.max_prefixlen}", key.remote_port)
        known = self._last(place, address)
        known.until_s = max(known.until_s, now_s + _REMEMBERED_S)
        known.begun_at_s.append(now_s)
        trial = self._trial
        if trial is not None and (trial.place, trial.network) == (place, network):
            if not trial.taken:  # (those that begin before the rule has ended go there, too)
                trial.taken = True
                size_bytes = trial.decision.transfer.size.median_bytes
                self._trials.made(trial.network, size_bytes, now_s)
                numbered = replace(trial.decision, number=self._decider.number)
                trial.decision = self._decider.record(numbered)
            return trial.decision
        return known.decision or self._default.decision

    def networks_changed(self, networks: Sequence[Network]) -> None:
        """Takes all networks; the next `reconsider` uses them."""
        self._trials.networks_changed(networks)

    async def reconsider(self, context: Context) -> None:
        """Decides on all of them again, and forgets those of long ago."""
        if not self._decider.choices.destinations or self._default.decision is None:
            return
        self._try(context)
        trial = self._trial
        for place, known in list(self._known.items()):
            if context.at_s > known.until_s or len(self._known) > _MOST:
                del self._known[place]
                await self._rule(place, known, None)
                continue
            if self._ruled(ip_network(place[0]).network_address, place[1]):
                await self._rule(place, known, None)
                continue
            transfer = known.hinted or self._expected(known.address, place[1])
            if transfer is not None:
                known.newest = self._decider.considered(transfer, context, known.decision)
                if known.decision is None or known.newest.choice != known.decision.choice:
                    known.decision = self._decider.record(known.newest)
            choice = known.decision.choice if known.decision else None
            wanted = choice.networks[0] if choice and choice.networks else None
            if trial is not None and place == trial.place:
                wanted = trial.network
            await self._rule(place, known, wanted)

    def _try(self, context: Context) -> None:
        """Begins a trial where one is worth it; what it rests on is of the last time it was decided."""
        trial, now_s = self._trial, context.at_s
        if trial is not None and not trial.taken and lives(context, trial.network):
            if now_s < trial.until_s:
                return
            self._trials.missed(trial.network, now_s)
        self._trial = None
        recurring = {}
        for place, known in self._known.items():
            begun = known.begun_since(now_s - OF_LATE_S)
            if begun and known.newest is not None and known.address is not None:
                kept = partial(self._connected, known.address, place[1])
                recurring[place] = Recurring(known.newest, begun, kept)
        decider = self._decider
        found = self._trials.due(
            list(recurring.values()), context, decider.usable, decider.objective
        )
        if found is not None and not found.answered:
            self._ask(found.network)
        elif found is not None:
            self._trial = _begun(found, *list(recurring.items())[found.which], now_s)

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
        known = self._last((prefix, port), None)
        known.hinted = Transfer(size, direction, server_name=f"{prefix}:{port or '*'}")
        known.until_s = until_s
        await self.reconsider(context)
        decision = known.decision or self._default.decision
        return decision.choice.networks[0] if decision and decision.choice.networks else None

    async def hint_ended(self, destination: str, port: int | None, context: Context) -> None:
        """A hint about a destination was taken back: it is like all others again."""
        place = (str(ip_network(destination, strict=False)), port)
        known = self._known.pop(place, None)
        if known is not None:
            await self._rule(place, known, None)
            await self.reconsider(context)

    def _last(self, place: Place, address: str | None) -> _SteeredDestination:
        """The destination, moved to the end of the line; made where it is new."""
        known = self._known.pop(place, None) or _SteeredDestination(address)
        self._known[place] = known
        return known

    async def _rule(self, place: Place, known: _SteeredDestination, wanted: str | None) -> None:
        """A destination has a rule only where it differs from the default."""
        if self._default.is_led_to(wanted):
            wanted = None
        if wanted != known.rule and await carried_out(self._steer.set_destination(*place, wanted)):
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


def _begun(trial: Trial, place: Place, recurring: Recurring, now_s: float) -> _RunningTrial:
    name, usual = trial.network.name, recurring.decision
    decision = replace(
        usual,
        choice=Strategy(StrategyKind.SINGLE, (name,)),
        reason=sentences(trial.why, usual.reason),
    )
    return _RunningTrial(place, name, decision, now_s + _TRIED_S)

"""Destinations whose transfers are known to be unlike others: their connections may go another way."""

from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from ipaddress import ip_network

from cedos.daemon.decisions.decider import Decider
from cedos.daemon.decisions.default_network import DefaultNetwork
from cedos.daemon.decisions.destination_trials import DestinationTrials, Visits
from cedos.daemon.decisions.steer_interface import Place, Steer, carried_out
from cedos.model import (
    Address,
    Context,
    Decision,
    Direction,
    FlowKey,
    Network,
    SizeEstimate,
    Transfer,
)
from cedos.profiler.sizes import SizeHistory

_MOST = 64
_REMEMBERED_S = 600.0
"""At most so many destinations have rules of their own, for so long after their last connection."""

_SAMPLES = 1
"""The transfers with a destination that must be known before it gets a rule of its own: what is expected
of it covers the next one from the first on (`profiler.sizes`), and a guess of 3 KB does not."""


@dataclass(slots=True)
class _SteeredDestination:
    """A destination of late or of a hint: until when it counts, what was decided, which rule it has.

    `visits`: None where it is only of a hint.
    """

    visits: Visits | None = None
    until_s: float = 0.0
    hinted: Transfer | None = None
    decision: Decision | None = None
    rule: str | None = None


class SteeredDestinations:
    """`ruled`: whether a destination is under a rule of the user's: then nothing else leads it.

    `trials` send a connection another way now and then.
    """

    def __init__(
        self,
        steer: Steer,
        decider: Decider,
        default: DefaultNetwork,
        sizes: SizeHistory,
        ruled: Callable[[Address, int | None], bool],
        trials: DestinationTrials,
    ) -> None:
        self._ruled = ruled
        self._steer = steer
        self._decider = decider
        self._default = default
        self._sizes = sizes
        self._trials = trials
        self._known: OrderedDict[Place, _SteeredDestination] = OrderedDict()

    def networks_changed(self, networks: Sequence[Network]) -> None:
        """Take all networks; the next `reconsider` uses them."""
        self._trials.networks_changed(networks)

    def visited(self, key: FlowKey, network: str | None, now_s: float) -> Decision | None:
        """Return a connection to a destination began: it may be worth a rule of its own from now on.

        `network`: over which; None: that is not known (a VPN carries it), or it is told of again.

        Returns:
            The decision by which the connection went where it goes.
        """
        address = str(key.remote)
        place = (f"{address}/{key.remote.max_prefixlen}", key.remote_port)
        known = self._last(place)
        known.until_s = max(known.until_s, now_s + _REMEMBERED_S)
        if known.visits is None:
            known.visits = Visits(address)
        if network is not None:
            known.visits.begun_at_s.append(now_s)
        tried = self._trials.visited(place, network, now_s)
        return tried or known.decision or self._default.decision

    async def reconsider(self, context: Context) -> None:
        """Decide on all of them again, and forgets those of long ago."""
        if not self._decider.choices.destinations or self._default.decision is None:
            return
        ruled = {
            place
            for place in self._known
            if self._ruled(ip_network(place[0]).network_address, place[1])
        }
        self._trials.reconsider(
            {
                place: each.visits
                for place, each in self._known.items()
                if each.visits is not None and place not in ruled
            },
            context,
        )
        for place, known in list(self._known.items()):
            if context.at_s > known.until_s or len(self._known) > _MOST:
                del self._known[place]
                await self._rule(place, known, None)
                continue
            if place in ruled:
                await self._rule(place, known, None)
                continue
            transfer = known.hinted or self._expected(known.visits, place[1])
            if transfer is not None:
                known.decision, seen = self._decider.renewed(transfer, context, known.decision)
                if known.visits is not None:
                    known.visits.decision = seen
            choice = known.decision.choice if known.decision else None
            usual = choice.networks[0] if choice and choice.networks else None
            await self._rule(place, known, self._trials.network_of(place) or usual)

    async def hinted(
        self,
        destination: str,
        port: int | None,
        size: SizeEstimate,
        direction: Direction,
        until_s: float,
        context: Context,
    ) -> str | None:
        """Return an application says what it will transfer with a destination (an address or a prefix).

        The hint holds until the monotonic instant `until_s`, in place of what history says.

        Returns:
            The network that such transfers get; None where none is up.
        """
        prefix = str(ip_network(destination, strict=False))
        known = self._last((prefix, port))
        known.hinted = Transfer(size, direction, server_name=f"{prefix}:{port or '*'}")
        known.until_s = until_s
        await self.reconsider(context)
        decision = known.decision or self._default.decision
        return decision.choice.networks[0] if decision and decision.choice.networks else None

    async def hint_ended(self, destination: str, port: int | None, context: Context) -> None:
        """Treat a destination like all others again after its hint has ended."""
        place = (str(ip_network(destination, strict=False)), port)
        known = self._known.pop(place, None)
        if known is not None:
            await self._rule(place, known, None)
            await self.reconsider(context)

    def _last(self, place: Place) -> _SteeredDestination:
        """Return the destination, moved to the end of the line; made where it is new."""
        known = self._known.pop(place, None) or _SteeredDestination()
        self._known[place] = known
        return known

    async def _rule(self, place: Place, known: _SteeredDestination, wanted: str | None) -> None:
        """Add a destination's rule if it differs from the default, else remove it."""
        if self._default.is_led_to(wanted):
            wanted = None
        if wanted != known.rule and await carried_out(self._steer.set_destination(*place, wanted)):
            known.rule = wanted

    def _expected(self, visits: Visits | None, port: int | None) -> Transfer | None:
        """Return what transfers with a destination have been like; None where too little is known."""
        if visits is None or port is None:
            return None
        address = visits.address
        known = {
            way: self._sizes.estimate(address, port, way)
            for way in Direction
            if self._sizes.samples(address, port, way) >= _SAMPLES
        }
        if not known:
            return None
        direction = max(known, key=lambda way: known[way].median_bytes)
        return Transfer(known[direction], direction, server_name=f"{address}:{port}")

"""Destinations whose transfers are known to be unlike others: their connections may go another way."""

import math
from collections import OrderedDict, deque
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from ipaddress import ip_address, ip_network

from cedos.controller.commands import AskNetwork, Place, SetDefault, SetDestinations
from cedos.controller.decisions.decider import Decider
from cedos.controller.outbox import Outbox
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
from cedos.selector.decision.reason import sentences
from cedos.selector.probing.trial import OF_LATE_S, Recurring, Trials, in_doubt


class DefaultNetwork:
    """The network of new connections without facts: where a small transfer is quickest (Delphi, 4).

    Attributes:
        decision: the one in force; None before the first, and where the host's own default stays.
        reason: why it is in force, by what was known when it was last looked at.
        others: an IP version that its network lacks -> the decision for that version's connections.
    """

    def __init__(self, outbox: Outbox, decider: Decider) -> None:
        self.decision: Decision | None = None
        self.reason = "nothing has been decided yet"
        self.others: dict[int, Decision] = {}
        self._led: tuple[str | None, dict[int, str]] = None, {}
        self._outbox = outbox
        self._decider = decider

    def reconsider(self, context: Context) -> None:
        if self._is_left_alone():
            self.decision, self.reason = None, "The host's own default stays"
            self.others, self._led = {}, (None, {})
            return
        decision = self._decider.considered(self._decider.unknown(), context, self.decision)
        self.reason = decision.reason
        if self.decision is None or decision.choice != self.decision.choice:
            self.decision = self._decider.record(decision)
        self.others = self._for_lacking(context, decision)
        if decision.choice.kind is StrategyKind.DEFER:
            self._led = None, {}
            return
        first = decision.choice.networks[0]
        others = {
            v: each.choice.networks[0] for v, each in self.others.items() if each.choice.networks
        }
        if (first, others) != self._led:
            self._led = first, others
            self._outbox.give(SetDefault(first, others))

    def on_failure(self) -> None:
        """Take it that the kernel has no default of ours: the next decision sets it again."""
        self._led = None, {}

    def _for_lacking(self, context: Context, decision: Decision) -> dict[int, Decision]:
        """Decide anew for each IP version that some network has, but not the one just chosen."""
        found = {}
        networks = self._decider.networks
        chosen = [each for each in networks if each.name in decision.choice.networks]
        for version in {4, 6} - self._decider.host_defaults.keys():
            led = any(each.carries(version) for each in chosen)
            if led or not any(each.carries(version) for each in networks):
                continue
            before = self.others.get(version)
            transfer = self._decider.unknown()
            found[version], _ = self._decider.renewed(transfer, context, before, version=version)
        return found

    def decision_of(self, version: int) -> Decision | None:
        """Return the decision that connections of an IP version follow."""
        return self.others.get(version, self.decision)

    def _is_left_alone(self) -> bool:
        """Return whether nothing is led over a network: in no IP version that one has.

        (What a VPN carries may begin to go over a network at any moment.)
        """
        kept = self._decider.host_defaults
        if all(each.vpn for each in kept.values()):
            return False
        networks = self._decider.networks
        there = [version for version in (4, 6) if any(n.carries(version) for n in networks)]
        return kept.keys() >= set(there)

    def is_led_to(self, network: str | None, version: int) -> bool:
        """Return whether new connections of an IP version go over this network anyway."""
        decision = self.decision_of(version)
        return decision is not None and decision.choice.networks[:1] == (network,)

    def small_s(self, strategy: Strategy) -> float:
        """Return how long a small transfer takes this way, by the decision in force; inf if unknown."""
        decisions = [self.decision, *self.others.values()]
        known = [e for each in decisions if each is not None for e in each.evaluations]
        first = strategy.networks[:1]
        return min((e.time_s for e in known if e.strategy.networks[:1] == first), default=math.inf)


# The number of latest connections with a destination that count.
_COUNTED = 100

# The lifetime of a trial that no connection uses.
_TRIED_S = 5.0

# A connection that lives longer may serve several requests, so its own size says little.
_KEPT_S = 5.0


@dataclass(slots=True)
class Visits:
    """When connections with an address began, and what would be decided of the next one now."""

    address: str
    decision: Decision | None = None
    begun_at_s: deque[float] = field(default_factory=lambda: deque(maxlen=_COUNTED))

    def since(self, at_s: float) -> int:
        """Return how many began since an instant that is later each time."""
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


class DestinationTrials:
    """The trials of destinations, one at a time.

    The next connection with a destination goes over a network to show what it does;
    `cedos.selector.probing.trial` says when that is worth it.

    Args:
        connected: whether a connection with an address and port lives that began before an instant.
    """

    def __init__(
        self,
        decider: Decider,
        connected: Callable[[str, int | None, float], bool],
        outbox: Outbox,
    ) -> None:
        self._decider = decider
        self._connected = connected
        self._outbox = outbox
        self._trials = Trials()
        self._running: _RunningTrial | None = None

    def networks_changed(self, networks: Sequence[Network]) -> None:
        self._trials.networks_changed(networks)

    def network_of(self, place: Place) -> str | None:
        """Return where connections with a place go for a trial; None: where they go anyway."""
        running = self._running
        return running.network if running is not None and running.place == place else None

    def on_connection(self, place: Place, network: str | None, now_s: float) -> Decision | None:
        """Return the trial's decision if this new connection is the trial; None otherwise."""
        running = self._running
        if running is None or (running.place, running.network) != (place, network):
            return None
        if not running.taken:  # (those that begin before the rule has ended go there, too)
            running.taken = True
            size_bytes = running.decision.transfer.size.median_bytes
            self._trials.on_connection(running.network, size_bytes, now_s)
            numbered = replace(running.decision, number=self._decider.number)
            running.decision = self._decider.record(numbered)
            self._outbox.wake()
        return running.decision

    def reconsider(self, places: Mapping[Place, Visits], context: Context) -> None:
        """End the trial that is over, and begins one where it is worth it."""
        running, now_s = self._running, context.at_s
        if running is not None and not running.taken:
            if now_s < running.until_s and not in_doubt(context, running.network):
                return
            self._trials.on_miss(running.network, now_s)
        self._running = None
        recurring = [
            Recurring(place, visits.decision, begun, partial(self._barred, visits, place[1], now_s))
            for place, visits in places.items()
            if visits.decision is not None and (begun := visits.since(now_s - OF_LATE_S))
        ]
        decider = self._decider
        found = self._trials.due(recurring, context, decider.usable, decider.objective)
        if found is None:
            return
        name, tried = found.network.name, found.of
        if not found.answered:
            self._outbox.give(AskNetwork(name))
            return
        decision = replace(
            tried.decision,
            choice=Strategy(StrategyKind.SINGLE, (name,)),
            reason=sentences(found.why, tried.decision.reason),
        )
        self._running = _RunningTrial(tried.destination, name, decision, now_s + _TRIED_S)

    def _barred(self, visits: Visits, port: int | None, now_s: float, network: Network) -> bool:
        """Return whether connections cannot go there, are kept, or are too new to tell."""
        before_s = now_s - _KEPT_S
        return (
            not network.carries(ip_address(visits.address).version)
            or visits.begun_at_s[0] > before_s
            or self._connected(visits.address, port, before_s)
        )


_MOST = 64
# A destination keeps its own rule for this time after its last connection. At most `_MOST`
# destinations have one.
_REMEMBERED_S = 600.0


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
        outbox: Outbox,
        decider: Decider,
        default: DefaultNetwork,
        ruled: Callable[[Address, int | None], bool],
        trials: DestinationTrials,
    ) -> None:
        self._ruled = ruled
        self._outbox = outbox
        self._decider = decider
        self._default = default
        self._sizes: dict[Place, Mapping[Direction, SizeEstimate]] = {}
        self._trials = trials
        self._known: OrderedDict[Place, _SteeredDestination] = OrderedDict()

    def networks_changed(self, networks: Sequence[Network]) -> None:
        """Take all networks; the next `reconsider` uses them."""
        self._trials.networks_changed(networks)

    def on_connection(self, key: FlowKey, network: str | None, now_s: float) -> Decision | None:
        """Note a connection to a destination, which may be worth a rule of its own from now on.

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
        tried = self._trials.on_connection(place, network, now_s)
        return tried or known.decision or self._default.decision_of(key.remote.version)

    def reconsider(self, context: Context) -> None:
        """Decide on all of them again, and forget those of long ago."""
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
                self._sizes.pop(place, None)
                self._rule(place, known, None)
                continue
            if place in ruled:
                self._rule(place, known, None)
                continue
            transfer = known.hinted or self._expected(known.visits, place[1])
            if transfer is not None:
                known.decision, seen = self._decider.renewed(
                    transfer, context, known.decision, version=ip_network(place[0]).version
                )
                if known.visits is not None:
                    known.visits.decision = seen
            choice = known.decision.choice if known.decision else None
            usual = choice.networks[0] if choice and choice.networks else None
            self._rule(place, known, self._trials.network_of(place) or usual)

    def on_hint(self, place: Place, transfer: Transfer, until_s: float, context: Context) -> None:
        """Take what a program will transfer with a destination, in place of what history says."""
        known = self._last(place)
        known.hinted, known.until_s = transfer, until_s
        self.reconsider(context)

    def on_hint_ended(self, place: Place, context: Context) -> None:
        """Treat a destination like all others again."""
        known = self._known.pop(place, None)
        if known is not None:
            self._rule(place, known, None)
            self.reconsider(context)

    def network_of(self, destination: str, port: int | None) -> str | None:
        """Return the network of transfers with a destination; None where none is up."""
        prefix = str(ip_network(destination, strict=False))
        version = ip_network(prefix).version
        known = self._known.get((prefix, port))
        decision = (known and known.decision) or self._default.decision_of(version)
        return decision.choice.networks[0] if decision and decision.choice.networks else None

    def on_sizes(self, place: Place, sizes: Mapping[Direction, SizeEstimate]) -> None:
        """Take how large transfers with a destination have been, by direction."""
        if place in self._known:
            self._sizes[place] = sizes

    def _last(self, place: Place) -> _SteeredDestination:
        """Return the destination, moved to the end of the line; made where it is new."""
        known = self._known.pop(place, None) or _SteeredDestination()
        self._known[place] = known
        return known

    def _rule(self, place: Place, known: _SteeredDestination, wanted: str | None) -> None:
        """Add a destination's rule if it differs from the default, else remove it."""
        if self._default.is_led_to(wanted, ip_network(place[0]).version):
            wanted = None
        if wanted != known.rule:
            known.rule = wanted
            self._outbox.give(SetDestinations({place: wanted}))

    def on_failure(self, places: Collection[Place]) -> None:
        """Take it that destinations have no rule: the next decision adds it again."""
        for place in places:
            if (known := self._known.get(place)) is not None:
                known.rule = None

    def _expected(self, visits: Visits | None, port: int | None) -> Transfer | None:
        """Return what transfers with a destination have been like; None where too little is known."""
        if visits is None or port is None:
            return None
        address = visits.address
        known = self._sizes.get((str(ip_network(address)), port), {})
        if not known:
            return None
        direction = max(known, key=lambda way: known[way].median_bytes)
        return Transfer(known[direction], direction, server_name=f"{address}:{port}")

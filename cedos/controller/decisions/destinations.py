"""Destinations whose transfers are known to be unlike others: their connections may go another way."""

import math
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from ipaddress import ip_address, ip_network

from cedos.controller.commands import AskNetwork, Place, SetDefault, SetDestinations, place_of
from cedos.controller.decisions.decider import Decider
from cedos.controller.outbox import LedConnections, Outbox
from cedos.model import (
    LAST_RULED_PORT,
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
from cedos.selector.decision.liveness import dead_networks
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
        decision = self._decider.consider(self._decider.unknown(), context, self.decision)
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
            found[version], _ = self._decider.renew(transfer, context, before, version=version)
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

    def count_since(self, at_s: float) -> int:
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

    def reconsider(self, places: Iterable[tuple[Place, Visits]], context: Context) -> None:
        """End the trial that is over, and begin one where it is worth it."""
        running, now_s = self._running, context.at_s
        if running is not None and not running.taken:
            if now_s < running.until_s and not in_doubt(context, running.network):
                return
            self._trials.on_miss(running.network, now_s)
        self._running = None
        since_s = now_s - OF_LATE_S
        recurring = (
            Recurring(
                place, visits.decision, begun, partial(self._is_barred, visits, place[1], now_s)
            )
            for place, visits in places
            if visits.decision is not None and (begun := visits.count_since(since_s))
        )
        decider = self._decider
        found = self._trials.due(recurring, context, decider.usable, decider.objective)
        if found is None:
            return
        name, tried = found.network.name, found.of
        if not found.answered:
            self._outbox.give(AskNetwork(name))
            return
        usual = decider.consider(
            *(tried.decision.transfer, context, tried.decision),
            version=ip_network(tried.destination[0]).version,
        )
        decision = replace(
            usual,
            choice=Strategy(StrategyKind.SINGLE, (name,)),
            reason=sentences(found.why, usual.reason),
        )
        self._running = _RunningTrial(tried.destination, name, decision, now_s + _TRIED_S)

    def _is_barred(self, visits: Visits, port: int | None, now_s: float, network: Network) -> bool:
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
# The time between two destinations' turns. One that has no verdict need not wait.
_TURN_S = 0.1


@dataclass(slots=True)
class _SteeredDestination:
    """A destination of late or of a hint: until when it counts, and what was decided.

    `visits`: None where it is only of a hint. `decided_at_s`: when the last verdict was.
    """

    address: Address
    visits: Visits | None = None
    until_s: float = 0.0
    hinted: Transfer | None = None
    decision: Decision | None = None
    decided_at_s: float = -math.inf


class SteeredDestinations:
    """Destinations that may have rules of their own.

    `reconsider` does at once what needs no prediction: a destination follows the default where its own
    network has died. Then each has its turn, the oldest verdict first, one a timer.

    `ruled`: whether a destination is under a rule of the user's: then nothing else leads it.
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
        self.led: LedConnections[Place] = LedConnections()
        self._living: set[str] = set()  # the networks that carried data when it last looked
        # Those whose turn is to come, and when the first one's is.
        self._turns: deque[Place] = deque()
        self._turn_at_s = -math.inf

    def networks_changed(self, networks: Sequence[Network]) -> None:
        """Take all networks; the next `reconsider` uses them."""
        self._trials.networks_changed(networks)

    def on_connection(self, key: FlowKey, network: str | None, now_s: float) -> Decision | None:
        """Note a connection to a destination, which may be worth a rule of its own from now on.

        `network`: over which; None: that is not known (a VPN carries it), or it is told of again.

        Returns:
            The decision by which the connection went where it goes.
        """
        if key.remote_port > LAST_RULED_PORT:
            return self._default.decision_of(key.remote.version)
        place = place_of(key.remote, key.remote_port)
        known = self._make_last(place)
        known.until_s = max(known.until_s, now_s + _REMEMBERED_S)
        if known.visits is None:
            known.visits = Visits(str(key.remote))
        if network is not None:
            known.visits.begun_at_s.append(now_s)
        tried = self._trials.on_connection(place, network, now_s)
        return tried or known.decision or self._default.decision_of(key.remote.version)

    def reconsider(self, context: Context) -> None:
        """Forget those of long ago, leave networks that carry nothing, and give each one a turn."""
        self._turns.clear()
        if self._default.decision is None:
            self._lead(self.led.withdrawn)
            return
        for place, known in list(self._known.items()):
            if context.at_s > known.until_s or len(self._known) > _MOST:
                del self._known[place]
                self._sizes.pop(place, None)
        free = {
            place: each
            for place, each in self._known.items()
            if not self._ruled(each.address, place[1])
        }
        self._leave(free.values(), context)
        visited = ((p, each.visits) for p, each in free.items() if each.visits is not None)
        self._trials.reconsider(visited, context)
        self._lead(self.led.withdrawn | {place: self._network_of(place) for place in free})
        self._turns.extend(sorted(free, key=lambda place: free[place].decided_at_s))
        self._skip()
        self._turn_at_s = max(self._turn_at_s, context.at_s)

    def next_timer_s(self) -> float | None:
        """Return when the next destination has its turn."""
        return self._turn_at_s if self._turns else None

    def on_timer(self, context: Context, now_s: float) -> None:
        """Decide on the destination whose turn it is."""
        self._decide(self._turns.popleft(), context)
        self._skip()
        # The next one may wait, unless it has no verdict.
        waits = self._turns and self._known[self._turns[0]].decision is not None
        self._turn_at_s = now_s + (_TURN_S if waits else 0.0)

    def _skip(self) -> None:
        """Skip the destinations of which too little is known to decide."""
        while self._turns and self._transfer(self._turns[0]) is None:
            self._turns.popleft()

    def _leave(self, known: Iterable[_SteeredDestination], context: Context) -> None:
        """Forget the verdicts that lead over a network which is down, or dead while another one lives.

        Once a network lives again, forget all: they were chosen without it.
        """
        dead = dead_networks(context, self._decider.usable)
        up = {each.name for each in self._decider.usable if each.up}
        before, self._living = self._living, up - dead.keys()
        back, there = self._living - before, self._living or up
        for each in known:
            if each.decision is not None and (
                back or not there.issuperset(each.decision.choice.networks)
            ):
                each.decision, each.decided_at_s = None, -math.inf
                if each.visits is not None:
                    each.visits.decision = None

    def _decide(self, place: Place, context: Context) -> None:
        """Decide on a destination again, and lead it there."""
        known, transfer = self._known.get(place), self._transfer(place)
        # A hint may end, and its destination with it, before the turn.
        if known is None or transfer is None or self._ruled(known.address, place[1]):
            return
        known.decision, seen = self._decider.renew(
            transfer, context, known.decision, version=known.address.version
        )
        known.decided_at_s = context.at_s
        if known.visits is not None:
            known.visits.decision = seen
        self._lead({place: self._network_of(place)})

    def on_hint(self, place: Place, transfer: Transfer, until_s: float, context: Context) -> None:
        """Take what a program will transfer with a destination, in place of what history says."""
        known = self._make_last(place)
        known.hinted, known.until_s = transfer, until_s
        if self._default.decision is not None:
            self._decide(place, context)

    def on_hint_ended(self, place: Place) -> None:
        """Treat a destination like all others again."""
        self._known.pop(place, None)
        self._sizes.pop(place, None)
        self._lead({place: None})

    def network_of(self, destination: str, port: int | None) -> str | None:
        """Return the network of transfers with a destination; None where none is up."""
        prefix = str(ip_network(destination, strict=False))
        version = ip_network(prefix).version
        known = self._known.get((prefix, port))
        decision = (known and known.decision) or self._default.decision_of(version)
        return decision.choice.networks[0] if decision and decision.choice.networks else None

    def has_sizes(self, key: FlowKey) -> bool:
        """Return whether the sizes of transfers with a flow's other end are known."""
        return place_of(key.remote, key.remote_port) in self._sizes

    def on_sizes(self, place: Place, sizes: Mapping[Direction, SizeEstimate]) -> None:
        """Take how large transfers with a destination have been, by direction."""
        if place in self._known:
            self._sizes[place] = sizes

    def _make_last(self, place: Place) -> _SteeredDestination:
        """Return the destination, moved to the end of the line; made where it is new."""
        known = self._known.pop(place, None)
        if known is None:
            known = _SteeredDestination(ip_network(place[0]).network_address)
        self._known[place] = known
        return known

    def _network_of(self, place: Place) -> str | None:
        """Return where a destination is to be led: by its trial, or else by its verdict.

        None: it needs no rule, as the default leads there.
        """
        known = self._known[place]
        decision = known.decision
        usual = next(iter(decision.choice.networks), None) if decision is not None else None
        wanted = self._trials.network_of(place) or usual
        return None if self._default.is_led_to(wanted, known.address.version) else wanted

    def _lead(self, wanted: Mapping[Place, str | None]) -> None:
        if news := self.led.change(wanted):
            self._outbox.give(SetDestinations(news))

    def _transfer(self, place: Place) -> Transfer | None:
        """Return what transfers with a destination are like; None where too little is known."""
        known, sizes = self._known.get(place), self._sizes.get(place)
        if known is None or known.hinted is not None:
            return None if known is None else known.hinted
        if known.visits is None or not sizes:
            return None
        direction = max(sizes, key=lambda way: sizes[way].median_bytes)
        name = f"{known.visits.address}:{place[1]}"
        return Transfer(sizes[direction], direction, server_name=name)

"""Unanswered look-ups are asked again over another network.

If a resolver leaves a question without an answer for 300 ms, or for three times as long as it usually
takes, while another network's resolver answers, it counts as silent until it answers in time again:
meanwhile its questions are asked there at once.

If the other resolver says that a name does not exist, that is not believed: the name may exist in the
silent network alone. But no program is left waiting: it receives SERVFAIL, which is cached for seconds
at most.

A look-up waits for its own resolver, then for the other ones, which are asked one after the other,
and after a refusal for the end of its patience. `due_s` is the end of each wait. The caller keeps the
messages of DNS: a look-up is known by its flow and number, an answer by the number of its attempt.
"""

from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from cedos.controller.commands import AnswerLookup, AskNetwork, AskResolver, Tell
from cedos.controller.decisions.decider import Decider
from cedos.controller.events import LookupAnswered, LookupAsked, ResolverReplied, Witness
from cedos.controller.networks.observation import NetworkObservation
from cedos.controller.outbox import Outbox
from cedos.limits import TokenBucket
from cedos.model import Address, FlowKey, Network, NetworkLife

PATIENCE_S, USUAL_TIMES, _MOST_PATIENCE_S = 0.3, 3.0, 1.0
_MOST_LOOKUPS, _MOST_REPEATED, _MOST_RESOLVERS = 256, 64, 64
# The rate at which questions are asked again: a program that asks without end costs no more.
_PER_S, _BURST = 20.0, 64
# The lifetime of a question. The program has given up by then, or asked again.
_KEPT_S: Final = 6.0
# If a network has not answered within this time, the next network is asked too.
_APART_S: Final = 0.3
# The time that a resolver has to answer if only refusals of others were received.
_REFUSED_S: Final = 2.0
_WEIGHT: Final = 0.2
# A resolver that fails for this many unrelated names in a row has no connection itself.
_FAILING: Final = 3

_Number = tuple[FlowKey, int]
# Returns whether the user's rules allow questions to a resolver over a network.
MayAsk = Callable[[Network, Address], bool]


@dataclass(slots=True)
class _Lookup:
    """A program's question; `network` is where it was sent.

    Attributes:
        first_at_s: when it was asked for the first time; `at_s`: for the last time.
        due_s: when to go on; None: not before the next event.
        repeated: it is asked elsewhere: `others` are still to be asked, `asked` have not answered yet.
        refusal: the attempt that was refused last, and its network.
        over: the program has been answered.
    """

    name: str
    public: bool
    network: str
    at_s: float
    first_at_s: float
    due_s: float | None
    repeated: bool = False
    others: list[tuple[str, Address]] = field(default_factory=list)
    asked: dict[int, str] = field(default_factory=dict)
    refusal: tuple[int, str] | None = None
    over: bool = False

    @property
    def pending(self) -> bool:
        return bool(self.others or self.asked)


@dataclass(slots=True)
class _Resolver:
    """A resolver that programs ask over a network.

    Attributes:
        usual_s: how long it usually takes.
        silent: the network over which its questions are answered; None: its own.
        failed: the domains for which it has failed since it last knew an answer.
    """

    usual_s: float | None = None
    silent: str | None = None
    failed: set[str] = field(default_factory=set)

    @property
    def patience_s(self) -> float:
        return min(max(PATIENCE_S, USUAL_TIMES * (self.usual_s or 0.0)), _MOST_PATIENCE_S)


class Lookups:
    """The look-ups of all programs, and the resolvers that they ask."""

    def __init__(
        self,
        outbox: Outbox,
        decider: Decider,
        networks: NetworkObservation,
        may_ask: MayAsk,
    ) -> None:
        self._outbox, self._may_ask = outbox, may_ask
        self._decider = decider
        self._known = networks
        self._lookups: OrderedDict[_Number, _Lookup] = OrderedDict()
        self._found: OrderedDict[tuple[Address, Address, str], float] = OrderedDict()
        self._resolvers: OrderedDict[tuple[str, Address], _Resolver] = OrderedDict()
        self._bucket: TokenBucket | None = None
        self._attempts = 0

    @property
    def problems(self) -> list[str]:
        """Return which resolvers of networks do not answer, or fail."""
        there = {network.name: network for network in self._decider.usable}
        own = {
            name: resolver
            for (name, address), resolver in self._resolvers.items()
            # Another resolver that one program asks is that program's own matter.
            if name in there and address in (*there[name].resolvers, *there[name].gateways)
        }
        silent = [
            f"the DNS resolver of {name} does not answer. Look-ups are answered over {each.silent}"
            for name, each in own.items()
            if each.silent in there
        ]
        return silent + [
            f"the DNS resolver of {name} fails. Programs that ask no other one find no names"
            for name, each in own.items()
            if each.silent is None and len(each.failed) >= _FAILING
        ]

    def next_timer_s(self) -> float | None:
        """Return when `on_timer` is to be called; None: not before the next event."""
        if not self._lookups:
            return None
        due = (each.due_s for each in self._lookups.values() if each.due_s is not None)
        return min(due, default=None)

    # -- events -------------------------------------------------------------------------------

    def on_asked(self, event: LookupAsked, now_s: float) -> None:
        """Take a program's question."""
        usable = self._decider.usable
        network = next((each.name for each in usable if each.interface == event.interface), None)
        if network is None:
            return
        self._forget(now_s)
        resolver = self._resolver(network, event.key.remote)
        number = (event.key, event.number)
        first_at_s, again = now_s, False
        # A program's repetition of its question waits for the same answer.
        before = self._lookups.pop(number, None)
        if before is not None and before.name == event.name and not before.over:
            first_at_s, again = before.first_at_s, True
        at_once = resolver.silent is not None or again
        due_s = now_s if at_once else now_s + resolver.patience_s
        self._lookups[number] = _Lookup(event.name, event.public, network, now_s, first_at_s, due_s)

    def on_answered(self, event: LookupAnswered, now_s: float) -> None:
        """Take the answer of the resolver that the program has asked."""
        lookup = self._lookups.pop((event.key, event.number), None)
        if lookup is None:
            return
        name, address = lookup.network, event.key.remote
        if not self._lies(name, now_s):
            self._known.on_heard(name, address, now_s, Witness.NAME)
        took_s = now_s - lookup.at_s
        resolver = self._resolver(name, address)
        self._count_failure(resolver, lookup, failed=event.failed)
        usual_s = took_s if resolver.usual_s is None else resolver.usual_s
        resolver.usual_s = usual_s + _WEIGHT * (took_s - usual_s)
        if resolver.silent is not None and took_s <= resolver.patience_s:
            resolver.silent = None
            self._outbox.give(Tell("a resolver answers again", {"network": name}))

    def on_reply(self, event: ResolverReplied, now_s: float) -> None:
        """Take the answer of another network's resolver, or that there was none."""
        number = (event.key, event.number)
        lookup = self._lookups.get(number)
        # The program's own resolver was quicker, or has been asked again.
        if lookup is None or event.attempt not in lookup.asked:
            return
        other = lookup.asked.pop(event.attempt)
        if event.refused is False:
            self._answer(number, lookup, other, event.attempt, now_s, refused=False)
            return
        if event.refused:
            lookup.refusal = event.attempt, other
            if self._is_there(event.key, lookup, now_s):
                self._answer(number, lookup, other, event.attempt, now_s, refused=True)
                return
        if lookup.others:
            self._ask_next(number, lookup, now_s)
        elif not lookup.asked and lookup.refusal is not None:
            own = self._resolver(lookup.network, event.key.remote)
            patience_s = own.patience_s if own.silent is not None else _REFUSED_S
            lookup.due_s = max(lookup.first_at_s + patience_s, now_s)

    def on_timer(self, now_s: float) -> None:
        """Go on with the look-ups that have waited long enough."""
        due = [
            (number, each)
            for number, each in self._lookups.items()
            if each.due_s is not None and each.due_s <= now_s
        ]
        for number, lookup in due:
            lookup.due_s = None
            if lookup.others:
                self._ask_next(number, lookup, now_s)
            elif not lookup.repeated:
                self._repeat(number, lookup, now_s)
            elif lookup.refusal is not None and not lookup.over:
                self._answer(number, lookup, lookup.refusal[1], None, now_s, refused=True)

    # -- within -------------------------------------------------------------------------------

    def _repeat(self, number: _Number, lookup: _Lookup, now_s: float) -> None:
        """Ask over the other networks, unless too much is asked already."""
        asking = sum(each.pending for each in self._lookups.values())
        if lookup.over or asking >= _MOST_REPEATED:
            return
        asked = number[0].remote
        if self._resolver(lookup.network, asked).silent is None:  # else it is no news
            self._outbox.give(AskNetwork(lookup.network))
        if self._bucket is None:
            self._bucket = TokenBucket(_PER_S, _BURST, now_s)
        if not self._bucket.take(now_s):
            return
        lookup.repeated = True
        lookup.others = [
            (network.name, resolver)
            for network in sorted(self._decider.usable, key=lambda each: each.metered)
            if network.name != lookup.network and network.up and not self._lies(network.name, now_s)
            for resolver in self._resolvers_of(network, asked, public=lookup.public)
        ]
        if lookup.others:
            self._ask_next(number, lookup, now_s)

    def _resolvers_of(self, network: Network, asked: Address, *, public: bool) -> Sequence[Address]:
        """Return the resolvers to ask over a network: a public one that was asked, and its own.

        Without a known resolver the gateway of a router or phone is one.
        """
        first = own_resolver(network, self._may_ask)
        own = () if first is None else (first,)
        elsewhere = asked not in own and public and network.reaches(asked)
        return (asked, *own) if elsewhere and self._may_ask(network, asked) else own

    def _ask_next(self, number: _Number, lookup: _Lookup, now_s: float) -> None:
        network, resolver = lookup.others.pop(0)
        self._attempts += 1
        lookup.asked[self._attempts] = network
        lookup.due_s = now_s + _APART_S if lookup.others else None
        self._outbox.give(AskResolver(*number, self._attempts, network, resolver))

    def _answer(
        self,
        number: _Number,
        lookup: _Lookup,
        other: str,
        attempt: int | None,
        now_s: float,
        *,
        refused: bool,
    ) -> None:
        """Answer the program over another network's resolver; attempt None: with SERVFAIL."""
        # What its own resolver says later still shows that this lives.
        lookup.over, lookup.due_s = True, None
        lookup.others.clear()
        lookup.asked.clear()
        self._outbox.give(AnswerLookup(*number, attempt))
        if refused:  # the name may not exist at all
            return
        resolver = self._resolver(lookup.network, number[0].remote)
        if resolver.silent is None:
            about = {"network": lookup.network, "asked": other}
            self._outbox.give(Tell("a resolver does not answer", about))
        resolver.silent = other
        self._note_found(_place(number[0], lookup.name), other, now_s)

    def _note_found(self, place: tuple[Address, Address, str], other: str, now_s: float) -> None:
        """Hand over refusals of a name that was found: it may lack one kind of record.

        The port does not matter: systemd-resolved and browsers ask each question from its own.
        """
        self._found[place] = now_s
        self._found.move_to_end(place)
        while len(self._found) > _MOST_LOOKUPS:
            self._found.popitem(last=False)
        for number, each in list(self._lookups.items()):
            refused = each.refusal is not None and not each.over
            if refused and _place(number[0], each.name) == place and each.refusal is not None:
                self._answer(number, each, other, each.refusal[0], now_s, refused=True)

    def _is_there(self, key: FlowKey, lookup: _Lookup, now_s: float) -> bool:
        """Return whether its name was found elsewhere a moment ago, and its resolver is still silent."""
        found_at_s = self._found.get(_place(key, lookup.name))
        if found_at_s is None or now_s - found_at_s > _KEPT_S:
            return False
        return self._resolver(lookup.network, key.remote).silent is not None

    def _lies(self, network: str, now_s: float) -> bool:
        """Return whether a captive portal is in a network's way: it answers whatever it likes."""
        return self._known.keeper.verdict(network, now_s).life is NetworkLife.CAPTIVE

    def _resolver(self, network: str, address: Address) -> _Resolver:
        found = self._resolvers.setdefault((network, address), _Resolver())
        self._resolvers.move_to_end((network, address))
        while len(self._resolvers) > _MOST_RESOLVERS:
            self._resolvers.popitem(last=False)
        return found

    def _count_failure(self, resolver: _Resolver, lookup: _Lookup, *, failed: bool) -> None:
        """Count failures: programs believe a failing resolver, so at least users are told."""
        if not failed:
            resolver.failed.clear()
            return
        if len(resolver.failed) >= _FAILING:
            return
        resolver.failed.add(".".join(lookup.name.split(".")[-2:]))
        if len(resolver.failed) >= _FAILING:
            about = {"network": lookup.network}
            self._outbox.give(Tell("a resolver fails for all names", about))
            self._outbox.give(AskNetwork(lookup.network))

    def _forget(self, now_s: float) -> None:
        while self._lookups:
            oldest = next(iter(self._lookups.values()))
            if len(self._lookups) < _MOST_LOOKUPS and now_s - oldest.at_s < _KEPT_S:
                return
            self._lookups.popitem(last=False)


def _place(key: FlowKey, name: str) -> tuple[Address, Address, str]:
    """Return a name as one resolver is asked for it from one network."""
    return key.local, key.remote, name


def own_resolver(network: Network, may_ask: MayAsk) -> Address | None:
    """Return the resolver of a network, or its gateway; None: it reaches none that it may ask."""
    reached = filter(network.reaches, (*network.resolvers, *network.gateways))
    return next((each for each in reached if may_ask(network, each)), None)

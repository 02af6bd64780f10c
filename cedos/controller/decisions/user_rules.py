"""Rules of a user's own (`cedos rule`): which there are, and which one a connection falls under."""

import re
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from ipaddress import IPv4Network, IPv6Network, ip_address, ip_network
from itertools import chain, islice
from math import inf
from typing import Final

import msgspec

from cedos.controller.commands import (
    NOWHERE,
    ForbidPlaces,
    KeepRules,
    MoveConnection,
    Place,
    ReleasePath,
    SetRuled,
    place_of,
)
from cedos.controller.decisions.decider import Decider
from cedos.controller.decisions.named_addresses import (
    MOST_OF_A_NAME,
    NamedAddresses,
    is_below,
    youngest,
)
from cedos.controller.events import DNAME, DnsReply
from cedos.controller.flows.living_flow import LivingFlow
from cedos.controller.outbox import LedConnections, Outbox
from cedos.controller.rule import MOST_ADDRESSES, RuleRequest
from cedos.errors import ConfigError
from cedos.model import (
    LAST_RULED_PORT,
    Address,
    Context,
    Decision,
    FlowKey,
    Network,
    NetworkKind,
    Strategy,
    StrategyKind,
    address,
)
from cedos.selector.decision.liveness import is_captive
from cedos.selector.decision.reason import sentences

MOST: Final = 64
_DNS: Final = 53
# The most addresses of all rules for names. Each is three rules of the kernel, in IPv6 up to six, and the
# kernel goes through all of them for each that comes or goes.
MOST_OF_ALL: Final = 1024
# The pause after a change that look-ups have made, in times of what it took (this at most).
_PAUSES, _LONGEST_S = 3.0, 0.2
# The same after news that change no rule of the kernel.
_LEAST_APART_S: Final = 0.02
# The most names that a rule's names are known to be aliases of; each of its names has `MOST_OF_A_NAME`.
# The latest stay, and those of the ruled name itself.
MOST_ALIASES: Final = 256
# In a kept file they stand beside the rules: an earlier program leaves them out.
ALIASES: Final = "aliases"


class UserRules:
    """Rules by number, and the addresses to which the names of rules lead.

    Args:
        kept: what was kept before, as `state` gave it; what cannot be one is left out.
    """

    def __init__(self, outbox: Outbox, kept: object = None) -> None:
        self._outbox = outbox
        self._rules: dict[int, RuleRequest] = {}
        self._names = NamedAddresses()
        # What each name of a rule is an alias of: no answer about another name takes it away.
        self._aliases: dict[int, OrderedDict[str, tuple[str, ...]]] = {}
        # All that these lead to, by rule.
        self._led: dict[int, frozenset[str]] = {}
        # The rules of names by address, and those of prefixes.
        self._by_address: dict[str, list[int]] = {}
        self._prefixes: list[tuple[IPv4Network | IPv6Network, int]] = []
        # As `by_place` returns it, until a rule changes: there may be thousands.
        self._by_place: dict[Place, tuple[tuple[int, ...], int]] | None = None
        # Whether addresses were learnt that have not been kept.
        self._learnt = False
        for number, rule in kept.items() if isinstance(kept, dict) else ():
            with suppress(ValueError, msgspec.ValidationError):
                if int(number) > 0 and len(self._rules) < MOST:  # (none of a portal's)
                    self._rules[int(number)] = msgspec.convert(rule, RuleRequest)
        every = kept.get(ALIASES) if isinstance(kept, dict) else None
        aliases = every if isinstance(every, dict) else {}
        for number, rule in self._rules.items():
            with suppress(msgspec.ValidationError):
                known = msgspec.convert(aliases.get(str(number)), dict[str, tuple[str, ...]])
                for name, led in known.items():
                    if is_below(name, rule.host):
                        self._put_aliases(number, name, led)
        self._index()

    @property
    def rules(self) -> Mapping[int, RuleRequest]:
        return self._rules

    @property
    def have_names(self) -> bool:
        return any(rule.prefix is None for rule in self._rules.values())

    def number_for(self, rule: RuleRequest) -> int:
        """Return the number of a new rule: that of an older one for the same host and port, if any.

        Raises:
            ConfigError: there are too many, or the kernel knows no rule for the port.
        """
        if rule.port is not None and rule.port > LAST_RULED_PORT:
            raise ConfigError(
                f"the kernel takes no rule for port {rule.port}; 1 to {LAST_RULED_PORT} would be right"
            )
        own = {number: one for number, one in self._rules.items() if number > 0}
        same = [n for n, one in own.items() if (one.host, one.port) == (rule.host, rule.port)]
        if not same and len(own) >= MOST:
            raise ConfigError(f"there are {MOST} rules already: remove one first")
        return same[0] if same else max(own, default=0) + 1

    def set(self, number: int, rule: RuleRequest) -> None:
        """Add a rule.

        It covers what its name is known to lead to: by earlier look-ups of any program, too.
        """
        before = self._rules[number].addresses if number in self._rules else ()
        self._rules[number] = rule
        if rule.prefix is None:
            own = self._names.names_below(rule.host)
            led = [address for name in own for address in self._lead(number, (name,))]
            known = (*led, *chain.from_iterable(map(self._names.of, own)))
            self._learn(number, (*known, *before, *rule.addresses))
        self._on_change()

    def remove(self, number: int) -> None:
        self._aliases.pop(number, None)
        self._led.pop(number, None)
        if self._rules.pop(number, None) is not None:
            self._on_change()

    def portals(self, hosts: Iterable[tuple[str, Sequence[Address]]]) -> bool:
        """Lead hosts on the way to log-in pages over their networks; return whether they are others.

        These rules have numbers below 0: the user's own count before them, and they are not kept. They
        are for addresses, as any network may claim that a name or a domain is on the way.

        Args:
            hosts: a network, and the addresses there of a host.
        """
        wanted = {str(address(each.packed)): network for network, found in hosts for each in found}
        own = {number: rule for number, rule in self._rules.items() if number > 0}
        others = {
            -number: RuleRequest(host=host, only=(network,))
            for number, (host, network) in enumerate(islice(wanted.items(), MOST), 1)
        }
        before, self._rules = self._rules, {**own, **others}
        if before == self._rules:
            return False
        self._index()
        return True

    def on_answer(self, reply: DnsReply) -> bool:
        """Take the answer of a resolver of this host; return whether it is about a rule's name."""
        self._names.on_answer(reply)
        before, learnt = self._led.copy(), []
        for each in reply.names:
            for number in list(self._rules_for((each.name,))):
                known = self._lead(number, (each.name, *each.aliases))
                learnt.append(self._learn(number, map(str, each.addresses), known))
        if any(learnt) or self._led != before:
            self._learnt = True
            self._index()
        return bool(learnt)

    def rules_about(self, reply: DnsReply) -> frozenset[int]:
        """Return the rules whose names an answer is about; it is not believed by that."""
        return frozenset(self._rules_for([each.name for each in reply.names]))

    def concerned_by(self, reply: DnsReply) -> bool:
        """Return whether an answer is about a rule's name, or a DNAME above one of these."""
        return bool(self.rules_about(reply)) or (
            reply.kind == DNAME
            and any(
                not reply.name or is_below(name, reply.name)
                for number, rule in self._rules.items()
                if rule.prefix is None
                for name in (rule.host, *self._led.get(number, ()))
            )
        )

    def covers(self, reply: DnsReply) -> bool:
        """Return whether each rule that an answer is about has its addresses, and knows its aliases.

        A rule for another name may allow what these forbid.
        """
        return all(
            all(self._leads(name, number) for name in each.aliases)
            and all(number in self.at(address) for address in each.addresses)
            for each in reply.names
            for number in self._rules_for((each.name,))
        )

    def _rules_for(self, names: Collection[str]) -> Iterator[int]:
        """Yield the rules for names that one of these is, or is known to belong to."""
        for number, rule in self._rules.items():
            if rule.prefix is None and any(self._leads(name, number) for name in names):
                yield number

    def _leads(self, name: str, number: int) -> bool:
        host = self._rules[number].host
        return is_below(name, host) or name in self._led.get(number, ())

    def _lead(self, number: int, names: Sequence[str]) -> list[str]:
        """Note what the first of these names, one of a rule, leads to: the others, and what these do.

        Return the addresses of those that are new.
        """
        first, before = names[0], self._led.get(number, frozenset())
        news = self._names.names_led_to(names, MOST_OF_A_NAME)
        sources = [first]
        if not is_below(first, self._rules[number].host):
            known = self._aliases.get(number, OrderedDict())
            sources = [name for name, led in known.items() if first in led]
        for source in sources:
            self._put_aliases(number, source, news[::-1])
        new = [name for name in news if name not in before and self._leads(name, number)]
        return [*chain.from_iterable(map(self._names.of, new))]

    def _put_aliases(self, number: int, source: str, news: Iterable[str]) -> None:
        """Put names behind one of a rule's; of too many go those of the name that was told of first."""
        host = self._rules[number].host
        if not (others := [name for name in news if not is_below(name, host)]):
            return
        known = self._aliases.setdefault(number, OrderedDict())
        known[source] = youngest(known.get(source, ()), others, MOST_OF_A_NAME)
        known.move_to_end(source)
        while sum(map(len, known.values())) > MOST_ALIASES:
            del known[next(name for name in known if name != host)]
        self._led[number] = frozenset(chain.from_iterable(known.values()))

    def hosts_read(self, hosts: Mapping[str, Sequence[Address]]) -> bool:
        """Take the names of the hosts file; return whether some of them are of rules."""
        self._names.hosts_read(hosts)
        learnt = [
            self._learn(number, map(str, addresses))
            for name, addresses in hosts.items()
            for number in list(self._rules_for((name,)))
        ]
        if any(learnt):
            self._learnt = True
            self._index()
        return bool(learnt)

    def _learn(self, number: int, news: Iterable[str], older: Iterable[str] = ()) -> bool:
        """Put addresses under a rule; return whether it has others by that.

        `older` are told anew of no name: where the rule is full, they push out none.
        """
        rule, most = self._rules[number], self._most
        # Others may have names below the host: half of the room is its own.
        own = tuple(self._names.of(rule.host))[-(most // 2) :]
        before = (*(each for each in older if each not in rule.addresses), *rule.addresses)
        known = youngest(before, news, most, own)
        self._rules[number] = now = msgspec.structs.replace(rule, addresses=known)
        return set(now.addresses) != set(rule.addresses)

    def find_by_name(
        self, name: str, port: int | None = None, *, any_port: bool = True
    ) -> int | None:
        """Return the number of the closest rule for a name; with `any_port` ports do not matter."""
        return max(
            (
                number
                for number, rule in self._rules.items()
                if rule.prefix is None
                and is_below(name, rule.host)
                and (any_port or rule.port in (None, port))
            ),
            key=self._rank,
            default=None,
        )

    def places(self) -> Iterator[tuple[Place, int]]:
        """Yield each place that a rule covers; of several rules for one the last applies."""
        for number in sorted(self._rules, key=self._rank):
            rule = self._rules[number]
            # The kernel takes the longest prefix: beside a user's shorter one a portal's is left out.
            if number < 0 and self.of(ip_address(rule.host), None) != number:
                continue
            prefixes = [rule.prefix] if rule.prefix is not None else map(ip_network, rule.addresses)
            for prefix in prefixes:
                yield (str(prefix), rule.port), number

    def by_place(self) -> Mapping[Place, tuple[tuple[int, ...], int]]:
        """Return by place the rules that hold there, and its IP version."""
        if self._by_place is None:
            self._by_place = {}
            for place, number in self.places():
                address = ip_network(place[0]).network_address
                named = self._rules[number].prefix is None
                numbers = self.holding(address, place[1]) if named else (number,)
                self._by_place[place] = numbers, address.version
        return self._by_place

    def of(self, address: Address, port: int | None, *, named: bool = True) -> int | None:
        """Return the number of a connection's rule; without `named` of those for prefixes alone.

        The user's own come before portals', a port's before others, then the longest prefix; for one
        address an address before a name, the closest name, and the rule that was added last.
        """
        numbers = [
            *(self.at(address) if named else ()),
            *(
                number
                for prefix, number in self._prefixes
                if address.version == prefix.version and address in prefix
            ),
        ]
        return max(
            (number for number in numbers if self._rules[number].port in (None, port)),
            key=self._rank,
            default=None,
        )

    def holding(
        self, address: Address, port: int | None, name: str | None = None
    ) -> tuple[int, ...]:
        """Return the rules that hold at once for a connection; `name`: that of its server, if known.

        Who has a name chooses its addresses. So where the names of several rules lead to one, each holds,
        but for those that a related name's rule replaces (`_rank`): one for a port, or a closer name.
        """
        found = {each for each in self.at(address) if self._rules[each].port in (None, port)}
        if name is not None and (own := self.find_by_name(name, port, any_port=False)) is not None:
            found.add(own)
        of_prefix = self.of(address, port, named=False)
        first = max(filter(None, (of_prefix, *found)), key=self._rank, default=None)
        if first is not None and first == of_prefix:
            return (first,)
        replaced = {two for one in found for two in found if self._replaces(one, two)}
        return tuple(sorted(found - replaced))

    def _replaces(self, one: int, other: int) -> bool:
        host, another = self._rules[one].host, self._rules[other].host
        related = is_below(host, another) or is_below(another, host)
        return related and self._rank(one) > self._rank(other)

    def applies(self, host: str, port: int | None) -> int | None:
        """Return the number of the rule for a host: an address or a name.

        A name's own rules count, and those of the addresses that are known of it.
        """
        with suppress(ValueError):
            return self.of(ip_address(host), port)
        found = {self.of(ip_address(each), port) for each in self._names.of(host)}
        found.add(self.find_by_name(host, port, any_port=False))
        return max(filter(None, found), key=self._rank, default=None)

    def rules_around(self, subnet: IPv4Network | IPv6Network) -> Collection[int]:
        """Return the rules for prefixes that contain a longer one: for each port the closest."""
        found = {}
        for prefix, number in sorted(self._prefixes, key=lambda each: each[0].prefixlen):
            length = prefix.prefixlen
            if length < subnet.prefixlen and subnet.supernet(new_prefix=length) == prefix:
                found[self._rules[number].port] = number
        return found.values()

    @property
    def by_address(self) -> Mapping[str, Sequence[int]]:
        """Return the rules of names by address: another table after each change."""
        return self._by_address

    def at(self, address: Address) -> Sequence[int]:
        """Return the rules whose names lead to an address."""
        return self._by_address.get(str(address), ())

    def _rank(self, number: int) -> tuple[bool, bool, float, bool, int, int]:
        rule = self._rules[number]
        prefix = rule.prefix
        length = 1.0 if prefix is None else prefix.prefixlen / prefix.max_prefixlen
        closest = prefix is not None, rule.host.count(".") if prefix is None else 0
        return number > 0, rule.port is not None, length, *closest, abs(number)

    def state(self) -> dict[str, object]:
        rules = {
            str(number): msgspec.to_builtins(rule)
            for number, rule in self._rules.items()
            if number > 0
        }
        aliases = {str(number): {**known} for number, known in self._aliases.items() if known}
        return {**rules, **({ALIASES: aliases} if aliases else {})}

    def keep(self) -> None:
        """Keep what was learnt since the last time."""
        if self._learnt:
            self._learnt = False
            self._outbox.give(KeepRules(self.state()))

    def _on_change(self) -> None:
        self._index()
        self._learnt = True
        self.keep()

    @property
    def _most(self) -> int:
        """Return how many addresses each rule for a name may have."""
        names = sum(rule.prefix is None for rule in self._rules.values())
        return min(MOST_ADDRESSES, MOST_OF_ALL // max(names, 1))

    def _index(self) -> None:
        most = self._most
        for number, rule in list(self._rules.items()):
            if len(rule.addresses) > most:
                self._learn(number, ())
        self._by_address, self._prefixes, self._by_place = {}, [], None
        for number, rule in self._rules.items():
            if (prefix := rule.prefix) is not None:
                self._prefixes.append((prefix, number))
            for each in rule.addresses if prefix is None else ():
                self._by_address.setdefault(str(ip_address(each)), []).append(number)


def _host_and_port(asked: str) -> tuple[str, int | None]:
    """Split `example.org:443`, `192.0.2.1:443` and `[2001:db8::1]:443`; the port may be missing."""
    if found := re.fullmatch(r"\[(.+)\](?::(\d+))?|([^:]+):(\d+)", asked):
        port = found[2] or found[4]
        return found[1] or found[3].rstrip("."), int(port) if port else None
    return asked.rstrip("."), None


def _is_same(one: RuleRequest, other: RuleRequest) -> bool:
    """Return whether two rules say the same of the same host; its addresses may differ."""
    return one == msgspec.structs.replace(other, addresses=one.addresses)


def allows(rule: RuleRequest, network: Network) -> bool:
    """Return whether a rule allows a network."""
    return rule.allows(network.name, network.kind, metered=network.metered)


@dataclass(slots=True)
class RuledDecision:
    """The decision for rules in an IP version; `refused` says why their connections are refused."""

    rules: tuple[RuleRequest, ...]
    decision: Decision
    refused: str = ""

    @property
    def network(self) -> str | None:
        networks = self.decision.choice.networks
        return networks[0] if networks else None


class RuledDestinations:
    """The destinations of a user's rules: each goes to the best network that it may use.

    If no network may carry a connection under a rule, it is refused, not sent elsewhere.
    """

    def __init__(self, outbox: Outbox, decider: Decider, rules: UserRules) -> None:
        self.rules = rules
        self._outbox = outbox
        self._decider = decider
        # Where places are led as was commanded, and how many commands about each are not done yet.
        self.led: LedConnections[Place] = LedConnections()
        self._due: dict[Place, int] = {}
        # The networks that are forbidden at places, as was commanded.
        self._forbidden: dict[Place, tuple[str, ...]] = {}
        # The addresses as they were when they were led last; whether the kernel has refused some of that.
        self._led_from: Mapping[str, Sequence[int]] = {}
        self._refused = False
        # Whether what was learnt since waits for its turn, and from when on; when a turn began.
        self._behind = False
        self._next_s = -inf
        self._begun_s: float | None = None
        self._ruled: dict[tuple[tuple[int, ...], int], RuledDecision] = {}
        """The numbers of rules that hold at once, an IP version of their addresses -> the decision."""

    def decision(self, key: FlowKey, named: str | None = None) -> Decision | None:
        """Return the decision that a connection follows; None: no rule covers it.

        `named`: the server that the connection itself names, which counts for it alone.
        """
        ruled = self._ruled.get((self._numbers(key, named), key.remote.version))
        return None if ruled is None else ruled.decision

    def _numbers(self, key: FlowKey, named: str | None = None) -> tuple[int, ...]:
        """Return the rules that a connection is under."""
        of_address = self.rules.holding(key.remote, key.remote_port)
        return of_address or self.rules.holding(key.remote, key.remote_port, named)

    def decision_about(self, asked: str) -> Decision | None:
        """Return the decision of the rule for a host, by its name or address, perhaps with a port."""
        host, port = _host_and_port(asked.strip().lower())
        if (number := self.rules.applies(host, port)) is None:
            return None
        versions = [4, 6]
        with suppress(ValueError):
            versions = [ip_address(host).version]
        known = [each for each in self._ruled if number in each[0] and each[1] in versions]
        # First those of several rules, which say why they are stricter.
        known.sort(key=lambda each: (-len(each[0]), each[1]))
        return self._ruled[known[0]].decision if known else None

    def covers(self, address: Address, port: int | None) -> bool:
        return bool(self.rules.rules) and self.rules.of(address, port) is not None

    def may_use(self, key: FlowKey, network: str, named: str | None = None) -> bool:
        """Return whether a flow may use the network of this name, which may be gone."""
        known = [each for each in self._decider.networks if each.name == network]
        rules = [self.rules.rules[number] for number in self._numbers(key, named)]
        return all(allows(rule, each) for rule in rules for each in known)

    def may_ask(self, network: Network, host: Address, port: int = _DNS) -> bool:
        """Return whether the daemon may ask a host's port over a network.

        Of the network's own resolvers it is as `_to_resolvers` leads programs: no name's rule counts.
        """
        numbers: Sequence[int] = self.rules.holding(host, port)
        if port == _DNS and host in (*network.resolvers, *network.gateways):
            number = self.rules.of(host, _DNS, named=False)
            numbers = () if number is None or number < 0 else (number,)
        return all(allows(self.rules.rules[number], network) for number in numbers)

    def keep(self, flow: LivingFlow) -> None:
        """Lead a living MPTCP connection off the networks that it may not use.

        Of a name that was not known to lead there the first connection may have begun anywhere. What has
        no other network than a forbidden one stays: nothing that lives is broken.
        """
        name = flow.server_name
        decision = self.decision(flow.key, name)
        token = flow.token
        used = {path.network for path in flow.paths.values() if path.closed is None}
        strays = {each for each in used if each and not self.may_use(flow.key, each, name)}
        if decision is None or token is None or not strays or not decision.choice.networks:
            return
        if flow.strategy is None or not strays.isdisjoint(flow.strategy.networks):
            self._outbox.give(MoveConnection(token, decision.choice))
            flow.on_decision(decision)
        for stray in strays:
            self._outbox.give(ReleasePath(token, stray))

    @property
    def behind(self) -> bool:
        """Return whether addresses that were learnt are not led yet."""
        return self._behind

    def next_timer_s(self) -> float | None:
        """Return when `go_on` is to be called; None: not before the next event."""
        return self._next_s if self._behind and not self._due else None

    def go_on(self, context: Callable[[], Context], now_s: float) -> None:
        """Lead what waits, if it is its turn."""
        due_s = self.next_timer_s()
        if due_s is not None and now_s >= due_s:
            self._catch_up(context())
            self._begun_s = now_s if self._due else None
            if not self._due:
                self._next_s = now_s + _LEAST_APART_S

    def reconsider(self, context: Context) -> None:
        self.rules.keep()
        before, self._ruled = self._ruled, {}
        if not self.rules.rules and not self.led.withdrawn and not self._forbidden:
            self._follow()
            return
        unknown = self._decider.unknown()
        usual = {v: self._decider.consider(unknown, context, None, version=v) for v in (4, 6)}
        places = self.rules.by_place()
        # Of a name whose addresses are not known yet IPv4 is told.
        alone = {numbers for numbers, _ in places.values()}
        needed = {
            *places.values(),
            *(((number,), 4) for number in self.rules.rules if (number,) not in alone),
        }
        for numbers, version in sorted(needed):
            rules = tuple(self.rules.rules[number] for number in numbers)
            decision, refused = self._decide(numbers, rules, usual[version], version)
            known = before.get((numbers, version))
            if (
                known is not None
                and all(map(_is_same, known.rules, rules))
                and known.decision.choice == decision.choice
                and known.refused == refused
            ):
                self._ruled[numbers, version] = known
                continue
            self._ruled[numbers, version] = RuledDecision(
                rules, self._decider.record(decision), refused
            )
        self._lead()

    def lead(self) -> None:
        """Have what rules cover by now led in its turn: the addresses of their names have changed.

        Each change of the kernel's rules is waited for. So what comes while one is carried out, and for
        `_PAUSES` times as long, is one change: look-ups have no more than that share of the time.
        """
        self._behind = self._refused or self.rules.by_address is not self._led_from

    def _catch_up(self, context: Context) -> None:
        self.rules.keep()
        if self._ruled.keys() >= set(self.rules.by_place().values()):
            self._lead()
        else:
            self.reconsider(context)

    def stand(self, addresses: Iterable[Address]) -> bool:
        """Return whether what rules say of these addresses is done."""
        return all(
            self.led.get(place) is not None
            and place not in self._due
            and self._led_from.get(str(address)) == self.rules.at(address)
            for address in addresses
            for number in self.rules.at(address)
            for place in (place_of(address, self.rules.rules[number].port),)
        )

    def _lead(self) -> None:
        self._follow()
        wanted: dict[Place, str | None] = {
            place: self._ruled[which].network or NOWHERE
            for place, which in self.rules.by_place().items()
        }
        ways, subnets = self._ways_to_resolvers(), self._shared_subnets(wanted)
        self._forbid(ways, subnets)
        wanted = self._to_resolvers(wanted, ways) | subnets | wanted
        if news := self.led.change(self.led.withdrawn | wanted):
            for place in news:
                self._due[place] = self._due.get(place, 0) + 1
            self._outbox.give(SetRuled(news))

    def _forbid(
        self, ways: Mapping[Address, Sequence[str]], subnets: Mapping[Place, str | None]
    ) -> None:
        """Forbid the networks that rules do, but for the ways to resolvers and to shared subnets.

        An interface on which a network or helper is allowed is open. Portals' rules forbid nothing. A
        shared subnet is open where it is led, and where the rule around it allows.
        """
        rules, networks = self.rules.rules, self._decider.networks
        there = (*networks, *self._decider.helpers)
        closed: dict[tuple[int, ...], tuple[str, ...]] = {}
        forbidden: dict[Place, tuple[str, ...]] = {}
        for place, (numbers, _) in self.rules.by_place().items():
            if numbers[0] < 0:
                continue
            if numbers not in closed:
                own = [rules[number] for number in numbers]
                open_ = {n.interface for n in there if all(allows(rule, n) for rule in own)}
                closed[numbers] = tuple(n.name for n in networks if n.interface not in open_)
            forbidden[place] = closed[numbers]
        for resolver, names in ways.items():
            if self._ruled_by_name(resolver):
                others = tuple(n.name for n in networks if n.name not in names)
                forbidden[place_of(resolver, _DNS)] = others
        for place, led in subnets.items():
            around = (rules[number] for number in self.rules.rules_around(ip_network(place[0])))
            these = [rule for rule in around if rule.port == place[1]]
            ways_out = {n.name for n in networks if all(allows(rule, n) for rule in these)} | {led}
            forbidden.setdefault(place, tuple(n.name for n in networks if n.name not in ways_out))
        before, self._forbidden = self._forbidden, forbidden
        news: dict[Place, tuple[str, ...] | None] = dict.fromkeys(before.keys() - forbidden.keys())
        news |= {place: each for place, each in forbidden.items() if before.get(place) != each}
        if news:
            self._outbox.give(ForbidPlaces(news))

    def _ruled_by_name(self, resolver: Address) -> bool:
        number = self.rules.of(resolver, _DNS)
        return number is not None and self.rules.rules[number].prefix is None

    def _follow(self) -> None:
        self._behind = self._refused = False
        self._led_from = self.rules.by_address

    def _ways_to_resolvers(self) -> dict[Address, list[str]]:
        """Return the resolvers and routers of networks, each with those that lead questions there."""
        ways: dict[Address, list[str]] = {}
        for network in sorted(self._decider.usable, key=lambda each: each.metered):
            for resolver in {*network.resolvers, *network.gateways}:
                if self.may_ask(network, resolver):
                    ways.setdefault(resolver, []).append(network.name)
        return ways

    def _to_resolvers(
        self, wanted: Mapping[Place, str | None], ways: Mapping[Address, Sequence[str]]
    ) -> dict[Place, str | None]:
        """Lead questions to the resolvers of networks to these, though a ruled name leads there, too.

        Else who has a name below a ruled one, or answers for it, ends all look-ups over a network. What
        a rule for a prefix says of such questions holds: no answer takes that away.
        """
        return {
            place_of(resolver, _DNS): networks[0]
            for resolver, networks in ways.items()
            if self._ruled_by_name(resolver)
            and wanted.get(place_of(resolver, None)) not in networks
        }

    def _shared_subnets(self, wanted: Mapping[Place, str | None]) -> dict[Place, str | None]:
        """Lead private subnets that several networks have to one of these, beside rules for more.

        A docked laptop has its router's by cable and by Wi-Fi. (Steering leads one that a single network
        has.) The networks that the rule allows come first, then cables. Where another network has a part
        of the subnet the rule holds there, too: any may give this host an address beside a server's.
        """
        there: dict[IPv4Network | IPv6Network, dict[str, Network]] = {}
        for each in self._decider.usable:
            for own in each.addresses:
                there.setdefault(own.network, {})[each.name] = each
        found: dict[Place, str | None] = {}
        for subnet, holders in there.items():
            if len(holders) < 2 or subnet.is_global or subnet.is_link_local:
                continue
            if any(one != subnet and one.overlaps(subnet) for one in there):
                continue
            for number in self.rules.rules_around(subnet):
                rule = self.rules.rules[number]
                if wanted.get((str(rule.prefix), rule.port)) in holders:
                    continue
                allowed = [each for each in holders.values() if allows(rule, each)]
                ways = [each for each in allowed or holders.values() if each.up]
                ways.sort(key=lambda each: (each.kind is not NetworkKind.ETHERNET, each.name))
                if ways:
                    found[str(subnet), rule.port] = ways[0].name
        return found

    def on_done(
        self, places: Iterable[Place], now_s: float, failed: Collection[Place] = ()
    ) -> None:
        """Take the end of `SetRuled`."""
        self.led.on_refused(failed)
        self._refused = self._refused or bool(failed)
        for place in places:
            if left := self._due.pop(place, 1) - 1:
                self._due[place] = left
        if self._begun_s is not None and not self._due:
            self._next_s = now_s + _PAUSES * min(now_s - self._begun_s, _LONGEST_S)
            self._begun_s = None

    def by_version(self, number: int) -> dict[int, RuledDecision]:
        """Return what was decided for a rule's connections, by IP version."""
        return {v: known for v in (4, 6) if (known := self._ruled.get(((number,), v))) is not None}

    def _decide(
        self,
        numbers: Sequence[int],
        rules: Sequence[RuleRequest],
        decision: Decision,
        version: int,
    ) -> tuple[Decision, str]:
        """Decide as for any new connection, among the networks that the rules allow; if none, say why."""
        there = [
            each
            for each in self._decider.usable
            if each.up and all(allows(rule, each) for rule in rules)
        ]
        allowed = {network.name for network in there if network.carries(version)}
        ways = [each for each in decision.evaluations if allowed.issuperset(each.strategy.networks)]
        rule = rules[0]
        transfer = replace(decision.transfer, server_name=rule.host)
        told = (f"rule {number}: {rule.words}" for number, rule in zip(numbers, rules, strict=True))
        said = f"Your {', and your '.join(told)}"
        if numbers[0] < 0:
            said = f"{rule.only[0]} wants a log-in, and {rule.host} is on the way to it"
        if not ways:
            captive = [n for n in sorted(allowed) if is_captive(decision.context, n)]
            if captive:
                choice = Strategy(StrategyKind.SINGLE, (captive[0],))
                why = sentences(said, f"{captive[0]} carries nothing but the log-in until then")
                return replace(decision, transfer=transfer, choice=choice, reason=why), ""
            nowhere = Strategy(StrategyKind.DEFER, ())
            names = " and ".join(network.name for network in there)
            several = len(there) > 1
            refused = "no such network is up"
            if allowed:
                refused = f"{names} {'do' if several else 'does'} not answer"
            elif there:
                refused = f"{names} {'have' if several else 'has'} no IPv{version}"
            what = refused if there else refused.capitalize()
            why = sentences(said, f"{what}, so connections are refused")
            return replace(decision, transfer=transfer, choice=nowhere, reason=why), refused
        allow = "it allows" if len(rules) == 1 else "they allow"
        best = min(ways, key=lambda each: each.cost).strategy
        others = (
            f"{best.networks[0]} is the only network that {allow}"
            if len(ways) == 1
            else f"Of those that {allow} {best.networks[0]} is best now"
        )
        why = sentences(said, others)
        return replace(decision, transfer=transfer, choice=best, reason=why), ""

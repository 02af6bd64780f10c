"""Brings the kernel's rules and routes to what is planned: make before break, and nothing foreign.

Rules by which ruled destinations go before the routes that a network announces.

The kernel asks the main table's specific routes early (`Preference.SPECIFIC`), and there a network puts
what it likes: one server's address, or both halves of the Internet (DHCP's option 121, RFC 4191). So what
is ruled skips the main table (`goto`), whether or not it has such a route yet, and comes to the networks
of bound sockets and to the users' rules. Main's routes are still asked first where they lead

- into a VPN, or to containers: over an interface that is no network of cedos
- over the very network that the rule names
- within a rule for more than that, to a network's own subnet of private addresses: any network may give
  this host an address beside a server's
- for what is bound to an interface, over that interface.

Where a network's parts of the Internet make a whole, main's prefixes of such lengths count no more than a
default route, whatever is ruled; those into a VPN do.
"""

import errno
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Final, Generic, TypeVar

from cedos.host.steer.default_route import Foreign, examine
from cedos.host.steer.journal_records import is_interface_name
from cedos.host.steer.kernel.interface import SteeringKernel
from cedos.host.steer.routing_plan import (
    BEHIND_MAIN,
    REFUSING_TABLE,
    Destination,
    Preference,
    RoutingPlan,
    default_rules,
    is_ours,
    own_addresses,
    plan,
    rescue_rule,
    steps_of,
    without_loopback,
)
from cedos.kernel.policy_routing import (
    MAIN_TABLE,
    PROTOCOL,
    Prefix,
    Route,
    Rule,
    SeenRoute,
    SeenRule,
)
from cedos.model import Address, FlowKey, Network

_DEFAULTS: Final = (Preference.DEFAULT, Preference.DEFAULT_ONLY)
# Of the routes within one destination that lead elsewhere than what is around them: the widest.
_MOST_WITHIN: Final = 256
# The addresses that are remembered of those that networks have lost.
_MOST_GONE: Final = 64
_SOURCES: Final = (Preference.SOURCE, Preference.SOURCE_ONLY)
_T = TypeVar("_T")


def past_announced(
    ruled: Mapping[Destination, str], networks: Collection[Network], main: Sequence[SeenRoute]
) -> frozenset[Rule]:
    """Return the rules by which ruled destinations skip the main table.

    `ruled`: destination -> the name of its network. `main`: the main table's specific routes.
    """
    rules: set[Rule] = set()
    for version in (4, 6):
        table = _Main(networks, [route for route in main if route.version == version])
        found = [
            (destination, prefix, first)
            for destination, name in ruled.items()
            if destination.prefix.version == version
            for prefix, first in table.changes(destination.prefix, name)
        ]
        order = steps_of(prefix for _, prefix, _ in found)
        for destination, prefix, first in found:
            rules.add(
                Rule(
                    version,
                    Preference.PAST_ANNOUNCED + order[prefix.prefixlen],
                    MAIN_TABLE if first else None,
                    destination=prefix if prefix.prefixlen else None,
                    local=True,
                    protocol=destination.protocol,
                    port=destination.port,
                    suppress_prefixlength=0 if first else None,
                    goto=None if first else BEHIND_MAIN[version].preference,
                )
            )
        if found:
            rules.add(BEHIND_MAIN[version])
            rules |= _bound_rules(version, ruled, networks)
    return frozenset(rules)


def _bound_rules(
    version: int, ruled: Mapping[Destination, str], networks: Collection[Network]
) -> set[Rule]:
    """Return the rules by which main's routes over an interface are asked for what is bound to it.

    The kernel looks up a router on the interface of its route, before it accepts the route. A ruled
    router that skips the main table would have no route there, and its network no default route.
    """
    known = {each.name: each.interface for each in networks}
    # A network that is gone may come back; without a name of its own it is called as its interface.
    interfaces = {*known.values(), *(known.get(name, name) for name in ruled.values() if name)}
    return {
        Rule(
            version,
            Preference.ON_LINK,
            MAIN_TABLE,
            interface=interface,
            local=True,
            suppress_prefixlength=0,
        )
        for interface in interfaces
        if is_interface_name(interface)
    }


def parts_elsewhere(
    overruled: Mapping[int, int], networks: Collection[Network], main: Sequence[SeenRoute]
) -> frozenset[Rule]:
    """Return the rules for overruled lengths (by IP version) of prefixes that no network leads to."""
    return frozenset(
        Rule(
            route.version,
            Preference.SPECIFIC,
            MAIN_TABLE,
            destination=route.destination,
            suppress_prefixlength=0,
        )
        for route in main
        if route.destination.prefixlen <= overruled.get(route.version, 0)
        and route.index not in _names(networks)
    )


class _Main:
    """The main table's specific routes of one IP version, and whether a rule goes before them."""

    def __init__(self, networks: Collection[Network], routes: Sequence[SeenRoute]) -> None:
        self._names = _names(networks)
        self._subnets = {
            interface.network
            for network in networks
            for interface in network.addresses
            if not interface.network.is_global
        }
        self._routes = _Closest[SeenRoute]()
        # Of equal prefixes the kernel takes the one with the lowest rank.
        for route in sorted(routes, key=lambda each: each.rank, reverse=True):
            self._routes.put(route.destination, route)

    def changes(self, outer: Prefix, name: str) -> list[tuple[Prefix, bool]]:
        """Return where in a ruled prefix, itself included, main's routes are asked first, or no more.

        Around it they are. `name` is the network that it is led to.
        """
        known = _Closest[bool]()
        found = []
        for prefix in [outer, *self._within(outer)]:
            first = self._asked_first(prefix, outer, name)
            before = known.around(prefix)
            if first != (True if before is None else before):
                found.append((prefix, first))
            known.put(prefix, first)
        return found[:_MOST_WITHIN]

    def _within(self, outer: Prefix) -> Iterator[Prefix]:
        """Yield the destinations of routes within a prefix, the widest first."""
        if outer.prefixlen < outer.max_prefixlen:
            inner = (route.destination for route in self._routes)
            longer = [prefix for prefix in inner if prefix.prefixlen > outer.prefixlen]
            where = _first(outer, outer.prefixlen)
            yield from sorted(
                (prefix for prefix in longer if _first(prefix, outer.prefixlen) == where),
                key=lambda prefix: prefix.prefixlen,
            )

    def _asked_first(self, prefix: Prefix, outer: Prefix, name: str) -> bool:
        route = self._routes.around(prefix)
        if route is None:
            return False
        own = route.destination == prefix != outer and prefix in self._subnets
        over = self._names.get(route.index)
        return own or over in (None, name) or route.destination.is_link_local


def _names(networks: Collection[Network]) -> dict[int, str]:
    """Return the networks' names by their interfaces' indices."""
    names = {each.translator.index: each.name for each in networks if each.translator is not None}
    return names | {network.index: network.name for network in networks}


class _Closest(Generic[_T]):
    """A value for each of some prefixes of one IP version."""

    def __init__(self) -> None:
        self._values: dict[tuple[int, int], _T] = {}
        self._lengths: list[int] = []

    def __iter__(self) -> Iterator[_T]:
        return iter(self._values.values())

    def put(self, prefix: Prefix, value: _T) -> None:
        if prefix.prefixlen not in self._lengths:
            self._lengths = sorted({prefix.prefixlen, *self._lengths}, reverse=True)
        self._values[prefix.prefixlen, int(prefix.network_address)] = value

    def around(self, prefix: Prefix) -> _T | None:
        """Return the value of the longest prefix that contains this one; it may be this one."""
        for length in self._lengths:
            if length <= prefix.prefixlen:
                found = self._values.get((length, _first(prefix, length)))
                if found is not None:
                    return found
        return None


def _first(prefix: Prefix, length: int) -> int:
    """Return the first address of the prefix of this length that a longer one lies in."""
    rest = prefix.max_prefixlen - length
    return int(prefix.network_address) >> rest << rest


class Routing:
    """The installed routing and the wanted one. All methods raise OSError if the kernel refuses.

    `stale`: routes were announced faster than they could be read, so that what was read before counts.
    """

    def __init__(self, kernel: SteeringKernel) -> None:
        self._kernel = kernel
        self._networks: tuple[Network, ...] = ()
        self._interfaces: set[str] = set()  # of networks, those that are gone included
        self._metrics: dict[tuple[int, int], bytes] = {}
        self._main: Sequence[SeenRoute] | None = None
        self._led_out: set[tuple[int, int]] = set()
        self._holders: dict[Address, frozenset[str]] = {}  # networks by the addresses that they had
        self._installed = RoutingPlan()
        self._given_metrics: dict[Route, bytes] = {}
        self.default: str | None = None
        self.others: dict[int, str] = {}
        self.destinations: dict[Destination, str] = {}
        self.marks: dict[int, str] = {}
        self.rescues: dict[FlowKey, str] = {}
        self.foreign = Foreign()
        self.stale = False

    def networks_changed(self, networks: Sequence[Network]) -> None:
        self._networks = tuple(networks)
        self._interfaces |= {network.interface for network in networks}
        both = [(version, network) for version in (4, 6) for network in networks]
        known = {(version, network.index) for version, network in both}
        leading = {(v, network.index) for v, network in both if network.leads_out(v)}
        self._led_out = leading | (self._led_out & known)
        # A network that gave this host another one's address may do so again, faster than it is noticed,
        # or once the other one has lost it. Sockets that got the address there keep it.
        there = {(address, each.name) for each in networks for address in own_addresses(each)}
        for address, name in sorted(there, key=str):
            self._holders[address] = self._holders.pop(address, frozenset()) | {name}
        for address in [*self._holders][: -len(there) - _MOST_GONE]:
            del self._holders[address]
        self.reconcile()

    def set_default(self, name: str | None, others: Mapping[int, str] | None = None) -> None:
        """Lead new connections to a network: the new rules are there before the old ones go.

        `others`: an IP version that it lacks -> the network for that.
        """
        self.default = name
        self.others = dict(others or {})
        if self.foreign.defaults:
            self._apply(self._planned())
            return
        by_name = {network.name: network for network in self._networks}
        old = {rule for rule in self._installed.rules if rule.preference in _DEFAULTS}
        new = (
            default_rules(by_name[name], self._networks, self.others)
            if name in by_name
            else frozenset[Rule]()
        )
        rules = (self._installed.rules - old) | new
        self._apply(RoutingPlan(rules, self._installed.routes))

    def set_destination(self, destination: Destination, name: str | None) -> None:
        """Lead new connections to some destination to a network; None: to the default again."""
        self.set_destinations({destination: name})

    def set_destinations(self, wanted: Mapping[Destination, str | None]) -> None:
        """Lead new connections to several destinations at once: a name may have hundreds."""
        with self._unless_refused():
            for destination, name in wanted.items():
                if name is None:
                    self.destinations.pop(destination, None)
                else:
                    self.destinations[destination] = name
            if self._main is None:
                self._main = self._specific_routes()
            self._apply(self._planned())

    def set_mark(self, mark: int, name: str | None) -> None:
        """Lead new connections that carry a mark to a network; None: to the default again."""
        with self._unless_refused():
            if name is None:
                self.marks.pop(mark, None)
            else:
                self.marks[mark] = name
            self._apply(self._planned())

    def set_rescue(self, key: FlowKey, name: str | None) -> None:
        """Lead one flow to a network, ahead of all others of its address; None: as them again."""
        by_name = {network.name: network for network in self._networks}
        with self._unless_refused():
            before = self.rescues.pop(key, None)
            if name is not None:
                self.rescues[key] = name
            old, new = (
                frozenset(filter(None, [rescue_rule(key, by_name[which])]))
                if which in by_name
                else frozenset[Rule]()
                for which in (before, name)
            )
            self._apply(RoutingPlan((self._installed.rules - old) | new, self._installed.routes))

    @contextmanager
    def _unless_refused(self) -> Iterator[None]:
        """Take back what is wanted where the kernel refuses it: it would refuse all that comes later.

        What is wanted no more stays so.
        """
        before = dict(self.destinations), dict(self.marks), dict(self.rescues)
        try:
            yield
        except OSError:
            destinations, marks, rescues = before
            self.destinations = {k: v for k, v in destinations.items() if k in self.destinations}
            self.marks = {k: v for k, v in marks.items() if k in self.marks}
            self.rescues = {k: v for k, v in rescues.items() if k in self.rescues}
            raise

    def reconcile(self) -> bool:
        """Read what is really installed and repair it; return whether anything foreign is new or gone."""
        try:
            routes = self._kernel.routes()
        except TimeoutError:
            self.stale = True
            self._apply(self._planned())
            return False
        self.stale = False
        rules = self._kernel.rules()
        foreign = examine(rules, routes, self._kernel.links(), self._networks)
        self._metrics = {
            (route.version, route.index): route.metrics
            for route in sorted(routes, key=lambda route: route.rank, reverse=True)
            if route.table == MAIN_TABLE and route.destination.prefixlen == 0
        }
        news = foreign != self.foreign
        self.foreign = foreign
        self._main = self._specific_routes()
        self._installed = self._read(rules, routes)
        self._apply(self._planned())
        return news

    def _specific_routes(self) -> Sequence[SeenRoute] | None:
        """Return main's specific routes where some may be overruled: a host may have thousands."""
        if not (self.foreign.overruled or any(each.ruled for each in self.destinations)):
            return None
        try:
            return self._kernel.specific_routes()
        except TimeoutError:
            # Without main's routes what is ruled skips main all the same (`past_announced`).
            if self._main is None:
                raise
            self.stale = True
            return self._main

    def _planned(self) -> RoutingPlan:
        left_alone = self.foreign.defaults
        # A network can bring about that its address is no more, or of the link alone (DHCP).
        borrowing = {v for v, each in left_alone.items() if each.interface in self._interfaces}
        planned = plan(
            self._networks,
            self.default,
            self.destinations,
            marks=self.marks,
            rescues=self.rescues,
            left_alone={v: each.vpn for v, each in left_alone.items()},
            borrowing=borrowing,
            metrics=self._metrics,
            lost=self._led_out,
            others=self.others,
            overruled=self.foreign.overruled,
            shared={each for each, names in self._holders.items() if len(names) > 1},
        )
        steered = {rule.version for rule in planned.rules} - (left_alone.keys() - borrowing)
        ruled = {
            each: name
            for each, name in self.destinations.items()
            if each.ruled and each.prefix.version in steered
        }
        main = self._main or ()
        rules = past_announced(ruled, self._networks, main)
        rules |= parts_elsewhere(self.foreign.overruled, self._networks, main)
        return replace(planned, rules=planned.rules | rules)

    def _read(self, rules: Sequence[SeenRule], routes: Sequence[SeenRoute]) -> RoutingPlan:
        """Return our installed rules and routes. Routes count with the metrics that we gave them."""
        installed = set()
        for seen in routes:
            if seen.protocol == PROTOCOL:
                bare = Route(
                    seen.table, seen.destination, seen.index, seen.gateway, source=seen.source
                )
                installed.add(replace(bare, metrics=self._given_metrics.get(bare, seen.metrics)))
        ours = (seen.rule for seen in rules if seen.rule and is_ours(seen.preference))
        return RoutingPlan(frozenset(ours), frozenset(installed))

    def _apply(self, wanted: RoutingPlan) -> None:
        """Add new routes, then new rules; remove old rules, then old routes: one is always there.

        Only the rules of addresses that have moved go first.
        """
        before, self._installed = self._installed, wanted
        new_routes, old_routes = wanted.routes - before.routes, before.routes - wanted.routes
        moved = {rule for rule in before.rules - wanted.rules if rule.preference in _SOURCES}
        try:
            # A network's new routes and rules may give sockets an address that was another network's.
            self._kernel.delete_rules(sorted(moved, key=_rule_order, reverse=True))
            added = {route for route in sorted(new_routes, key=str) if self._add(route)}
            routes = wanted.routes - new_routes | added
            refusing = any(route.table == REFUSING_TABLE for route in routes)
            rules = wanted.rules if refusing else without_loopback(wanted.rules)
            self._installed = RoutingPlan(rules, routes)
            new_rules, old_rules = rules - before.rules, before.rules - rules - moved
            self._kernel.add_rules(sorted(new_rules, key=_rule_order))
            self._kernel.delete_rules(sorted(old_rules, key=_rule_order, reverse=True))
            # A route to the same destination has replaced its predecessor.
            replaced = {(route.table, route.destination) for route in added}
            stale = [
                route for route in old_routes if (route.table, route.destination) not in replaced
            ]
            if stale:
                self._kernel.delete_routes(stale)
        except OSError:
            self._installed = self._read(self._kernel.rules(), self._kernel.routes(PROTOCOL))
            raise

    def _add(self, route: Route) -> bool:
        """Add a route; False where its interface has gone meanwhile, as the monitor will tell.

        False, too, for the one that refuses where loopback has no IPv6.
        """
        bare = replace(route, metrics=b"")
        # Metrics that some other kernel understood may be refused; the route counts for more.
        for attempt in dict.fromkeys((route, bare)):
            try:
                self._kernel.add_routes([attempt])
            except OSError as error:
                # Loopback's IPv6 may be disabled: EACCES, whatever one may do.
                disabled = error.errno == errno.EACCES and route.table == REFUSING_TABLE
                if error.errno in (errno.EPERM, errno.EACCES) and not disabled:
                    raise
                continue
            self._given_metrics[bare] = route.metrics
            return True
        return False


def _rule_order(rule: Rule) -> tuple[int, int, str]:
    """Order rules as they are added; they are removed the other way round.

    The default comes first, as it is waited for, and what holds something back last. Of the rules for
    ruled destinations, and of those that skip main, each is there before all that count less: a change of
    the lengths in use moves them, and what is refused must not be led in between as what is around it.
    """
    kind = max(each for each in Preference if each <= rule.preference)
    held = (Preference.RULED, Preference.PAST_ANNOUNCED)
    if kind in held:
        return 2 + held.index(kind), rule.preference, str(rule)
    late = rule.table in (None, REFUSING_TABLE)
    return 4 if late else int(kind != Preference.DEFAULT), rule.preference, str(rule)

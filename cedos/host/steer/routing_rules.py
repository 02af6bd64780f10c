"""Brings the kernel's rules and routes to what is planned: make before break, and nothing foreign.

Rules by which ruled destinations go before the routes that a network announces.

The kernel asks the main table's specific routes early (`Preference.SPECIFIC`), and there a network puts
what it likes: one server's address, or both halves of the Internet (DHCP's option 121, RFC 4191). So what
is ruled skips the main table (`goto`), whether or not it has such a route yet. Main's routes count as the
daemon has copied them, so that what comes or goes draws nothing in between:

- those into a VPN, or to containers, over an interface that is no network of cedos: in a table that is
  asked before the users' rules. What a network has a closer route to goes on from there
- those over a network: in that network's table
- within a rule for more than that, a network's own subnet of private addresses, before the rule, unless
  it overlaps with another network's: any network may give this host an address beside a server's

Where a network's parts of the Internet make a whole, main's prefixes of such lengths count no more than a
default route, whatever is ruled; those into a VPN do.
"""

import errno
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Final

from cedos.host.steer.default_route import Foreign, examine
from cedos.host.steer.journal_records import (
    OWN_SOURCES,
    Append,
    SysctlRecord,
    is_interface_name,
    own_sources,
)
from cedos.host.steer.kernel.interface import SteeringKernel
from cedos.host.steer.routing_plan import (
    BEHIND_MAIN,
    REFUSING_TABLE,
    TABLE_BASE,
    Destination,
    Preference,
    RoutingPlan,
    default_rules,
    is_ours,
    own_addresses,
    own_source,
    plan,
    rescue_rule,
    table_of,
    without_loopback,
)
from cedos.kernel.interface_kind import Hardware, guess
from cedos.kernel.policy_routing import (
    MAIN_TABLE,
    PROTOCOL,
    RTN_THROW,
    RTN_UNREACHABLE,
    Prefix,
    Route,
    Rule,
    SeenRoute,
    SeenRule,
)
from cedos.model import Address, FlowKey, Network

_DEFAULTS: Final = (Preference.DEFAULT, Preference.DEFAULT_ONLY)
# The addresses that are remembered of those that networks have lost.
_MOST_GONE: Final = 64
_SOURCES: Final = (Preference.SOURCE, Preference.SOURCE_ONLY)
_UNREAD: Final = Hardware(known=False)
# The most lengths of networks' own subnets that are looked up before a rule: of more, the longest.
_MOST_LENGTHS: Final = 3


def past_announced(
    ruled: Mapping[Destination, str], networks: Collection[Network]
) -> frozenset[Rule]:
    """Return the rules by which ruled destinations (-> the names of networks) skip the main table."""
    rules: set[Rule] = set()
    for version in (4, 6):
        places = {each: name for each, name in ruled.items() if each.prefix.version == version}
        subnets = own_subnets(version, networks)
        found = [
            (destination, subnet, network)
            for destination, name in places.items()
            for subnet, network in subnets.items()
            if network.name != name and contains(destination.prefix, subnet)
        ]
        # Each length of subnets has a step after what is ruled of that length or longer: of rules with
        # one preference the kernel asks the older one first. It deletes any rule of the same preference
        # that says the same and more. So all destinations have a step of their own, and so have ports.
        lengths = sorted({subnet.prefixlen for _, subnet, _ in found}, reverse=True)[:_MOST_LENGTHS]
        for destination, subnet, network in found:
            if subnet.prefixlen in lengths:
                rule = _exception_rule(destination, subnet, 2 * lengths.index(subnet.prefixlen) + 1)
                rules.add(replace(rule, table=table_of(network), suppress_prefixlength=0))
        for destination in places:
            length = destination.prefix.prefixlen
            step = 2 * sum(each > length for each in lengths) + (not length)
            rule = _exception_rule(destination, destination.prefix, step)
            rules.add(replace(rule, goto=BEHIND_MAIN[version].preference))
        if places:
            rules.add(BEHIND_MAIN[version])
            rules |= _bound_rules(version, ruled, networks)
    return frozenset(rules)


def _exception_rule(destination: Destination, prefix: Prefix, step: int) -> Rule:
    """Return a rule about a part of a destination. A port counts more than any prefix."""
    if destination.port is None:
        step += 2 * _MOST_LENGTHS + 2
    return Rule(
        prefix.version,
        Preference.PAST_ANNOUNCED + step,
        None,
        destination=prefix if prefix.prefixlen else None,
        local=True,
        protocol=destination.protocol,
        port=destination.port,
    )


def own_subnets(version: int, networks: Collection[Network]) -> dict[Prefix, Network]:
    """Return the networks' subnets of private addresses, without those that overlap with another's."""
    subnets = [
        (interface.network, network)
        for network in networks
        for interface in network.addresses
        if interface.version == version
        and not interface.ip.is_link_local
        and interface.network.prefixlen < interface.max_prefixlen
    ]
    return {
        subnet: network
        for subnet, network in subnets
        if not subnet.is_global
        and not any(other is not network and subnet.overlaps(each) for each, other in subnets)
    }


def contains(outer: Prefix, inner: Prefix) -> bool:
    """Return whether a prefix contains a longer one."""
    rest = outer.max_prefixlen - outer.prefixlen
    first = int(inner.network_address) >> rest << rest
    return outer.prefixlen < inner.prefixlen and first == int(outer.network_address)


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


def copy_specific_routes(
    networks: Collection[Network],
    main: Sequence[SeenRoute],
    versions: Collection[int],
    coming: Collection[int] = (),
) -> list[Route]:
    """Return main's specific routes as ruled destinations find them (see the module's docstring).

    `coming`: the indices of interfaces that may be networks, of which the daemon has not been told yet.
    """
    by_name = {network.name: network for network in networks}
    names = _names(networks)
    routes: dict[tuple[int, Prefix], Route] = {}
    for seen in sorted(main, key=lambda each: each.rank):
        if seen.version not in versions or seen.destination.is_link_local or seen.index in coming:
            continue
        network = by_name.get(names.get(seen.index, ""))
        if network is not None:
            source = None
            if seen.version == 4:
                # (One that is not known to be the network's would lead to another one.)
                known = any(each.ip == seen.source for each in network.addresses)
                source = seen.source if known else own_source(network, seen.gateway)
            at = table_of(network), seen.destination
            if seen.version == 6 or source is not None:
                routes.setdefault(at, Route(*at, seen.index, seen.gateway, seen.metrics, source))
        at = TABLE_BASE, seen.destination
        if network is not None:
            route = Route(*at, 0, type=RTN_THROW)
        elif not seen.index:
            route = Route(*at, 0, type=RTN_UNREACHABLE)
        else:
            # (The privileged part adds none with a source of loopback; the kernel finds one then.)
            source = None if seen.source is None or seen.source.is_loopback else seen.source
            route = Route(*at, seen.index, seen.gateway, seen.metrics, source)
        routes.setdefault(at, route)
    return [*routes.values()]


def _names(networks: Collection[Network]) -> dict[int, str]:
    """Return the networks' names by their interfaces' indices."""
    names = {each.translator.index: each.name for each in networks if each.translator is not None}
    return names | {network.index: network.name for network in networks}


class Routing:
    """The installed routing and the wanted one. All methods raise OSError if the kernel refuses.

    `stale`: routes were announced faster than they could be read, so that what was read before counts.
    """

    def __init__(self, kernel: SteeringKernel, append: Append = lambda _: None) -> None:
        self._kernel = kernel
        self._append = append
        self._networks: tuple[Network, ...] = ()
        self._interfaces: set[str] = set()  # of networks, those that are gone included
        self._told: frozenset[int] | None = (
            None  # links that were there at the last change of networks
        )
        self._metrics: dict[tuple[int, int], bytes] = {}
        self._main: Sequence[SeenRoute] | None = None
        self._coming: Collection[int] = ()
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
        self._keep_own_sources()
        self._interfaces |= {network.interface for network in networks}
        self._told = None
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

    def _keep_own_sources(self) -> None:
        """Have the kernel give what leaves a network an address of it (IPv6).

        Else it gives another network's once the own ones are lost, or called deprecated, as any
        neighbour can (RFC 6724, 5, rule 3 comes before rule 5); and the rule for that one leads there.
        """
        for network in self._networks:
            key = own_sources(network.interface)
            now = self._kernel.read_sysctl(key) if network.carries(6) else None
            if now in {"0", OWN_SOURCES}:
                self._append(SysctlRecord(key, "0", OWN_SOURCES))
            if now == "0":
                with suppress(OSError):  # its interface has gone, or /proc is read-only
                    self._kernel.write_sysctl(key, OWN_SOURCES)

    def set_default(self, name: str | None, others: Mapping[int, str] | None = None) -> None:
        """Lead new connections to a network: the new rules are there before the old ones go.

        `others`: an IP version that it lacks -> the network for that.
        """
        self.default = name
        self.others = dict(others or {})
        if self.foreign.defaults:
            self._apply(self._make_plan())
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
            self._apply(self._make_plan())

    def set_mark(self, mark: int, name: str | None) -> None:
        """Lead new connections that carry a mark to a network; None: to the default again."""
        with self._unless_refused():
            if name is None:
                self.marks.pop(mark, None)
            else:
                self.marks[mark] = name
            self._apply(self._make_plan())

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
            self._apply(self._make_plan())
            return False
        self.stale = False
        rules = self._kernel.rules()
        links = self._kernel.links()
        foreign = examine(rules, routes, links, self._networks)
        if self._told is None:
            self._told = frozenset(each.index for each in links)
        # What is told of as no network now is one that cedos is to ignore.
        coming = {
            each.index
            for each in links
            if each.name in self._interfaces
            or (each.index not in self._told and guess(each, _UNREAD))
        }
        self._coming = coming - {network.index for network in self._networks}
        self._metrics = {
            (route.version, route.index): route.metrics
            for route in sorted(routes, key=lambda route: route.rank, reverse=True)
            if route.table == MAIN_TABLE and route.destination.prefixlen == 0
        }
        news = foreign != self.foreign
        self.foreign = foreign
        self._main = self._specific_routes()
        self._installed = self._read(rules, routes)
        self._apply(self._make_plan())
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

    def _make_plan(self) -> RoutingPlan:
        left_alone = self.foreign.defaults
        planned = plan(
            self._networks,
            self.default,
            self.destinations,
            marks=self.marks,
            rescues=self.rescues,
            left_alone=left_alone,
            metrics=self._metrics,
            lost=self._led_out,
            others=self.others,
            overruled=self.foreign.overruled,
            holders=self._holders,
        )
        steered = {rule.version for rule in planned.rules}
        steered -= {version for version, each in left_alone.items() if each.overrules}
        ruled = {
            each: name
            for each, name in self.destinations.items()
            if each.ruled and each.prefix.version in steered
        }
        main = self._main or ()
        copies = copy_specific_routes(
            self._networks, main, {each.prefix.version for each in ruled}, self._coming
        )
        routes = {(route.table, route.destination): route for route in (*planned.routes, *copies)}
        rules = past_announced(ruled, self._networks)
        rules |= parts_elsewhere(self.foreign.overruled, self._networks, main)
        return RoutingPlan(planned.rules | rules, frozenset(routes.values()))

    def _read(self, rules: Sequence[SeenRule], routes: Sequence[SeenRoute]) -> RoutingPlan:
        """Return our installed rules and routes. Routes count with the metrics that we gave them."""
        installed = set()
        for seen in routes:
            if seen.protocol == PROTOCOL:
                where = seen.table, seen.destination, seen.index, seen.gateway
                bare = Route(*where, source=seen.source, type=seen.type)
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

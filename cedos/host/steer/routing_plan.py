"""Which rules and routes the networks, the default and the destinations ask for.

A table per network holds its default route. The rules, in the order in which the kernel asks them:

    32000  on-link destinations: of a network whose subnet another one shares, for its own addresses;
           for what is bound to an interface, over that one, if destinations are under a user's rule
    32001  destinations under a user's rule: they skip 32017 (`past_announced`)
    32017  everything more specific than a default route: local networks, VPNs, containers
    32018  VPNs and containers as the daemon knows them: here goes on what skips that
    32020  what is bound to a network's interface, to that network
    32025  flows that were rescued from a dead network, each to the one that it was rescued to
    32030  what is bound to a network's address, to that network: living flows stay where they are
    32031  ... and nowhere else, while that network has no route
    32046  IPv6 sockets that were refused (below): what they send is refused as long as they live
    32050  destinations under a user's rule, the more specific ones first; each is followed by one that
           refuses what the network has no route, or in IPv6 no address, for
    32114  as 32030, for an address that several networks have, or had: it tells none of them, so that a
           network which gives this host the address of another one would draw what is ruled to itself
    32115  each network's own resolvers: the network names them, so they never count before a user's rule
    32120  programs whose connections carry a mark (`cedos exec`)
    32130  destinations known to be different, the more specific ones first
    32190  the default: the network chosen for new connections
    32191  ... and no other network, where the chosen one lacks the IP version and no other is named

They stand behind what other programs put at lower numbers, and just before the host's own.

What is refused (32050, 32191) is unreachable in IPv4. Of IPv6 the kernel would then choose an address
for a socket that has none and look again, and 32030 would lead it to the network of that address. So
the first look must find something: a route that gives it ::1, which leads nowhere. A program that has an
address already asks 32030 first and goes on.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_network
from typing import Final

from cedos.controller.events import HostDefault
from cedos.kernel.policy_routing import (
    EVERYWHERE,
    LOOPBACK_INDEX,
    MAIN_TABLE,
    Prefix,
    Route,
    Rule,
)
from cedos.model import Address, FlowKey, Network, NextHop

TABLE_BASE: Final = 7_300_000
TABLE_COUNT: Final = 1 << 20
FIRST_PREFERENCE: Final = 32000
LAST_PREFERENCE: Final = 32199
# Stands in place of a network's name if connections to a destination are refused.
NOWHERE: Final = ""
REFUSING_TABLE: Final = TABLE_BASE + LOOPBACK_INDEX
_LOOPBACK: Final = IPv6Address("::1")
# Gives an unbound IPv6 socket an address from which it reaches no host.
REFUSING_ROUTE: Final = Route(REFUSING_TABLE, EVERYWHERE[6], LOOPBACK_INDEX, source=_LOOPBACK)
_LAST_STEP: Final = 15
# The most of a network's own addresses in the rules of each ruled destination.
_MOST_SOURCES: Final = 4
_HALVES: Final = (IPv6Network("::/1"), IPv6Network("8000::/1"))


class Preference(IntEnum):
    """The preference of each kind of rule (see the module's docstring)."""

    ON_LINK = 32000
    PAST_ANNOUNCED = 32001
    SPECIFIC = 32017
    BEHIND = 32018
    INTERFACE = 32020
    RESCUE = 32025
    SOURCE = 32030
    SOURCE_ONLY = 32031
    REFUSED = 32046
    RULED = 32050
    SHARED_SOURCE = 32114
    RESOLVER = 32115
    MARK = 32120
    DESTINATION = 32130
    DEFAULT = 32190
    DEFAULT_ONLY = 32191


# What skips the main table goes on here, with its routes over what is no network.
BEHIND_MAIN: Final = {v: Rule(v, Preference.BEHIND, TABLE_BASE, local=True) for v in (4, 6)}


@dataclass(frozen=True, slots=True)
class Destination:
    """Whom a rule is about: a prefix, or one port and transport protocol there.

    `ruled`: a rule of the user's, which nothing else overrides.
    """

    prefix: Prefix
    port: int | None = None
    protocol: str | None = None
    ruled: bool = False


@dataclass(frozen=True, slots=True)
class RoutingPlan:
    rules: frozenset[Rule] = frozenset()
    routes: frozenset[Route] = frozenset()


def table_of(network: Network) -> int:
    """Return the table of a network: a fixed base and its interface's index."""
    return TABLE_BASE + network.index % TABLE_COUNT


def is_ours(preference: int) -> bool:
    return FIRST_PREFERENCE <= preference <= LAST_PREFERENCE


def default_rules(
    network: Network, networks: Collection[Network], others: Mapping[int, str] | None = None
) -> frozenset[Rule]:
    """Return the rules that make a network the default, for each IP version.

    `others`: an IP version that it lacks -> the name of the network that has that version's default.
    """
    rules = set()
    named = {each.name: each for each in networks}
    for version in (4, 6):
        other = named.get((others or {}).get(version, network.name), network)
        carrier = network if network.carries(version) else other
        tcp_alone = is_second_choice(version, network, carrier)
        if carrier.carries(version):
            table, protocol = table_of(carrier), "tcp" if tcp_alone else None
            rules.add(Rule(version, Preference.DEFAULT, table, local=True, protocol=protocol))
        elif not network.up or not any(each.carries(version) for each in networks):
            continue
        if tcp_alone or not carrier.carries(version):
            # Or what was to spare the cellular network would take it by its IPv6.
            rules.add(Rule(version, Preference.DEFAULT_ONLY, _refusing(version), local=True))
    return frozenset(rules)


def is_second_choice(version: int, default: Network, carrier: Network) -> bool:
    """Return whether programs are to prefer IPv4, as only a dearer network than the default has IPv6.

    Where IPv6 works, programs prefer it, and nearly all that has it has IPv4, too. To order a name's
    addresses they connect a datagram socket to each (RFC 6724). So IPv6 datagrams are refused, and TCP
    gets through to what has IPv6 alone.
    """
    return version == 6 and carrier.metered and not default.metered


def rescue_rule(key: FlowKey, network: Network) -> Rule | None:
    """Return the rule that leads one flow to a network; None where that lacks the flow's IP version.

    It is not restricted to what this host sends: the kernel looks at ports when it checks where an
    answer may come from (rp_filter) only where a rule with ports is not.
    """
    version = key.local.version
    if not network.leads_out(version):
        return None
    return Rule(
        version,
        Preference.RESCUE,
        table_of(network),
        source=ip_network(key.local),
        destination=ip_network(key.remote),
        protocol="tcp",
        port=key.remote_port,
        source_port=key.local_port,
    )


def plan(
    networks: Sequence[Network],
    default: str | None = None,
    destinations: Mapping[Destination, str] | None = None,
    *,
    marks: Mapping[int, str] | None = None,
    rescues: Mapping[FlowKey, str] | None = None,
    left_alone: Mapping[int, HostDefault] | None = None,
    metrics: Mapping[tuple[int, int], bytes] | None = None,
    lost: Collection[tuple[int, int]] = (),
    others: Mapping[int, str] | None = None,
    overruled: Mapping[int, int] | None = None,
    holders: Mapping[Address, Collection[str]] | None = None,
) -> RoutingPlan:
    """Return the rules and routes that are to be in place.

    Args:
        networks: all networks, also those that are down.
        default: the name of the network for new connections; None: the host's own choice.
        destinations: destination -> the name of its network, or `NOWHERE`.
        marks: a program's mark (SO_MARK) -> the name of the network for what carries it.
        rescues: a rescued flow -> the name of the network that it was rescued to.
        left_alone: the IP versions whose default is the host's own, and which. Of these only what is
            bound is led to its network, and what is ruled. Where a VPN has the default, or the host
            refuses all, what is ruled is not, and to a VPN goes even what is bound to an address alone.
        metrics: (IP version, interface index) -> metrics of the host's own default route there.
        lost: (IP version, interface index) that led out once: what is bound to addresses there waits
            while it does not. One that never did is a local network, and none of our business.
        others: an IP version that the default lacks -> the name of the network that has its default.
        overruled: an IP version -> up to which length main's prefixes count no more than its default.
        holders: addresses -> the names of the networks that have them, or had.
    """
    rules: set[Rule] = set()
    routes: set[Route] = set()
    by_name = {network.name: network for network in networks}
    left_alone = left_alone or {}
    holders = holders or {}
    shared = {each for each, names in holders.items() if len(names) > 1}
    for version in (4, 6):
        left = left_alone.get(version)
        tunnelled = left is not None and left.vpn
        ruled = any(each.ruled and each.prefix.version == version for each in destinations or ())
        # (What is ruled is refused at once, and not once a network that comes has been noticed.)
        if not ruled and not any(network.carries(version) for network in networks):
            continue
        least = (overruled or {}).get(version, 0)
        rules.add(Rule(version, Preference.SPECIFIC, MAIN_TABLE, suppress_prefixlength=least))
        for network in networks:
            table = table_of(network)
            if network.leads_out(version):
                routes.add(_default_route(network, version, metrics or {}, ruled=ruled))
                rules.add(Rule(version, Preference.INTERFACE, table, interface=network.interface))
                if version == 6 and network.translator is not None:
                    # A network may announce a route to the addresses into which IPv4's are translated.
                    came = network.translator.interface
                    rules.add(Rule(6, Preference.PAST_ANNOUNCED, table, arrival=came))
            elif network.carries(version) and (translator := network.translator) is not None:
                own = [each.ip for each in translator.addresses if each.version == version]
                source = own[0] if ruled and own else None
                routes.add(Route(table, EVERYWHERE[version], translator.index, source=source))
                if not tunnelled:
                    rules |= {_source_rule(each, table, shared) for each in own}
            waits = not network.carries(version) and (version, network.index) in lost
            if not tunnelled and (network.leads_out(version) or waits):
                rules |= _source_rules(network, version, networks, routes, shared)
        if left is not None and left.overrules:
            continue
        if version == 6:
            routes.add(REFUSING_ROUTE)
            refused = ip_network(_LOOPBACK)
            rules.add(Rule(6, Preference.REFUSED, REFUSING_TABLE, source=refused, local=True))
        there = [each for each in destinations or () if each.prefix.version == version]
        leading = networks if version == 6 and ruled else ()
        sources = {each.name: _sources(each) for each in leading}
        # Hints of many lengths do not make rules share a preference.
        steps_by = {
            ruled: steps_of(each.prefix for each in there if each.ruled is ruled)
            for ruled in (False, True)
        }
        for destination, name in (destinations or {}).items():
            if destination.prefix.version != version or (left and not destination.ruled):
                continue
            steps = steps_by[destination.ruled]
            if name in by_name:
                rules |= _leading_rules(destination, by_name[name], steps, sources.get(name, ()))
            if name == NOWHERE or destination.ruled:
                rules.add(_destination_rule(destination, _refusing(version), steps, last=True))
        if left:
            continue
        rules |= _resolver_rules(networks, version)
        for mark, name in (marks or {}).items():
            if name in by_name and by_name[name].carries(version):
                table = table_of(by_name[name])
                rules.add(Rule(version, Preference.MARK, table, local=True, mark=mark))
        if default in by_name:
            wanted = default_rules(by_name[default], networks, others)
            rules |= {rule for rule in wanted if rule.version == version}
    for key, name in (rescues or {}).items():
        if name in by_name and (rule := rescue_rule(key, by_name[name])) is not None:
            rules.add(rule)
    return RoutingPlan(frozenset(rules), frozenset(routes))


def without_loopback(rules: Iterable[Rule]) -> frozenset[Rule]:
    """Return the plan for hosts that cannot have `REFUSING_ROUTE`: unreachable routes instead."""
    return frozenset(
        replace(rule, table=None) if rule.table == REFUSING_TABLE else rule for rule in rules
    )


def _refusing(version: int) -> int | None:
    return REFUSING_TABLE if version == 6 else None


def own_addresses(network: Network) -> list[Address]:
    """Return a network's addresses, and its translator's, without IPv6's of the link."""
    translator = network.translator
    return [
        interface.ip
        for interface in (*network.addresses, *(translator.addresses if translator else ()))
        if not interface.ip.is_link_local or isinstance(interface.ip, IPv4Address)
    ]


def _default_route(
    network: Network, version: int, metrics: Mapping[tuple[int, int], bytes], *, ruled: bool
) -> Route:
    """Return a network's default route; `ruled`: it names its source in IPv4, too.

    Where a network has lost its address of IPv4, the kernel would give a socket another network's, and
    the rule for that would lead the connection there. With a source that is no more the route stays, and
    what it leads is refused. So a network that changes its address has a gap then, until it is planned
    again.
    """
    hop = next((each for each in network.next_hops if each.version == version), NextHop(version))
    source = own_source(network, hop.gateway) if version == 4 and ruled else None
    where = table_of(network), EVERYWHERE[version], network.index
    return Route(*where, hop.gateway, metrics.get((version, network.index), b""), source)


def own_source(network: Network, gateway: Address | None) -> Address | None:
    """Return the address of IPv4 that the kernel would choose on a network's link."""
    own = [each for each in network.addresses if each.version == 4]
    near = [each for each in own if gateway is not None and gateway in each.network]
    return next((each.ip for each in (*near, *own)), None)


def _source_rule(own: Address, table: int, shared: Collection[Address]) -> Rule:
    preference = Preference.SHARED_SOURCE if own in shared else Preference.SOURCE
    return Rule(own.version, preference, table, source=ip_network(own))


def _source_rules(
    network: Network,
    version: int,
    networks: Sequence[Network],
    routes: set[Route],
    shared: Collection[Address],
) -> set[Rule]:
    rules = set()
    table = table_of(network)
    for interface in network.addresses:
        if interface.version != version or interface.ip not in own_addresses(network):
            continue
        rule = _source_rule(interface.ip, table, shared)
        rules.add(rule)
        if rule.preference != Preference.SOURCE:
            continue
        source = rule.source
        rules.add(Rule(version, Preference.SOURCE_ONLY, None, source=source))
        on_link = interface.network
        overlaps = any(
            other is not network
            and any(on_link.overlaps(i.network) for i in other.addresses if i.version == version)
            for other in networks
        )
        if overlaps and network.up and on_link.prefixlen < on_link.max_prefixlen:
            routes.add(Route(table, on_link, network.index))
            rules.add(
                Rule(
                    version,
                    Preference.ON_LINK,
                    table,
                    source=source,
                    suppress_prefixlength=0,
                )
            )
    return rules


def _resolver_rules(networks: Sequence[Network], version: int) -> set[Rule]:
    leading = [network for network in networks if network.leads_out(version)]
    claims = [resolver for network in leading for resolver in set(network.resolvers)]
    return {
        Rule(
            version,
            Preference.RESOLVER,
            table_of(network),
            destination=ip_network(resolver),
            local=True,
        )
        for network in leading
        for resolver in network.resolvers
        if resolver.version == version
        # A public resolver that two networks name belongs to neither.
        and claims.count(resolver) == 1
        and not (resolver.is_loopback or resolver.is_link_local or resolver.is_unspecified)
    }


def steps_of(prefixes: Iterable[Prefix]) -> dict[int, int]:
    """Return a step for each length of these prefixes (of one version), the longest first.

    Of rules with one preference the kernel asks the older one first. So up to 16 lengths have steps of
    their own; of more, the longest ones share the first.
    """
    found: dict[int, int] = {}
    last = -1
    for length, most in sorted({(p.prefixlen, p.max_prefixlen) for p in prefixes}, reverse=True):
        last = found[length] = max(last + 1, round((most - length) * _LAST_STEP / most))
    bound = _LAST_STEP
    for length in sorted(found):
        found[length] = min(found[length], bound)
        bound = max(found[length] - 1, 0)
    return found


def _leading_rules(
    destination: Destination,
    network: Network,
    steps: Mapping[int, int],
    sources: Iterable[IPv6Network],
) -> set[Rule]:
    """Return the rules that lead a destination to a network.

    Where a network has lost its addresses of IPv6, the kernel could give a socket another network's, and
    send what it repeats over that one. So a user's rule holds for these sources alone, and the next rule
    refuses all others.
    """
    rule = _destination_rule(destination, table_of(network), steps)
    if not destination.ruled or rule.version == 4:
        return {rule}
    return {replace(rule, source=source, finds_source=True) for source in sources}


def _sources(network: Network) -> list[IPv6Network]:
    """Return a network's own addresses of IPv6; of many, any (its interface gives own ones alone).

    A router may announce 16 prefixes, and the kernel goes through the rules of all destinations for each
    connection.
    """
    own = sorted(each for each in own_addresses(network) if isinstance(each, IPv6Address))
    # (A rule without a source could not stand beside the others: the kernel takes them for equal.)
    return [*map(IPv6Network, own)] if len(own) <= _MOST_SOURCES else [*_HALVES]


def _destination_rule(
    destination: Destination,
    table: int | None,
    steps: Mapping[int, int],
    *,
    last: bool = False,
) -> Rule:
    """Return a destination's rule; `last`: the kernel asks it after the other one of that destination."""
    prefix = destination.prefix
    # A port counts more than any prefix.
    step = steps[prefix.prefixlen] + (0 if destination.port is not None else _LAST_STEP + 1)
    preference = Preference.DESTINATION + step
    if destination.ruled:
        preference = Preference.RULED + 2 * step + last
    return Rule(
        prefix.version,
        preference,
        table,
        destination=prefix if prefix.prefixlen else None,
        local=True,
        protocol=destination.protocol,
        port=destination.port,
    )

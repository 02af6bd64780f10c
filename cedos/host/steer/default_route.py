"""The host's own default of each IP version, where cedos leaves it alone, and rules that ours overtake.

Without our rules the kernel asks the others in order, and takes the best default route of the first
table that has one; routes that cover the Internet in parts are more specific than it. Where that leads
into a VPN, over an interface that is no network, or nowhere, it stays. So does what is asked before our
rules. Only where it leads over a network may cedos choose another one; parts are overruled then, as a
network may announce them (DHCP's option 121) to draw everything to itself.

A user's rule holds beside all of these but a VPN and nowhere: a network that the daemon has not been told
of yet, or that has no address, looks like an interface that is no network.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from ipaddress import IPv4Network, IPv6Network, collapse_addresses
from typing import Final

from cedos.controller.events import HostDefault
from cedos.host.steer.routing_plan import FIRST_PREFERENCE, LAST_PREFERENCE
from cedos.kernel.interface_kind import TUNNEL_KINDS
from cedos.kernel.policy_routing import LARGEST_PARTS, MAIN_TABLE, SeenRoute, SeenRule
from cedos.kernel.rtnetlink import Link
from cedos.model import Network

# (VPNs hold back by a dummy what is not to leave while they are down.)
_KINDS: Final = TUNNEL_KINDS | {"ppp", "dummy"}
# ARPHRD: NONE, PPP, TUNNEL, TUNNEL6, SIT, IPGRE, IP6GRE, RAWIP.
_TYPES: Final = frozenset((65534, 512, 768, 769, 776, 778, 823, 519))
_MAIN_PREFERENCE: Final = 32766
# A route that covers at least this many addresses leads everywhere: IPv4 without multicast and
# some private networks, IPv6 the addresses in use (2000::/3).
_MOST_ADDRESSES: Final = {4: 0.8 * 2**32, 6: 0.9 * 2**125}
_IN_USE: Final = 0b001


@dataclass(frozen=True, slots=True)
class Foreign:
    """The routing that other programs have put in.

    `defaults` has the host's own default by each IP version that cedos leaves alone; `notes` say what
    was found, in words. `overruled` has the length of the longest part of a default, by each IP version
    whose parts cedos does not leave alone.
    """

    defaults: Mapping[int, HostDefault] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    overruled: Mapping[int, int] = field(default_factory=dict)


def examine(
    rules: Sequence[SeenRule],
    routes: Sequence[SeenRoute],
    links: Sequence[Link],
    networks: Collection[Network],
) -> Foreign:
    """Find the defaults that stay, and rules that ours would overtake.

    `networks` are all access networks: never tunnels, even if they look so (a modem is a raw IP
    interface).
    """
    by_index = {link.index: link for link in links}
    defaults: dict[int, HostDefault] = {}
    overruled: dict[int, int] = {}
    notes = []
    for version in (4, 6):
        own = [rule for rule in rules if rule.version == version and not rule.ours]
        notes += [
            f"cedos overrides another program's IPv{version} rule {rule.preference}. With a"
            " preference below 32000 it would stay in force"
            for rule in own
            if LAST_PREFERENCE < rule.preference < _MAIN_PREFERENCE
            and rule.table is not None
            and not rule.general
        ]
        ours = {each.index for each in networks if _may_be_steered(each, version)}
        ours |= {each.translator.index for each in networks if each.translator is not None}
        there = [route for route in routes if route.version == version]
        found = _host_default(own, there, by_index, ours)
        if found is not None:
            defaults[version] = found
            notes.append(_note(version, found))
            continue
        parts = _parts([route for route in there if route.table == MAIN_TABLE])
        lengths = [route.destination.prefixlen for route in parts if route.index in ours]
        if lengths:
            overruled[version] = max(lengths)
    return Foreign(defaults, tuple(notes), overruled)


def _note(version: int, found: HostDefault) -> str:
    if found.vpn:
        return (
            f"a VPN ({found.interface}) carries all IPv{version} traffic, and cedos leaves it alone"
        )
    if not found.interface:
        return f"{found.what} refuses all IPv{version} traffic, and cedos leaves it alone"
    return (
        f"the host's own IPv{version} default is {found.interface} ({found.what}), and cedos leaves it"
        " alone"
    )


def _may_be_steered(network: Network, version: int) -> bool:
    """Return whether cedos does better than the host's default over this network.

    It does not for IPv4 over a network without an address: the host lends it one of another interface.
    """
    return network.up or version == 6 or not network.carrier


def _host_default(
    rules: Sequence[SeenRule],
    routes: Sequence[SeenRoute],
    links: Mapping[int, Link],
    ours: Collection[int],
) -> HostDefault | None:
    """Return the default that the kernel would find without our rules, where that one stays."""
    main = SeenRule(4, _MAIN_PREFERENCE, MAIN_TABLE, True, False, None)
    asked = [
        rule for rule in rules if rule.general and rule.table is not None and not rule.suppresses
    ]
    if not any(rule.table == MAIN_TABLE for rule in asked):
        asked.append(main)
    for rule in sorted(asked, key=lambda each: each.preference):
        inside = [route for route in routes if route.table == rule.table]
        parts = _parts(inside)
        whole = [route for route in inside if not route.destination.prefixlen]
        best = next(_in_order(parts or whole, links), None)
        if best is None:
            continue
        found, first = _read_default(best, links, ours), rule.preference < FIRST_PREFERENCE
        if found is None and first:
            name = links[best.index].name if best.index in links else "?"
            found = HostDefault(
                name, vpn=False, what=f"by another program's rule {rule.preference}"
            )
        return found and replace(found, first=first)
    return None


def _in_order(routes: Sequence[SeenRoute], links: Mapping[int, Link]) -> Iterator[SeenRoute]:
    """Yield default routes, or parts of one, the kernel's choice first.

    What leads over a link that is down is left out, unless it leads into a tunnel: a VPN may hold
    everything back on purpose.
    """
    for route in sorted(routes, key=lambda each: each.rank):
        link = links.get(route.index)
        if link is None or link.running or _is_tunnel(link):
            yield route


def _parts(routes: Sequence[SeenRoute]) -> list[SeenRoute]:
    """Return the routes that together cover the Internet (0.0.0.0/1 and 128.0.0.0/1, say), if any do."""
    parts = [
        route
        for route in routes
        if 0 < route.destination.prefixlen <= LARGEST_PARTS and _in_use(route)
    ]
    if not parts:
        return []
    if parts[0].version == 4:
        four = [part.destination for part in parts if isinstance(part.destination, IPv4Network)]
        covered = sum(each.num_addresses for each in collapse_addresses(four))
    else:
        six = [part.destination for part in parts if isinstance(part.destination, IPv6Network)]
        covered = sum(min(each.num_addresses, 2**125) for each in collapse_addresses(six))
    return parts if covered >= _MOST_ADDRESSES[parts[0].version] else []


def _in_use(route: SeenRoute) -> bool:
    """Return whether a part has addresses of the Internet."""
    prefix = route.destination
    if prefix.version == 4:
        return True
    length = min(prefix.prefixlen, 3)
    return int(prefix.network_address) >> (128 - length) == _IN_USE >> (3 - length)


def _read_default(
    route: SeenRoute, links: Mapping[int, Link], ours: Collection[int]
) -> HostDefault | None:
    """Return the default by a route that is not over networks alone; None: it is over networks."""
    if not route.index:
        return HostDefault("", vpn=False, what="a default route of the host")
    for index in (route.index, *route.others):
        link = links.get(index)
        if link is not None and index not in ours and (link.running or _is_tunnel(link)):
            tunnel = _is_tunnel(link)
            return HostDefault(link.name, tunnel, link.kind or "no network of cedos")
    return None


def _is_tunnel(link: Link) -> bool:
    return link.kind in _KINDS or link.type in _TYPES

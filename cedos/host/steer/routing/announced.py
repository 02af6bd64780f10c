"""Rules by which ruled destinations go before the routes that a network announces.

The kernel asks the main table's specific routes early (`Preference.SPECIFIC`), and there a network puts
what it likes: one server's address, or both halves of the Internet (DHCP's option 121, RFC 4191). So what
is ruled skips the main table (`goto`), whether or not it has such a route yet, and comes to the networks
of bound sockets and to the users' rules. Main's routes are still asked first where they lead

- into a VPN, or to containers: over an interface that is no network of cedos
- over the very network that the rule names
- within a rule for more than that, to a network's own subnet
- for what is bound to an interface, over that interface.

Where a network's parts of the Internet make a whole, main's prefixes of such lengths count no more than a
default route, whatever is ruled; those into a VPN do.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Final, Generic, TypeVar

from cedos.host.steer.journal.records import is_interface_name
from cedos.host.steer.routing.plan import BEHIND_MAIN, Destination, Preference, steps_of
from cedos.kernel.policy_routing import MAIN_TABLE, Prefix, Rule, SeenRoute
from cedos.model import Network

# A network may call that much its own subnet, and no more.
_LARGEST_SUBNET: Final = {4: 8, 6: 48}
# Of the routes within one destination that lead elsewhere than what is around them: the widest.
_MOST_WITHIN: Final = 256
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
            if interface.network.prefixlen >= _LARGEST_SUBNET[interface.version]
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

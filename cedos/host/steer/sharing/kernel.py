"""The kernel as sharing changes it: addresses, neighbours, rules, routes, forwarding.

Everything bears `SHARING_PROTOCOL`. The two sides are told apart by the preferences of their rules and
by their tables, so that a host may be both.
"""

import errno
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from ipaddress import IPv4Address, ip_network
from pathlib import Path
from typing import Final

from cedos.errors import HostError
from cedos.host.steer.journal_records import is_interface_name
from cedos.host.steer.kernel.routing_requests import RoutingTables
from cedos.kernel import conntrack, policy_routing, rtnetlink
from cedos.kernel.netlink import (
    NETLINK_NETFILTER,
    NLM_F_CREATE,
    NLM_F_EXCL,
    NLM_F_REPLACE,
    Requester,
)
from cedos.kernel.policy_routing import (
    HELPER_TABLES,
    MAIN_TABLE,
    REQUESTOR_TABLES,
    SHARING_PROTOCOL,
    Prefix,
    Route,
    Rule,
    SeenRoute,
)
from cedos.kernel.rtnetlink import Link, LinkAddress, Neighbour, interface_name

_GONE: Final = (errno.ENOENT, errno.ESRCH, errno.ENODEV, errno.EADDRNOTAVAIL)
_LINK_LOCAL: Final = ip_network("169.254.0.0/16")
_SETTINGS: Final = Path("/proc/sys/net/ipv4/conf")
# Where clouds' hosts ask their provider, for passwords among others. No neighbour takes these addresses.
PROVIDERS: Final = (ip_network("169.254.169.0/24"), ip_network("169.254.170.0/24"))
# The most requestors of a helper, or helpers of a requestor; each has a table of its own.
MOST_NEIGHBOURS: Final = len(HELPER_TABLES)


@dataclass(frozen=True, slots=True)
class _Numbers:
    tables: range
    first_preference: int
    last_preference: int


class SharingRole(Enum):
    """The side of sharing; one process of each side may run on a host."""

    HELP = _Numbers(REQUESTOR_TABLES, 31_900, 31_949)
    REQUEST = _Numbers(HELPER_TABLES, 31_950, 31_999)

    def table(self, slot: int) -> int:
        return self.value.tables[slot]

    @property
    def preference(self) -> int:
        return self.value.first_preference

    def owns_table(self, table: int) -> bool:
        return table in self.value.tables

    def owns_rule(self, preference: int) -> bool:
        return self.value.first_preference <= preference <= self.value.last_preference


class SharingKernel(RoutingTables):
    """The kernel of the calling thread's namespace. Refusals are OSError; HostError without rtnetlink."""

    def __init__(self) -> None:
        super().__init__(SHARING_PROTOCOL)

    # -- links, addresses, neighbours ---------------------------------------------------------

    def link(self, name: str) -> Link:
        """Return an interface. HostError: there is none, or it is down."""
        found = next((each for each in self.links() if each.name == name), None)
        if found is None or not found.carries:
            what = "is down" if found else "does not exist"
            raise HostError(f"{name} {what}; an interface that is up would be right")
        return found

    def addresses(self) -> list[LinkAddress]:
        answers = self._routing.dump(rtnetlink.RTM_GETADDR, rtnetlink.addresses_request())
        return [each for each in map(rtnetlink.parse_address, answers) if each is not None]

    def own_addresses(self) -> list[LinkAddress]:
        return [each for each in self.addresses() if each.protocol == SHARING_PROTOCOL]

    def add_address(self, index: int, own: IPv4Address, price: int = 0) -> None:
        """Add an address. Its price (millionths for 10^9 bytes) is its metric, which the daemon reads."""
        metric = min(price, rtnetlink.MOST_METRIC)
        request = rtnetlink.address_request(index, own, SHARING_PROTOCOL, metric=metric)
        self._change(rtnetlink.RTM_NEWADDR, NLM_F_CREATE | NLM_F_EXCL, [request], errno.EEXIST)

    def prefer_address(self, index: int, own: IPv4Address, preferred: bool, price: int = 0) -> None:
        """Set whether an address is deprecated. OSError: there is none, among others."""
        metric = min(price, rtnetlink.MOST_METRIC)
        request = rtnetlink.address_request(
            index, own, SHARING_PROTOCOL, preferred=preferred, metric=metric
        )
        self._change(rtnetlink.RTM_NEWADDR, NLM_F_REPLACE, [request])

    def delete_address(self, index: int, own: IPv4Address) -> None:
        request = rtnetlink.address_request(index, own, SHARING_PROTOCOL)
        self._change(rtnetlink.RTM_DELADDR, 0, [request], *_GONE)

    def neighbours(self) -> list[Neighbour]:
        request = rtnetlink.neighbours_request(0)
        answers = self._routing.dump(rtnetlink.RTM_GETNEIGH, request)
        return [each for each in map(rtnetlink.parse_neighbour, answers) if each is not None]

    def add_neighbour(self, neighbour: Neighbour) -> None:
        request = rtnetlink.neighbour_request(neighbour)
        self._change(rtnetlink.RTM_NEWNEIGH, NLM_F_CREATE | NLM_F_REPLACE, [request])

    def delete_neighbour(self, neighbour: Neighbour) -> None:
        request = rtnetlink.neighbour_request(neighbour)
        self._change(rtnetlink.RTM_DELNEIGH, 0, [request], *_GONE)

    # -- routing ------------------------------------------------------------------------------

    def default_routes(self) -> list[SeenRoute]:
        """Return the main table's default routes of IPv4, the preferred one first."""
        routes = [each for each in self._routes(0) if each.table == MAIN_TABLE and each.index]
        return sorted((each for each in routes if not each.destination.prefixlen), key=_rank)

    def own_routes(self, role: SharingRole) -> list[Route]:
        return [
            Route(each.table, each.destination, each.index, each.gateway, source=each.source)
            for each in self._routes(SHARING_PROTOCOL)
            if each.protocol == SHARING_PROTOCOL and role.owns_table(each.table)
        ]

    def own_rules(self, role: SharingRole) -> list[Rule]:
        rules = (each.rule for each in self.rules() if role.owns_rule(each.preference))
        return [each for each in rules if each is not None]

    def _routes(self, protocol: int) -> list[SeenRoute]:
        request = policy_routing.routes_request(4, protocol=protocol)
        answers = self._routing.dump(rtnetlink.RTM_GETROUTE, request)
        return [each for each in map(policy_routing.parse_route, answers) if each is not None]

    # -- forwarding ---------------------------------------------------------------------------

    def forget_requestors(self) -> None:
        """Have connection tracking forget requestors' connections, or a router translates them on."""
        asking = Requester(NETLINK_NETFILTER)
        try:
            answers = asking.dump(conntrack.GET, conntrack.dump_request())
            for each in filter(None, map(conntrack.parse, answers)):
                flow = conntrack.flow_of(each, _LINK_LOCAL.__contains__)
                if flow is not None and each.reply.destination != each.original.source:
                    with suppress(FileNotFoundError):  # it has ended
                        asking.ask(conntrack.DELETE, conntrack.delete_request(flow[0]))
        finally:
            asking.close()

    def forwards(self, interface: str) -> bool:
        """Return whether IPv4 packets that arrive there may be forwarded. OSError: it is gone."""
        return _forwarding(interface).read_text().strip() != "0"

    def forward(self, interface: str, on: bool) -> None:
        _forwarding(interface).write_text(f"{int(on)}\n")

    def forwarding_name(self, index: int) -> str | None:
        """Return what an interface that forwards is called now.

        None: it is gone or forwards nothing, or another program has made the whole host a router.
        """
        name = interface_name(index)
        return name if name and self.forwards(name) and not self.forwards("all") else None

    def close(self) -> None:
        """Give up the socket; nothing that was changed is undone by this."""
        self._routing.close()


def _forwarding(interface: str) -> Path:
    if not is_interface_name(interface):
        raise OSError(errno.EINVAL, "is no name of an interface", interface)
    return _SETTINGS / interface / "forwarding"


def host(of: IPv4Address) -> Prefix:
    """Return an address as the prefix that holds nothing else."""
    return ip_network(of)


def _rank(route: SeenRoute) -> tuple[int, int]:
    return route.rank

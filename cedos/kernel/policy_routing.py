"""Policy rules and routes as data, and routes as the kernel lists them (linux/rtnetlink.h).

What changes them is asked for by `cedos.host.steer.kernel.routing_requests`.
"""

import errno
import socket
import struct
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from ipaddress import IPv4Network, IPv6Address, IPv6Network, ip_network
from typing import Final

from cedos.errors import HostError
from cedos.kernel.netlink import (
    NETLINK_ROUTE,
    NetlinkMessage,
    Requester,
    attribute,
    attributes,
    read_unsigned,
)
from cedos.kernel.process_limits import OUT_OF_FILES
from cedos.kernel.rtnetlink import (
    FAMILIES,
    RTM_DELROUTE,
    RTM_GETROUTE,
    RTM_NEWROUTE,
    VERSIONS,
    interface_name,
)
from cedos.model import Address, address

Prefix = IPv4Network | IPv6Network

# The mark of the daemon's rules and routes (FRA_PROTOCOL, RTA protocol; see iproute2's rt_protos).
PROTOCOL: Final = 206
# The mark of what sharing adds: addresses (IFA_PROTO), neighbours, rules, routes.
SHARING_PROTOCOL: Final = 207
# The tables of a requestor's helpers, one each; then those of a helper's requestors.
HELPER_TABLES: Final = range(7_200_100, 7_200_164)
REQUESTOR_TABLES: Final = range(7_200_000, 7_200_064)
MAIN_TABLE: Final = 254
LOOPBACK_INDEX: Final = 1
EVERYWHERE: Final[dict[int, Prefix]] = {4: ip_network("0.0.0.0/0"), 6: ip_network("::/0")}
PROTOCOLS: Final = {
    "tcp": socket.IPPROTO_TCP,
    "udp": socket.IPPROTO_UDP,
    "icmp": socket.IPPROTO_ICMP,
}
_U32: Final = struct.Struct("=I")

# -- rules ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Rule:
    """A policy rule of ours. `table` None: matching packets are unreachable.

    Or, with `goto`, the kernel goes on at that preference.
    `local` restricts it to packets that this host itself sends, so that forwarded packets of containers
    and guests are left alone; `arrival` to those that arrive at this interface. `protocol` and `port`
    are those of the destination; `mark` and `source_port` are those of the socket. With `finds_source`
    (IPv6) a socket that has no address counts as having the one that the kernel would choose for it on
    the route that the rule finds.
    """

    version: int
    preference: int
    table: int | None
    source: Prefix | None = None
    destination: Prefix | None = None
    interface: str | None = None
    local: bool = False
    arrival: str | None = None
    protocol: str | None = None
    port: int | None = None
    source_port: int | None = None
    mark: int | None = None
    suppress_prefixlength: int | None = None
    goto: int | None = None
    finds_source: bool = False

    def __str__(self) -> str:
        words = [f"-{self.version} rule pref {self.preference}"]
        words += [f"from {self.source or 'all'}"]
        words += ["or unbound"] if self.finds_source else []
        words += [f"to {self.destination}"] if self.destination else []
        words += ["iif lo"] if self.local else []
        words += [f"iif {self.arrival}"] if self.arrival else []
        words += [f"oif {self.interface}"] if self.interface else []
        words += [f"ipproto {self.protocol}"] if self.protocol else []
        words += [f"sport {self.source_port}"] if self.source_port is not None else []
        words += [f"dport {self.port}"] if self.port is not None else []
        words += [f"fwmark {self.mark:#x}"] if self.mark is not None else []
        if self.goto is not None:
            words += [f"goto {self.goto}"]
        else:
            words += ["unreachable" if self.table is None else f"lookup {_table_name(self.table)}"]
        if self.suppress_prefixlength is not None:
            words += [f"suppress_prefixlength {self.suppress_prefixlength}"]
        return " ".join(words)


@dataclass(frozen=True, slots=True)
class SeenRule:
    """A rule as the kernel lists it. `ours`: it bears the daemon's mark; then `rule` is its content.

    `general`: it applies to any packet, except perhaps to marked ones. `table` is None for actions
    other than a look-up. `suppresses`: it finds no default route in its table.
    """

    version: int
    preference: int
    table: int | None
    general: bool
    ours: bool
    rule: Rule | None
    suppresses: bool = False


def _table_name(table: int) -> str:
    return "main" if table == MAIN_TABLE else str(table)


# -- next-hop objects (linux/nexthop.h) ------------------------------------------------------------

# A route may name a nexthop object by number instead of an interface. The kernel lists the interface
# and gateway beside the number, unless net.ipv4.nexthop_compat_mode is 0.
RTM_NEWNEXTHOP, RTM_GETNEXTHOP = 104, 106
_OBJECT: Final = struct.Struct("=BBBxI")  # family, scope, protocol, flags
_MEMBER: Final = struct.Struct("=IBBH")  # number, weight and its high byte, nothing
_NHA_ID, _NHA_GROUP, _NHA_OIF, _NHA_GATEWAY = 1, 2, 5, 6


@dataclass(frozen=True, slots=True)
class NexthopObject:
    """An interface and a gateway, or a group of other objects (`members`, their numbers)."""

    number: int
    index: int
    gateway: Address | None = None
    members: tuple[int, ...] = ()


NexthopObjects = Mapping[int, NexthopObject]


def nexthops_request() -> bytes:
    """Return the request (a dump) for all objects."""
    return _OBJECT.pack(0, 0, 0, 0)


def parse_nexthops(messages: Iterable[NetlinkMessage]) -> dict[int, NexthopObject]:
    """Return the objects among messages by their numbers."""
    parsed = filter(None, map(parse_nexthop, messages))
    return {each.number: each for each in parsed}


def parse_nexthop(message: NetlinkMessage) -> NexthopObject | None:
    """Return the object of an RTM_NEWNEXTHOP; None for anything else."""
    if message.type != RTM_NEWNEXTHOP or len(message.payload) < _OBJECT.size:
        return None
    found = attributes(message.payload, _OBJECT.size)
    gateway, group = found.get(_NHA_GATEWAY, b""), found.get(_NHA_GROUP, b"")
    whole = len(group) - len(group) % _MEMBER.size
    return NexthopObject(
        read_unsigned(found.get(_NHA_ID)) or 0,
        read_unsigned(found.get(_NHA_OIF)) or 0,
        address(gateway) if len(gateway) in {4, 16} else None,
        tuple(number for number, *_ in _MEMBER.iter_unpack(group[:whole])),
    )


def hops_of(number: int, objects: NexthopObjects) -> Iterator[tuple[int, Address | None]]:
    """Yield the interfaces and gateways that an object stands for."""
    found = objects.get(number)
    # A group's members are no groups.
    members = [objects[each] for each in found.members if each in objects] if found else []
    for one in members or ([found] if found else []):
        if one.index:
            yield one.index, one.gateway


# -- routes ---------------------------------------------------------------------------------------

# Family, lengths of destination and source, TOS, table, protocol, scope, type, flags.
_ROUTE: Final = struct.Struct("=BBBBBBBBI")
_NEXT_HOP: Final = struct.Struct("=HBBi")  # length, flags, weight, index
_RTA_DST, _RTA_SRC, _RTA_OIF, _RTA_GATEWAY, _RTA_PRIORITY = 1, 2, 4, 5, 6
_RTA_PREFSRC = 7
_RTA_METRICS, _RTA_MULTIPATH, _RTA_TABLE, _RTA_VIA, _RTA_PREF = 8, 9, 15, 18, 20
_RTA_NH_ID: Final = 30
_NO_OBJECTS: Final[NexthopObjects] = {}
RTN_UNICAST, RTN_LOCAL, RTN_BROADCAST, RTN_ANYCAST, RTN_UNREACHABLE, RTN_THROW = 1, 2, 3, 4, 7, 9
# The host itself takes what goes to these: its addresses, and those of its prefixes' routers (RFC 4291).
DELIVERED_HERE: Final = (RTN_LOCAL, RTN_ANYCAST)
# The kernel's words where no route leads on, or it does not have the version of IP.
_NO_ROUTE: Final = (
    errno.ENETUNREACH, errno.EHOSTUNREACH, errno.EACCES, errno.EINVAL, errno.EAGAIN,
    errno.EOPNOTSUPP, errno.EAFNOSUPPORT,
)  # fmt: skip
REFUSING_TYPES: Final = (6, RTN_UNREACHABLE, 8)  # and RTN_BLACKHOLE, RTN_PROHIBIT
# The preference of a router among those of the same metric (RFC 4191): high, medium, low.
_RANKS: Final = {1: 0, 0: 1, 3: 2}
LOCAL_TABLE, _STATIC = 255, 4
_RTM_F_FIB_MATCH: Final = 0x2000  # answer with the table's entry; without one, refuse
_DST_LEN_AT, _TABLE_AT, _PROTOCOL_AT = 1, 4, 5
_KERNEL, _ANNOUNCED = 2, 9  # RTPROT_KERNEL, RTPROT_RA
MOST_ROUTERS: Final = 64
_MOST_SPECIFIC: Final = 256
# The longest time for a dump of routes; 100,000 of them take 0.2 s. While a neighbour announces more, the
# kernel begins its walk anew for each part of the answer: 244,000 took longer than 40 s.
ROUTES_S: Final = 1.0
# The longest prefix that counts as a part of the Internet. Longer ones are a site's own networks.
LARGEST_PARTS: Final = 8


@dataclass(frozen=True, slots=True)
class Route:
    """A route of ours. No `gateway`: the destination is on the link itself.

    `metrics` are the kernel's own bytes (RTA_METRICS), as the host's route has them: MTU and such.
    `source`: the address of this host that an unbound socket gets there; None: the kernel's choice.
    `type` (RTN_...): one that refuses, or from which the kernel goes on to the next rule, has no `index`.
    """

    table: int
    destination: Prefix
    index: int
    gateway: Address | None = None
    metrics: bytes = b""
    source: Address | None = None
    type: int = RTN_UNICAST

    def __str__(self) -> str:
        via = f"via {self.gateway} " if self.gateway else ""
        dev = (
            f"dev {interface_name(self.index) or f'#{self.index}'}"
            if self.index
            else f"type {self.type}"
        )
        out = f"{dev} table {self.table}"
        source = f" src {self.source}" if self.source else ""
        name = "default" if self.destination.prefixlen == 0 else str(self.destination)
        return f"-{self.destination.version} route {name} {via}{out}{source}"


@dataclass(frozen=True, slots=True)
class SeenRoute:
    """A route as the kernel lists it; of several next hops the first.

    `index` is 0 where the host refuses what goes there; `others` are the interfaces of further next hops.
    The kernel takes the route with the lowest `rank`: its metric, then its router's preference.
    """

    version: int
    table: int
    destination: Prefix
    index: int
    metric: int
    protocol: int
    gateway: Address | None
    metrics: bytes
    source: Address | None = None
    others: tuple[int, ...] = ()
    router_rank: int = 1
    type: int = RTN_UNICAST

    @property
    def rank(self) -> tuple[int, int]:
        return self.metric, self.router_rank


@dataclass(frozen=True, slots=True)
class DefaultRoute:
    """A default route of the main table; `gateway` is None on point-to-point links.

    The kernel takes the route with the lowest `rank`: its metric, then its router's preference.
    """

    index: int
    version: int
    gateway: Address | None
    metric: int
    router_rank: int = 1

    @property
    def rank(self) -> tuple[int, int]:
        return self.metric, self.router_rank


def routes_request(version: int, *, table: int = 0, protocol: int = 0) -> bytes:
    """Return the request (a dump) for routes, filtered by table (under 256) and protocol if possible."""
    return _ROUTE.pack(FAMILIES[version], 0, 0, 0, table, protocol, 0, 0, 0)


def lookup_request(
    remote: Address, local: Address | None = None, index: int | None = None
) -> bytes:
    """Return the request for a packet's route: from `local`, through interface `index`."""
    size = remote.max_prefixlen
    parts = [
        _ROUTE.pack(
            FAMILIES[remote.version], size, size if local else 0, 0, 0, 0, 0, 0, _RTM_F_FIB_MATCH
        ),
        attribute(_RTA_DST, remote.packed),
    ]
    if local is not None:
        parts.append(attribute(_RTA_SRC, local.packed))
    if index is not None:
        parts.append(attribute(_RTA_OIF, _U32.pack(index)))
    return b"".join(parts)


def route_type(to: Address) -> int:
    """Return the type (RTN_...) of the route that this process's packets to an address take.

    Without a route it is RTN_UNREACHABLE. If nothing tells, the address may be this host's: RTN_LOCAL.
    OSError: no file is left to ask with.
    """
    try:
        asking = Requester(NETLINK_ROUTE)
    except (HostError, OSError) as error:
        cause = error.__cause__ or error
        if isinstance(cause, OSError) and cause.errno in OUT_OF_FILES:
            raise cause from None
        return RTN_LOCAL
    try:
        (answer,) = asking.ask(RTM_GETROUTE, lookup_request(to), flags=0)
    except OSError as error:
        return RTN_UNREACHABLE if error.errno in _NO_ROUTE else RTN_LOCAL
    finally:
        asking.close()
    return int(_ROUTE.unpack_from(answer.payload)[7])


def own_prefix_request(within: IPv6Network, metric: int) -> bytes:
    """Return the request for a route that makes all addresses of an IPv6 prefix this host's own.

    The same message deletes it (RTM_DELROUTE), but no other one for the same prefix, whose `metric` is
    another. Packets to these addresses have the source ::1.
    """
    header = _ROUTE.pack(
        socket.AF_INET6, within.prefixlen, 0, 0, LOCAL_TABLE, _STATIC, 0, RTN_LOCAL, 0
    )
    return (
        header
        + attribute(_RTA_DST, within.network_address.packed)
        + attribute(_RTA_OIF, _U32.pack(LOOPBACK_INDEX))
        + attribute(_RTA_PREFSRC, IPv6Address("::1").packed)
        + attribute(_RTA_PRIORITY, _U32.pack(metric))
    )


def own_prefix_metrics(asking: Requester, within: IPv6Network) -> set[int]:
    """Return the metrics of the routes that make a whole prefix this host's own."""
    found = set()
    for each in asking.dump(RTM_GETROUTE, routes_request(6, table=LOCAL_TABLE), is_of_host):
        if (route := parse_route(each, (RTN_LOCAL,))) is not None and route.destination == within:
            found.add(route.metric)
    return found


def parse_route(
    message: NetlinkMessage,
    types: Collection[int] = (RTN_UNICAST,),
    objects: NexthopObjects = _NO_OBJECTS,
) -> SeenRoute | None:
    """Return the route of an RTM_NEWROUTE of one of these types; None for anything else.

    `objects`: what routes may name as their next hops.
    """
    payload = message.payload
    if message.type != RTM_NEWROUTE or len(payload) < _ROUTE.size:
        return None
    family, dst_len, _, _, table, protocol, _, kind, _ = _ROUTE.unpack_from(payload)
    goes_on = kind == RTN_THROW and protocol == PROTOCOL
    if family not in VERSIONS or (kind not in types and not goes_on):
        return None
    version = VERSIONS[family]
    found = attributes(payload, _ROUTE.size)
    # A route that refuses has no next hops.
    hops = [] if goes_on or kind in REFUSING_TYPES else list(_next_hops(found, objects))
    index, gateway = hops[0] if hops else (0, None)
    return SeenRoute(
        version,
        # The header's byte holds only numbers of tables under 256; the attribute holds any.
        read_unsigned(found.get(_RTA_TABLE)) or table,
        _prefix(found.get(_RTA_DST), dst_len) or EVERYWHERE[version],
        index,
        read_unsigned(found.get(_RTA_PRIORITY)) or 0,
        protocol,
        gateway,
        found.get(_RTA_METRICS, b""),
        address(source) if len(source := found.get(_RTA_PREFSRC, b"")) in {4, 16} else None,
        tuple(other for other, _ in hops[1:]),
        _router_rank(found),
        kind,
    )


def parse_default_routes(
    message: NetlinkMessage, objects: NexthopObjects = _NO_OBJECTS
) -> list[DefaultRoute]:
    """Return the main table's default routes of an RTM_NEWROUTE or RTM_DELROUTE, one a next hop."""
    found = _main_default(message)
    if found is None:
        return []
    version = VERSIONS[message.payload[0]]
    metric = read_unsigned(found.get(_RTA_PRIORITY)) or 0
    return [
        DefaultRoute(index, version, gateway, metric, _router_rank(found))
        for index, gateway in _next_hops(found, objects)
    ]


def is_main_default(message: NetlinkMessage) -> bool:
    """Return whether a message is of a default route of the main table."""
    return _main_default(message) is not None


def prefix_of_host(message: NetlinkMessage) -> Prefix | None:
    """Return the prefix of a local route, which makes all its addresses this host's.

    None: the message is of another route, or of one address, whose own message tells of it.
    """
    payload = message.payload
    if message.type not in (RTM_NEWROUTE, RTM_DELROUTE) or len(payload) < _ROUTE.size:
        return None
    family, dst_len, _, _, table, _, _, kind, _ = _ROUTE.unpack_from(payload)
    if table != LOCAL_TABLE or kind != RTN_LOCAL or family not in VERSIONS:
        return None
    if dst_len == EVERYWHERE[VERSIONS[family]].max_prefixlen:
        return None
    return _prefix(attributes(payload, _ROUTE.size).get(_RTA_DST), dst_len)


def is_of_host(message: NetlinkMessage) -> bool:
    """Return whether a message is of a local route of more than one address."""
    return prefix_of_host(message) is not None


def is_of_sharing(message: NetlinkMessage) -> bool:
    """Return whether a message is of a route that sharing made."""
    payload = message.payload
    return (
        message.type in (RTM_NEWROUTE, RTM_DELROUTE)
        and len(payload) >= _ROUTE.size
        and payload[_PROTOCOL_AT] == SHARING_PROTOCOL
    )


def _main_default(message: NetlinkMessage) -> dict[int, bytes] | None:
    """Return the attributes of a default route of the main table; None: it is something else."""
    payload = message.payload
    if message.type not in (RTM_NEWROUTE, RTM_DELROUTE) or len(payload) < _ROUTE.size:
        return None
    # Among what may be thousands of routes most go no further than this.
    if payload[_DST_LEN_AT]:
        return None
    family, _, _, _, table, _, _, kind, _ = _ROUTE.unpack_from(payload)
    if family not in VERSIONS or kind != RTN_UNICAST:
        return None
    found = attributes(payload, _ROUTE.size)
    return found if (read_unsigned(found.get(_RTA_TABLE)) or table) == MAIN_TABLE else None


class DefaultRoutesFilter:
    """A filter for one dump of routes: default routes, parts of one, and ours.

    Any neighbour may announce routers and prefixes without end, and the kernel keeps them all. Of the
    announced default routes the first 64 of each interface pass: the kernel lists the best ones first.
    """

    def __init__(self) -> None:
        self._announced: Counter[int] = Counter()

    def __call__(self, message: NetlinkMessage) -> bool:
        payload = message.payload
        # Messages that are no routes pass. Of routes only default ones, parts of one and ours do.
        if message.type != RTM_NEWROUTE or not is_default_or_ours(message):
            return message.type != RTM_NEWROUTE
        # Only default routes of router announcements are counted: any neighbour can make them.
        if payload[_PROTOCOL_AT] != _ANNOUNCED or payload[_DST_LEN_AT]:
            return True
        interface = read_unsigned(attributes(payload, _ROUTE.size).get(_RTA_OIF)) or 0
        self._announced[interface] += 1
        return self._announced[interface] <= MOST_ROUTERS


class SpecificRoutesFilter:
    """A filter for one dump of routes: the main table's specific ones, 256 of each interface."""

    def __init__(self) -> None:
        self._seen: Counter[int] = Counter()

    def __call__(self, message: NetlinkMessage) -> bool:
        if message.type != RTM_NEWROUTE:
            return True
        if not _is_specific(message.payload):
            return False
        interface = read_unsigned(attributes(message.payload, _ROUTE.size).get(_RTA_OIF)) or 0
        self._seen[interface] += 1
        return self._seen[interface] <= _MOST_SPECIFIC


def changes_specific(message: NetlinkMessage) -> bool:
    """Return whether an event is of a specific route of the main table that a program put in.

    IPv6 routes by the kernel itself or by router announcements are left out: any neighbour makes them.
    """
    payload = message.payload
    if message.type not in (RTM_NEWROUTE, RTM_DELROUTE) or not _is_specific(payload):
        return False
    announced = payload[0] == socket.AF_INET6 and payload[_PROTOCOL_AT] in (_KERNEL, _ANNOUNCED)
    return not announced


def _is_specific(payload: bytes) -> bool:
    return (
        len(payload) >= _ROUTE.size
        and payload[_DST_LEN_AT] > 0
        and payload[_TABLE_AT] == MAIN_TABLE
        and payload[_PROTOCOL_AT] != PROTOCOL
    )


def is_default_or_ours(message: NetlinkMessage) -> bool:
    """Return whether a message is of one of our routes, or of a default route (or a part of one)."""
    payload = message.payload
    return len(payload) >= _ROUTE.size and (
        payload[_DST_LEN_AT] <= LARGEST_PARTS or payload[_PROTOCOL_AT] == PROTOCOL
    )


def _next_hops(
    route: Mapping[int, bytes], objects: NexthopObjects
) -> Iterator[tuple[int, Address | None]]:
    """Yield the indices and gateways of a route's next hops."""
    # One next hop; else several in a multipath attribute, or a nexthop object.
    if index := read_unsigned(route.get(_RTA_OIF)):
        yield index, _gateway(route)
        return
    hops = route.get(_RTA_MULTIPATH, b"")
    if not hops:
        yield from hops_of(read_unsigned(route.get(_RTA_NH_ID)) or 0, objects)
    offset = 0
    while offset + _NEXT_HOP.size <= len(hops):
        length, _, _, index = _NEXT_HOP.unpack_from(hops, offset)
        if length < _NEXT_HOP.size or offset + length > len(hops):
            return
        yield index, _gateway(attributes(hops[offset : offset + length], _NEXT_HOP.size))
        offset += (length + 3) & ~3


def _router_rank(route: Mapping[int, bytes]) -> int:
    return _RANKS.get(read_unsigned(route.get(_RTA_PREF)) or 0, 1)


def _gateway(hop: Mapping[int, bytes]) -> Address | None:
    # RTA_VIA holds a gateway of the other IP version, behind its address family.
    gateway = hop.get(_RTA_GATEWAY) or hop.get(_RTA_VIA, b"")[2:]
    return address(gateway) if len(gateway) in {4, 16} else None


def _prefix(octets: bytes | None, length: int) -> Prefix | None:
    if not octets or not length or len(octets) not in {4, 16} or length > 8 * len(octets):
        return None
    return ip_network((octets, length), strict=False)

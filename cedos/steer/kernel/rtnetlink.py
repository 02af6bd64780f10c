"""Policy rules, routes and links as pyroute2's rtnetlink messages, and what of them we look at."""

import socket
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from ipaddress import ip_address, ip_network
from typing import Any, Final

from pyroute2.netlink import NLA_F_NESTED, nlmsg
from pyroute2.netlink.rtnl import (
    RTM_DELLINK,
    RTM_DELROUTE,
    RTM_DELRULE,
    RTM_NEWLINK,
    RTM_NEWROUTE,
    RTM_NEWRULE,
    RTNLGRP_IPV4_ROUTE,
    RTNLGRP_IPV4_RULE,
    RTNLGRP_IPV6_ROUTE,
    RTNLGRP_IPV6_RULE,
    RTNLGRP_LINK,
    rt_scope,
    rt_type,
)
from pyroute2.netlink.rtnl.fibmsg import FR_ACT_TO_TBL, FR_ACT_UNREACHABLE, fibmsg
from pyroute2.netlink.rtnl.ifinfmsg import IFF_UP, ifinfmsg
from pyroute2.netlink.rtnl.rtmsg import RTNH_F_ONLINK, rtmsg, rtmsg_base

from cedos.kernel import netlink as octets
from cedos.kernel.netlink_commands import Message, attributes
from cedos.model import Address
from cedos.steer.routing.rules import PROTOCOL, PROTOCOLS, Prefix, Route, Rule

GROUPS: Final = (
    RTNLGRP_LINK,
    RTNLGRP_IPV4_ROUTE,
    RTNLGRP_IPV4_RULE,
    RTNLGRP_IPV6_ROUTE,
    RTNLGRP_IPV6_RULE,
)

_INVERT: Final = 2  # FIB_RULE_INVERT
_FIB_MATCH: Final = 0x2000  # RTM_F_FIB_MATCH
_SKIP_STATISTICS: Final = 1 << 3  # RTEXT_FILTER_SKIP_STATS
_NO_PREFIX_LENGTH: Final = 0xFFFFFFFF
# What makes a rule one for some packets only.
_NARROW: Final = frozenset(
    f"FRA_{name}"
    for name in ("OIFNAME", "L3MDEV", "UID_RANGE", "IP_PROTO", "SPORT_RANGE", "DPORT_RANGE")
)

_RULE_HEAD: Final = struct.Struct("=BBBBBxxBI")
_U32: Final = struct.Struct("=I")
_RANGE: Final = struct.Struct("=HH")

_FAMILIES: Final = {4: socket.AF_INET, 6: socket.AF_INET6}
_VERSIONS: Final = {socket.AF_INET: 4, socket.AF_INET6: 6}


class RouteMessage(rtmsg_base, nlmsg):
    """pyroute2's, with the metrics left as they are: they are only handed on."""

    nla_map = tuple(
        (name, "cdata" if name == "RTA_METRICS" else kind) for name, kind in rtmsg.nla_map
    )


class RouteHead(nlmsg):
    """A route without its attributes."""

    fields = rtmsg.fields


class LinkHead(nlmsg):
    """A link without its attributes."""

    fields = ifinfmsg.fields


# What `is_news` wants: of a busy router's thousands of routes nothing else is worth being parsed.
HEADS: Final[Mapping[int, type]] = {
    RTM_NEWROUTE: RouteHead,
    RTM_DELROUTE: RouteHead,
    RTM_NEWLINK: LinkHead,
}


@dataclass(frozen=True, slots=True)
class SeenRule:
    """A rule as the kernel lists it. `ours` where it bears our mark; then `rule` is what it says.

    `general`: it applies to any packet, save perhaps to marked ones. `table` is None for actions
    other than a look-up.
    """

    version: int
    preference: int
    table: int | None
    general: bool
    ours: bool
    rule: Rule | None


@dataclass(frozen=True, slots=True)
class SeenRoute:
    """A route as the kernel lists it; of several next hops the first."""

    version: int
    table: int
    destination: Prefix
    index: int
    metric: int
    protocol: int
    gateway: Address | None
    metrics: bytes


@dataclass(frozen=True, slots=True)
class SeenLink:
    """An interface: its driver's word for a virtual one (`tun`, `wireguard`), its ARPHRD type."""

    index: int
    name: str
    kind: str
    hardware: int


def rule_octets(rule: Rule) -> bytes:
    """A request that adds or deletes a rule; in bytes, since a rescue has no time for pyroute2."""
    table = rule.table or 0
    head = _RULE_HEAD.pack(
        _FAMILIES[rule.version],
        rule.destination.prefixlen if rule.destination else 0,
        rule.source.prefixlen if rule.source else 0,
        0,
        table if table < 256 else 0,
        FR_ACT_UNREACHABLE if rule.table is None else FR_ACT_TO_TBL,
        0,
    )
    source, destination = rule.source, rule.destination
    port, source_port = rule.port, rule.source_port
    suppress, mark = rule.suppress_prefixlength, rule.mark
    # Attributes by their numbers in linux/fib_rules.h (FRA_...).
    values: tuple[tuple[int, bytes | None], ...] = (
        (6, _U32.pack(rule.preference)),
        (21, bytes([PROTOCOL])),
        (15, None if rule.table is None else _U32.pack(rule.table)),
        (1, destination.network_address.packed if destination else None),
        (2, source.network_address.packed if source else None),
        (3, b"lo\0" if rule.local else None),
        (17, rule.interface.encode() + b"\0" if rule.interface else None),
        (22, bytes([PROTOCOLS[rule.protocol]]) if rule.protocol else None),
        (23, None if source_port is None else _RANGE.pack(source_port, source_port)),
        (24, None if port is None else _RANGE.pack(port, port)),
        (10, None if mark is None else _U32.pack(mark)),
        (16, None if mark is None else _U32.pack(0xFFFFFFFF)),
        (14, None if suppress is None else _U32.pack(suppress)),
    )
    return head + b"".join(
        octets.attribute(kind, value) for kind, value in values if value is not None
    )


def rules_request(version: int) -> Message:
    """Asks for all rules of an IP version."""
    return _message(fibmsg(), family=_FAMILIES[version])


def parse_rule(message: Message) -> SeenRule | None:
    """The rule of an RTM_NEWRULE; None for anything else."""
    family = message.get("family")
    if message["header"]["type"] != RTM_NEWRULE or family not in _VERSIONS:
        return None
    version = _VERSIONS[family]
    found = attributes(message)
    preference = found.get("FRA_PRIORITY", 0)
    looked_up = None
    if message["action"] == FR_ACT_TO_TBL:
        looked_up = found.get("FRA_TABLE") or message["table"]
    iif = found.get("FRA_IIFNAME", "")
    general = not (
        message["dst_len"]
        or message["src_len"]
        or message["tos"]
        or ("FRA_FWMARK" in found and not message["flags"] & _INVERT)
        or iif not in ("", "lo")
        or not _NARROW.isdisjoint(found)
    )
    if found.get("FRA_PROTOCOL") != PROTOCOL:
        return SeenRule(version, preference, looked_up, general, False, None)
    suppress = found.get("FRA_SUPPRESS_PREFIXLEN", _NO_PREFIX_LENGTH)
    protocol = found.get("FRA_IP_PROTO")
    ports, source_ports = found.get("FRA_DPORT_RANGE"), found.get("FRA_SPORT_RANGE")
    rule = Rule(
        version,
        preference,
        looked_up,
        source=_prefix(found.get("FRA_SRC"), message["src_len"]),
        destination=_prefix(found.get("FRA_DST"), message["dst_len"]),
        interface=found.get("FRA_OIFNAME"),
        local=iif == "lo",
        protocol=next((name for name, n in PROTOCOLS.items() if n == protocol), None),
        port=int(ports.partition(":")[0]) if ports else None,
        source_port=int(source_ports.partition(":")[0]) if source_ports else None,
        mark=found.get("FRA_FWMARK"),
        suppress_prefixlength=None if suppress == _NO_PREFIX_LENGTH else suppress,
    )
    return SeenRule(version, preference, looked_up, general, True, rule)


def route_message(route: Route) -> Message:
    """A request that adds or deletes a route."""
    destination, gateway = route.destination, route.gateway
    values: dict[str, Any] = {
        "RTA_TABLE": route.table,
        "RTA_OIF": route.index,
        "RTA_DST": str(destination.network_address) if destination.prefixlen else None,
    }
    if gateway is not None and gateway.version == destination.version:
        values["RTA_GATEWAY"] = str(gateway)
    elif gateway is not None:
        values["RTA_VIA"] = {"family": _FAMILIES[gateway.version], "addr": str(gateway)}
    on_link = gateway is None and destination.version == 4
    message = _message(
        RouteMessage(),
        values,
        family=_FAMILIES[destination.version],
        dst_len=destination.prefixlen,
        proto=PROTOCOL,
        scope=rt_scope["link" if on_link else "universe"],
        type=rt_type["unicast"],
        flags=RTNH_F_ONLINK if gateway is not None and not gateway.is_link_local else 0,
    )
    if route.metrics:
        message["attrs"].append(("RTA_METRICS", route.metrics, NLA_F_NESTED))
    return message


def routes_request(version: int, protocol: int = 0) -> Message:
    """Asks for routes; the kernel filters by protocol where it can."""
    return _message(RouteMessage(), family=_FAMILIES[version], proto=protocol)


def parse_route(message: Message) -> SeenRoute | None:
    """The unicast route of an RTM_NEWROUTE; None for anything else."""
    family = message.get("family")
    if (
        message["header"]["type"] != RTM_NEWROUTE
        or family not in _VERSIONS
        or message["type"] != rt_type["unicast"]
    ):
        return None
    version = _VERSIONS[family]
    found = attributes(message)
    hops = found.get("RTA_MULTIPATH") or [{"oif": 0}]
    via = found.get("RTA_VIA", {})
    gateway = found.get("RTA_GATEWAY") or (via["addr"] if via.get("family") in _VERSIONS else None)
    everywhere = ip_network("0.0.0.0/0" if version == 4 else "::/0")
    return SeenRoute(
        version,
        found.get("RTA_TABLE") or message["table"],
        _prefix(found.get("RTA_DST"), message["dst_len"]) or everywhere,
        found.get("RTA_OIF") or hops[0]["oif"],
        found.get("RTA_PRIORITY", 0),
        message["proto"],
        ip_address(gateway) if gateway else None,
        found.get("RTA_METRICS", b""),
    )


def is_news(message: Message) -> bool:
    """Whether an event concerns us: a rule, one of our routes, anybody's default route, a link.

    `message` is one of `HEADS`.
    """
    kind = message["header"]["type"]
    if kind == RTM_NEWLINK:
        # IPv4 routes go with their interface in silence.
        return bool(message["flags"] & IFF_UP)
    if kind in (RTM_NEWROUTE, RTM_DELROUTE):
        return bool(message["dst_len"] <= 1 or message["proto"] == PROTOCOL)
    return kind in (RTM_NEWRULE, RTM_DELRULE, RTM_DELLINK)


def lookup_request(remote: Address, local: Address | None) -> Message:
    """Asks which route a packet would take."""
    size = remote.max_prefixlen
    return _message(
        RouteMessage(),
        {"RTA_DST": str(remote), "RTA_SRC": local and str(local)},
        family=_FAMILIES[remote.version],
        dst_len=size,
        src_len=size if local else 0,
        flags=_FIB_MATCH,
    )


def links_request() -> Message:
    """Asks for all links, without their statistics."""
    return _message(ifinfmsg(), {"IFLA_EXT_MASK": _SKIP_STATISTICS})


def parse_link(message: Message) -> SeenLink | None:
    """The link of an RTM_NEWLINK; None for anything else."""
    if message["header"]["type"] != RTM_NEWLINK:
        return None
    # One by one: parsed is only what is asked for, and a link has much to tell.
    kind = message.get_nested("IFLA_LINKINFO", "IFLA_INFO_KIND")
    name = message.get_attr("IFLA_IFNAME")
    return SeenLink(message["index"], name or "", kind or "", message["ifi_type"])


def _message(message: Message, values: Mapping[str, Any] | None = None, **fields: int) -> Message:
    message.update(fields)
    message["attrs"] = [
        (name, value) for name, value in (values or {}).items() if value is not None
    ]
    return message


def _prefix(address: str | None, length: int) -> Prefix | None:
    return ip_network((address, length), strict=False) if address and length else None

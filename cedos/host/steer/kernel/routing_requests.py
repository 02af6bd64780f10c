"""Rules and routes as the kernel is asked for them, packed by pyroute2; rules are read by it, too.

Routes come in thousands, so those are read by `cedos.kernel.policy_routing`.
"""

import errno
import math
import struct
from collections.abc import Iterable
from contextlib import suppress
from ipaddress import ip_network
from typing import Any, Final

from pyroute2.netlink import NLA_F_NESTED, nlmsg
from pyroute2.netlink.rtnl import rt_scope
from pyroute2.netlink.rtnl.fibmsg import FR_ACT_GOTO, FR_ACT_TO_TBL, FR_ACT_UNREACHABLE, fibmsg
from pyroute2.netlink.rtnl.rtmsg import RTNH_F_ONLINK, rtmsg, rtmsg_base

from cedos.kernel import netlink, policy_routing, rtnetlink
from cedos.kernel.netlink import (
    NETLINK_ROUTE,
    NLM_F_ACK,
    NLM_F_CREATE,
    NLM_F_EXCL,
    NLM_F_REPLACE,
    Keeps,
    NetlinkMessage,
    Requester,
)
from cedos.kernel.policy_routing import (
    PROTOCOL,
    PROTOCOLS,
    Prefix,
    Route,
    Rule,
    SeenRoute,
    SeenRule,
)
from cedos.kernel.rtnetlink import FAMILIES, RTM_NEWRULE, VERSIONS, Link
from cedos.model import Address

_HEADER_BYTES: Final = 16
_LONGEST_RULE_BYTES: Final = 4096  # no rule is nearly as long
_INVERT: Final = 2  # FIB_RULE_INVERT
_FIND_SOURCE: Final = 0x10000  # FIB_RULE_FIND_SADDR
_NO_PREFIX_LENGTH: Final = 0xFFFFFFFF
_PROTOCOL_NAMES: Final = {number: name for name, number in PROTOCOLS.items()}
# The attributes that limit a rule to some packets.
_NARROW: Final = frozenset(
    f"FRA_{name}"
    for name in ("OIFNAME", "L3MDEV", "UID_RANGE", "IP_PROTO", "SPORT_RANGE", "DPORT_RANGE")
)

# The kernel's errors on deleting what does not exist.
_GONE: Final = (errno.ENOENT, errno.ESRCH, errno.ENODEV, errno.EADDRNOTAVAIL)


class _RouteMessage(rtmsg_base, nlmsg):
    """pyroute2's, with the metrics left as they are: they are only handed on."""

    nla_map = tuple(
        (name, "cdata" if name == "RTA_METRICS" else kind) for name, kind in rtmsg.nla_map
    )


def rule_request(rule: Rule, mark: int = PROTOCOL) -> bytes:
    """Add or delete a rule (RTM_NEWRULE, RTM_DELRULE). `mark`: whose it is."""
    table = rule.table or 0
    source, destination = rule.source, rule.destination
    attributes: dict[str, Any] = {
        "FRA_PRIORITY": rule.preference,
        "FRA_PROTOCOL": mark,
        "FRA_TABLE": rule.table,
        "FRA_DST": str(destination.network_address) if destination else None,
        "FRA_SRC": str(source.network_address) if source else None,
        "FRA_IIFNAME": "lo" if rule.local else rule.arrival,
        "FRA_OIFNAME": rule.interface,
        "FRA_IP_PROTO": PROTOCOLS[rule.protocol] if rule.protocol else None,
        "FRA_SPORT_RANGE": _range(rule.source_port),
        "FRA_DPORT_RANGE": _range(rule.port),
        "FRA_FWMARK": rule.mark,
        "FRA_FWMASK": None if rule.mark is None else 0xFFFFFFFF,
        "FRA_SUPPRESS_PREFIXLEN": rule.suppress_prefixlength,
        "FRA_GOTO": rule.goto,
    }
    action = FR_ACT_UNREACHABLE if rule.table is None else FR_ACT_TO_TBL
    return _pack(
        fibmsg(),
        attributes,
        family=FAMILIES[rule.version],
        dst_len=destination.prefixlen if destination else 0,
        src_len=source.prefixlen if source else 0,
        table=table if table < 256 else 0,
        action=action if rule.goto is None else FR_ACT_GOTO,
        flags=_FIND_SOURCE if rule.finds_source else 0,
    )


def rules_request(version: int) -> bytes:
    """Ask (a dump) for all rules of an IP version."""
    return _pack(fibmsg(), {}, family=FAMILIES[version])


def parse_rule(answer: NetlinkMessage, mark: int = PROTOCOL) -> SeenRule | None:
    """Return the rule of an RTM_NEWRULE; None for anything else, and for one that is cut off.

    `mark`: whose rules are ours.
    """
    if answer.type != RTM_NEWRULE or len(answer.payload) > _LONGEST_RULE_BYTES:
        return None
    message = fibmsg(netlink.message(answer.type, 0, 0, answer.payload))
    try:
        message.decode()
    except struct.error:  # a truncated header or field is not caught by the library
        return None
    if message.get("family") not in VERSIONS:
        return None
    version = VERSIONS[message["family"]]
    found = {slot.name: slot.value for slot in message["attrs"]}
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
    suppress = found.get("FRA_SUPPRESS_PREFIXLEN", _NO_PREFIX_LENGTH)
    suppresses = suppress != _NO_PREFIX_LENGTH
    if found.get("FRA_PROTOCOL") != mark:
        return SeenRule(version, preference, looked_up, general, False, None, suppresses)
    rule = Rule(
        version,
        preference,
        looked_up,
        source=_prefix(found.get("FRA_SRC"), message["src_len"]),
        destination=_prefix(found.get("FRA_DST"), message["dst_len"]),
        interface=found.get("FRA_OIFNAME") or None,
        local=iif == "lo",
        arrival=None if iif in ("", "lo") else iif,
        protocol=_PROTOCOL_NAMES.get(found.get("FRA_IP_PROTO", 0)),
        port=_first_port(found.get("FRA_DPORT_RANGE")),
        source_port=_first_port(found.get("FRA_SPORT_RANGE")),
        mark=found.get("FRA_FWMARK"),
        suppress_prefixlength=suppress if suppresses else None,
        goto=found.get("FRA_GOTO"),
        finds_source=bool(message["flags"] & _FIND_SOURCE),
    )
    return SeenRule(version, preference, looked_up, general, True, rule, suppresses)


def route_request(route: Route, mark: int = PROTOCOL) -> bytes:
    """Add or delete a route (RTM_NEWROUTE, RTM_DELROUTE). `mark`: whose it is."""
    destination, gateway = route.destination, route.gateway
    attributes: dict[str, Any] = {
        "RTA_TABLE": route.table,
        "RTA_OIF": route.index or None,
        "RTA_DST": str(destination.network_address) if destination.prefixlen else None,
        "RTA_PREFSRC": str(route.source) if route.source is not None else None,
    }
    if gateway is not None and gateway.version == destination.version:
        attributes["RTA_GATEWAY"] = str(gateway)
    elif gateway is not None:
        attributes["RTA_VIA"] = {"family": FAMILIES[gateway.version], "addr": str(gateway)}
    message = _RouteMessage()
    on_link = route.index and gateway is None and destination.version == 4
    return _pack(
        message,
        attributes,
        (("RTA_METRICS", route.metrics, NLA_F_NESTED),) if route.metrics else (),
        family=FAMILIES[destination.version],
        dst_len=destination.prefixlen,
        proto=mark,
        scope=rt_scope["link" if on_link else "universe"],
        type=route.type,
        flags=RTNH_F_ONLINK if gateway is not None and not gateway.is_link_local else 0,
    )


def _pack(
    message: Any, attributes: dict[str, Any], more: tuple[Any, ...] = (), **fields: int
) -> bytes:
    """Return the bytes behind the header."""
    message.update(fields)
    known = [(name, value) for name, value in attributes.items() if value is not None]
    message["attrs"] = [*known, *more]
    message.encode()
    return bytes(message.data[_HEADER_BYTES:])


def _range(port: int | None) -> str | None:
    return None if port is None else f"{port}:{port}"


def _first_port(ports: str | None) -> int | None:
    with suppress(ValueError):
        return int(ports.partition(":")[0]) if ports else None
    return None


def _prefix(address: str | None, length: int) -> Prefix | None:
    if not address or not length:
        return None
    with suppress(ValueError):
        return ip_network((address, length), strict=False)
    return None


class RoutingTables:
    """The links, rules and routes of the calling thread's namespace. Refusals are OSError.

    `mark`: whose rules and routes are ours. HostError: the kernel has no rtnetlink.
    """

    def __init__(self, mark: int = PROTOCOL) -> None:
        self._mark = mark
        self._routing = Requester(NETLINK_ROUTE)

    def links(self) -> list[Link]:
        answers = self._routing.dump(rtnetlink.RTM_GETLINK, rtnetlink.links_request())
        return list(filter(None, map(rtnetlink.parse_link, answers)))

    def lookup(self, remote: Address, local: Address | None = None) -> SeenRoute | None:
        request = policy_routing.lookup_request(remote, local)
        try:
            answers = self._routing.ask(rtnetlink.RTM_GETROUTE, request)
        except OSError:
            return None
        return next(filter(None, map(policy_routing.parse_route, answers)), None)

    def rules(self) -> list[SeenRule]:
        return [
            rule
            for version in (4, 6)
            for message in self._dump(rtnetlink.RTM_GETRULE, rules_request(version))
            if (rule := parse_rule(message, self._mark)) is not None
        ]

    def add_rules(self, rules: Iterable[Rule]) -> None:
        requests = [rule_request(each, self._mark) for each in rules]
        self._change(rtnetlink.RTM_NEWRULE, NLM_F_CREATE | NLM_F_EXCL, requests, errno.EEXIST)

    def delete_rules(self, rules: Iterable[Rule]) -> None:
        requests = [rule_request(each, self._mark) for each in rules]
        self._change(rtnetlink.RTM_DELRULE, 0, requests, *_GONE)

    def add_routes(self, routes: Iterable[Route]) -> None:
        requests = [route_request(each, self._mark) for each in routes]
        self._change(rtnetlink.RTM_NEWROUTE, NLM_F_CREATE | NLM_F_REPLACE, requests)

    def delete_routes(self, routes: Iterable[Route]) -> None:
        requests = [route_request(each, self._mark) for each in routes]
        self._change(rtnetlink.RTM_DELROUTE, 0, requests, *_GONE)

    def _dump(
        self,
        kind: int,
        request: bytes,
        keeps: Keeps | None = None,
        within_s: float = math.inf,
    ) -> list[NetlinkMessage]:
        try:
            return self._routing.dump(kind, request, keeps, within_s)
        except OSError as error:
            # A kernel without IPv6, or without policy routing in one of the versions.
            if error.errno in (errno.EOPNOTSUPP, errno.EAFNOSUPPORT):
                return []
            raise

    def _change(self, kind: int, flags: int, requests: Iterable[bytes], *fine: int) -> None:
        refused: OSError | None = None
        for request in requests:
            try:
                self._routing.ask(kind, request, flags | NLM_F_ACK)
            except OSError as error:
                if error.errno not in fine:
                    refused = refused or error
        # (One that is refused keeps no other one out.)
        if refused is not None:
            raise refused

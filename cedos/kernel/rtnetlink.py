"""What rtnetlink says of links, addresses and default routes, from pyroute2's messages."""

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from ipaddress import ip_address, ip_interface
from socket import AF_INET, AF_INET6

from pyroute2.iproute.linux import AsyncIPRoute
from pyroute2.netlink import NLM_F_DUMP, NLM_F_REQUEST, nlmsg, rtnl
from pyroute2.netlink.nlsocket import NetlinkRequest
from pyroute2.netlink.rtnl.ifaddrmsg import IFA_F_DADFAILED, IFA_F_TENTATIVE
from pyroute2.netlink.rtnl.ifinfmsg import IFF_LOWER_UP, IFF_RUNNING, IFF_UP
from pyroute2.netlink.rtnl.marshal import MarshalRtnl
from pyroute2.netlink.rtnl.rtmsg import rtmsg

from cedos.model import Address, Interface

NETLINK_ROUTE = 0
GROUPS = (
    rtnl.RTNLGRP_LINK,
    rtnl.RTNLGRP_IPV4_IFADDR,
    rtnl.RTNLGRP_IPV4_ROUTE,
    rtnl.RTNLGRP_IPV6_IFADDR,
    rtnl.RTNLGRP_IPV6_ROUTE,
)
MAIN_TABLE = 254

_LOOPBACK = 772
_RUNNING = IFF_UP | IFF_RUNNING | IFF_LOWER_UP
# Duplicate address detection failed, or has not ended: nothing can be sent from such an address.
_UNUSABLE = IFA_F_DADFAILED | IFA_F_TENTATIVE

# The start of a message's header, and where behind it a route has the length of its destination.
_HEADER = struct.Struct("=IHHI")
_DST_LEN = 17

_marshal = MarshalRtnl()


@dataclass(frozen=True, slots=True)
class Link:
    """An interface. `kind` is the driver's own word for a virtual one (`veth`, `bridge`), or empty."""

    index: int
    name: str
    kind: str
    hardware_address: bytes
    enslaved: bool
    loopback: bool
    running: bool


@dataclass(frozen=True, slots=True)
class LinkAddress:
    """A usable address wider than the link on interface `index`."""

    index: int
    interface: Interface


@dataclass(frozen=True, slots=True)
class DefaultRoute:
    """A default route of the main table; `gateway` is None on point-to-point links."""

    index: int
    version: int
    gateway: Address | None
    metric: int


def messages(datagram: bytes) -> Iterator[nlmsg]:
    """The messages of one datagram that could be decoded."""
    for message in _marshal.parse(datagram):
        if message["header"]["error"] is None:
            yield message


def matters(message: nlmsg) -> bool:
    """Whether an event can change a network: steering's own tables, and most routes, cannot."""
    kind = message["header"]["type"]
    if kind in (rtnl.RTM_NEWROUTE, rtnl.RTM_DELROUTE):
        return parse_route(message) != []
    return kind in (rtnl.RTM_NEWLINK, rtnl.RTM_DELLINK, rtnl.RTM_NEWADDR, rtnl.RTM_DELADDR)


def parse_link(message: nlmsg) -> Link | None:
    """The link of an RTM_NEWLINK, None for another message."""
    if message["header"]["type"] != rtnl.RTM_NEWLINK:
        return None
    return Link(
        index=message["index"],
        name=_octets(message, "IFLA_IFNAME").rstrip(b"\0").decode("utf-8", "replace"),
        kind=message.get_nested("IFLA_LINKINFO", "IFLA_INFO_KIND") or "",
        hardware_address=_octets(message, "IFLA_ADDRESS"),
        enslaved=bool(message.get_attr("IFLA_MASTER")),
        loopback=message["ifi_type"] == _LOOPBACK,
        running=message["flags"] & _RUNNING == _RUNNING,
    )


def _octets(message: nlmsg, name: str) -> bytes:
    # pyroute2 takes every hardware address for six bytes, and every interface's name for UTF-8.
    for slot in message["attrs"]:
        if slot.name == name:
            _, encoded = slot.cell
            return bytes(encoded.data[encoded.offset + 4 : encoded.offset + encoded.length])
    return b""


def parse_address(message: nlmsg) -> LinkAddress | None:
    """The address of an RTM_NEWADDR if packets can be sent from it, else None."""
    if message["header"]["type"] != rtnl.RTM_NEWADDR:
        return None
    flags = message["flags"] | (message.get_attr("IFA_FLAGS") or 0)
    # IFA_LOCAL is the own address on a point-to-point link, where IFA_ADDRESS is the peer's.
    address = message.get_attr("IFA_LOCAL") or message.get_attr("IFA_ADDRESS")
    if not address or message["scope"] >= rtnl.rt_scope["link"] or flags & _UNUSABLE:
        return None
    return LinkAddress(message["index"], ip_interface((address, message["prefixlen"])))


async def default_routes(family: int, kernel: AsyncIPRoute) -> list[nlmsg]:
    """The main table's default routes, among what may be thousands of routes.

    pyroute2's own `get_default_routes` stops at a datagram without any, and its `get_routes` decodes
    them all, which held up the event loop for 120 ms with 3,000 routes; this, for 10 ms.
    """
    wanted = rtmsg()
    wanted["family"], wanted["table"] = family, MAIN_TABLE
    request = NetlinkRequest(
        kernel,
        wanted,
        msg_type=rtnl.RTM_GETROUTE,
        msg_flags=NLM_F_REQUEST | NLM_F_DUMP,
        parser=_decode_default,
    )
    await request.send()
    return [answer async for answer in request.response() if "attrs" in answer]


def _decode_default(data: bytes, offset: int, length: int) -> nlmsg:
    _, kind, flags, sequence = _HEADER.unpack_from(data, offset)
    if kind == rtnl.RTM_NEWROUTE and data[offset + _DST_LEN]:
        return {"header": {"type": kind, "flags": flags, "error": None}}
    return _marshal.parse_one_message(kind, flags, sequence, data, offset, length)


def parse_route(message: nlmsg) -> list[DefaultRoute]:
    """The default routes of an RTM_NEWROUTE or RTM_DELROUTE: none, one, or one a next hop."""
    if message["header"]["type"] not in (rtnl.RTM_NEWROUTE, rtnl.RTM_DELROUTE):
        return []
    family = message["family"]
    if (
        message["dst_len"]
        or message["type"] != rtnl.rt_type["unicast"]
        or family not in (AF_INET, AF_INET6)
        or (message.get_attr("RTA_TABLE") or message["table"]) != MAIN_TABLE
    ):
        return []
    version = 4 if family == AF_INET else 6
    metric = message.get_attr("RTA_PRIORITY") or 0
    if index := message.get_attr("RTA_OIF"):
        return [DefaultRoute(index, version, _gateway(message), metric)]
    return [
        DefaultRoute(hop["oif"], version, _gateway(hop), metric)
        for hop in message.get_attr("RTA_MULTIPATH") or ()
    ]


def _gateway(route: nlmsg) -> Address | None:
    # RTA_VIA holds a gateway of the other IP version.
    via = route.get_attr("RTA_VIA") or {}
    gateway = route.get_attr("RTA_GATEWAY") or via.get("addr")
    return ip_address(gateway) if gateway else None

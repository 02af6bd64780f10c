"""Links, their addresses and counters in rtnetlink's bytes (linux/if_link.h, linux/if_addr.h).

Routes and rules are in `policy_routing`.
"""

import socket
import struct
from dataclasses import dataclass, field
from ipaddress import ip_interface
from typing import Final

from cedos.kernel.netlink import (
    NetlinkMessage,
    attribute,
    attributes,
    read_unsigned,
    text,
)
from cedos.model import Address, Interface, address

RTM_NEWLINK, RTM_DELLINK, RTM_GETLINK = 16, 17, 18
RTM_NEWADDR, RTM_DELADDR, RTM_GETADDR = 20, 21, 22
RTM_NEWROUTE, RTM_DELROUTE, RTM_GETROUTE = 24, 25, 26
RTM_NEWRULE, RTM_DELRULE, RTM_GETRULE = 32, 33, 34
RTM_NEWSTATS, RTM_GETSTATS = 92, 94

# RTNLGRP_*
GROUP_LINK = 1
GROUP_IPV4_ADDRESS, GROUP_IPV4_ROUTE, GROUP_IPV4_RULE = 5, 7, 8
GROUP_IPV6_ADDRESS, GROUP_IPV6_ROUTE, GROUP_IPV6_RULE = 9, 11, 19

SCOPE_LINK: Final = 253
FAMILIES: Final = {4: int(socket.AF_INET), 6: int(socket.AF_INET6)}
VERSIONS: Final = {family: version for version, family in FAMILIES.items()}

_U32: Final = struct.Struct("=I")

# -- links ----------------------------------------------------------------------------------------

_LINK: Final = struct.Struct("=BxHiII")  # family, ARPHRD type, index, flags, change
_IFLA_ADDRESS, _IFLA_IFNAME, _IFLA_LINK, _IFLA_MASTER, _IFLA_LINKINFO = 1, 3, 5, 10, 18
_IFLA_TXQLEN, _IFLA_STATS64, _IFLA_EXT_MASK, _IFLA_LINK_NETNSID = 13, 23, 29, 37
_IFLA_INFO_KIND, _IFLA_INFO_SLAVE_KIND = 1, 4
_SKIP_STATISTICS: Final = 1 << 3  # RTEXT_FILTER_SKIP_STATS
_ARPHRD_LOOPBACK: Final = 772
_IFF_UP, _IFF_RUNNING, _IFF_LOWER_UP, _IFF_DORMANT = 0x1, 0x40, 0x10000, 0x20000
_RUNNING: Final = _IFF_UP | _IFF_RUNNING | _IFF_LOWER_UP


@dataclass(frozen=True, slots=True)
class Link:
    """An interface.

    `kind` is the driver's own word for a virtual one (`veth`, `tun`), or empty; `type` is ARPHRD_*,
    `flags` are IFF_*. `lower` is the index of the interface below (of a VLAN, a macvlan), `master` the
    index of the one that this is a port of (a bridge, a bond); 0: none. `port_of` is the master's kind.
    `queue_packets` is the usual length of what queues its packets.
    """

    index: int
    name: str
    kind: str
    type: int
    flags: int
    hardware_address: bytes = b""
    lower: int = 0
    master: int = 0
    port_of: str = ""
    queue_packets: int = field(default=0, compare=False)

    @property
    def enslaved(self) -> bool:
        """True if its packets are its master's. A member of a VRF keeps its own addresses."""
        return bool(self.master) and self.port_of != "vrf"

    @property
    def loopback(self) -> bool:
        return self.type == _ARPHRD_LOOPBACK

    @property
    def running(self) -> bool:
        """True if the kernel calls it operational; that follows the carrier up to a second late."""
        return self.flags & _RUNNING == _RUNNING

    @property
    def carries(self) -> bool:
        """True if it is up, has a carrier and, on Wi-Fi, has authenticated."""
        state = self.flags & (_IFF_UP | _IFF_LOWER_UP | _IFF_DORMANT)
        return state == _IFF_UP | _IFF_LOWER_UP


def links_request() -> bytes:
    """Return the request (a dump) for all links, without their statistics."""
    return _LINK.pack(0, 0, 0, 0, 0) + attribute(_IFLA_EXT_MASK, _U32.pack(_SKIP_STATISTICS))


def queue_request(index: int, packets: int) -> bytes:
    """Return the request to set the length of a link's queue (RTM_NEWLINK)."""
    return _LINK.pack(0, 0, index, 0, 0) + attribute(_IFLA_TXQLEN, _U32.pack(packets))


def parse_link(message: NetlinkMessage) -> Link | None:
    """Return the link of an RTM_NEWLINK; None for anything else."""
    if message.type != RTM_NEWLINK or len(message.payload) < _LINK.size:
        return None
    _, kind, index, flags, _ = _LINK.unpack_from(message.payload)
    found = attributes(message.payload, _LINK.size)
    about = attributes(found.get(_IFLA_LINKINFO, b""))
    # The other end of a veth may be in another namespace, where its index means something else.
    lower = 0 if _IFLA_LINK_NETNSID in found else read_unsigned(found.get(_IFLA_LINK)) or 0
    return Link(
        index,
        text(found.get(_IFLA_IFNAME)),
        text(about.get(_IFLA_INFO_KIND)),
        kind,
        flags,
        found.get(_IFLA_ADDRESS, b""),
        lower=lower,
        master=read_unsigned(found.get(_IFLA_MASTER)) or 0,
        port_of=text(about.get(_IFLA_INFO_SLAVE_KIND)),
        queue_packets=read_unsigned(found.get(_IFLA_TXQLEN)) or 0,
    )


def interface_name(index: int) -> str | None:
    """Return what an interface is called now: others may rename it. None: it is gone."""
    try:
        return socket.if_indextoname(index)
    except OSError:
        return None


def is_up(message: NetlinkMessage) -> bool:
    """Return whether the link of an RTM_NEWLINK is up, without decoding it."""
    payload = message.payload
    return len(payload) >= _LINK.size and bool(_LINK.unpack_from(payload)[3] & _IFF_UP)


# -- addresses ------------------------------------------------------------------------------------

_ADDRESS: Final = struct.Struct("=BBBBI")  # family, prefix's length, flags, scope, index
_IFA_ADDRESS, _IFA_LOCAL, _IFA_CACHEINFO, _IFA_FLAGS = 1, 2, 6, 8
_IFA_RT_PRIORITY, _IFA_PROTO = 9, 11
MOST_METRIC: Final = 0xFFFF_FFFF
_CACHEINFO: Final = struct.Struct("=IIII")  # preferred and valid lifetimes in seconds, two times
_FOREVER: Final = 0xFFFF_FFFF
_DEPRECATED: Final = 0x20  # IFA_F_DEPRECATED
# Flags of an address whose duplicate detection failed or has not ended. No packet can leave from
# it.
_UNUSABLE: Final = 0x08 | 0x40


@dataclass(frozen=True, slots=True)
class LinkAddress:
    """An address on interface `index` from which packets can be sent.

    `wide`: its scope is wider than the link. `protocol` says who added it (IFA_PROTO); 0: unknown.
    `preferred` False: it is deprecated (RFC 4862), and nothing new should begin from it. `metric` is that
    of its subnet's route.
    """

    index: int
    interface: Interface
    wide: bool = True
    protocol: int = 0
    preferred: bool = True
    metric: int = 0


def addresses_request(family: int = 0) -> bytes:
    """Return the request (a dump) for all addresses of an address family; 0: of all."""
    return _ADDRESS.pack(family, 0, 0, 0, 0)


def parse_address(message: NetlinkMessage) -> LinkAddress | None:
    """Return the address of an RTM_NEWADDR; None for anything else, and for an unusable one."""
    if message.type != RTM_NEWADDR or len(message.payload) < _ADDRESS.size:
        return None
    family, length, flags, scope, index = _ADDRESS.unpack_from(message.payload)
    found = attributes(message.payload, _ADDRESS.size)
    flags |= read_unsigned(found.get(_IFA_FLAGS)) or 0
    # IFA_LOCAL is the own address on a point-to-point link, where IFA_ADDRESS is the peer's.
    own = found.get(_IFA_LOCAL) or found.get(_IFA_ADDRESS) or b""
    if family not in VERSIONS or len(own) not in {4, 16} or length > 8 * len(own):
        return None
    if flags & _UNUSABLE:
        return None
    protocol = found.get(_IFA_PROTO, b"\0")[0]
    preferred = not flags & _DEPRECATED
    metric = read_unsigned(found.get(_IFA_RT_PRIORITY)) or 0
    wide = scope < SCOPE_LINK
    return LinkAddress(index, ip_interface((own, length)), wide, protocol, preferred, metric)


def address_request(
    index: int, own: Address, protocol: int, *, preferred: bool = True, metric: int = 0
) -> bytes:
    """Return the request to add, change or delete an address without a subnet (RTM_*ADDR).

    `preferred` False: its preferred lifetime is 0, which makes it deprecated (RFC 4862, 5.5.4). Without a
    subnet's route the kernel only keeps the `metric`.
    """
    return _ADDRESS.pack(FAMILIES[own.version], own.max_prefixlen, 0, 0, index) + b"".join(
        (
            attribute(_IFA_LOCAL, own.packed),
            attribute(_IFA_ADDRESS, own.packed),
            attribute(_IFA_CACHEINFO, _CACHEINFO.pack(_FOREVER * preferred, _FOREVER, 0, 0)),
            attribute(_IFA_PROTO, bytes([protocol])),
            attribute(_IFA_RT_PRIORITY, _U32.pack(metric)) if metric else b"",
        )
    )


# -- neighbours (linux/neighbour.h) ----------------------------------------------------------------

RTM_NEWNEIGH, RTM_DELNEIGH, RTM_GETNEIGH = 28, 29, 30
_NEIGHBOUR: Final = struct.Struct("=BxxxiHBB")  # family, index, state, flags, type
_NDA_DST, _NDA_LLADDR, _NDA_PROTOCOL = 1, 2, 12
_NUD_PERMANENT: Final = 0x80


@dataclass(frozen=True, slots=True)
class Neighbour:
    """A neighbour's hardware address on interface `index`; `protocol` as of an address."""

    index: int
    address: Address
    hardware_address: bytes
    protocol: int = 0


def neighbours_request(family: int) -> bytes:
    """Return the request (a dump) for all neighbours of an address family."""
    return _NEIGHBOUR.pack(family, 0, 0, 0, 0)


def neighbour_request(neighbour: Neighbour) -> bytes:
    """Return the request to set a neighbour for good, or to delete it (RTM_DELNEIGH)."""
    family = FAMILIES[neighbour.address.version]
    return _NEIGHBOUR.pack(family, neighbour.index, _NUD_PERMANENT, 0, 0) + b"".join(
        (
            attribute(_NDA_DST, neighbour.address.packed),
            attribute(_NDA_LLADDR, neighbour.hardware_address),
            attribute(_NDA_PROTOCOL, bytes([neighbour.protocol])),
        )
    )


def parse_neighbour(message: NetlinkMessage) -> Neighbour | None:
    """Return the neighbour of an RTM_NEWNEIGH; None for anything else, and without its hardware."""
    if message.type != RTM_NEWNEIGH or len(message.payload) < _NEIGHBOUR.size:
        return None
    index = _NEIGHBOUR.unpack_from(message.payload)[1]
    found = attributes(message.payload, _NEIGHBOUR.size)
    own, hardware = found.get(_NDA_DST, b""), found.get(_NDA_LLADDR, b"")
    if len(own) not in {4, 16} or not hardware:
        return None
    return Neighbour(index, address(own), hardware, found.get(_NDA_PROTOCOL, b"\0")[0])


# -- counters -------------------------------------------------------------------------------------

_STATS: Final = struct.Struct("=BxxxII")  # family, index, wanted
_IFLA_STATS_LINK_64: Final = 1
_LINK_64: Final = struct.Struct("=16xQQ")  # behind the packets: bytes received, bytes sent


@dataclass(frozen=True, slots=True)
class Counters:
    """Bytes since the interface was made."""

    received_bytes: int
    sent_bytes: int


def counters_request(index: int) -> bytes:
    # Bit k - 1 of the mask asks for attribute k.
    return _STATS.pack(0, index, 1 << (_IFLA_STATS_LINK_64 - 1))


def parse_counters(message: NetlinkMessage) -> Counters | None:
    """Return the counters of an RTM_NEWSTATS; None for anything else."""
    if message.type != RTM_NEWSTATS:
        return None
    return _counters(attributes(message.payload, _STATS.size).get(_IFLA_STATS_LINK_64, b""))


def parse_last_counters(message: NetlinkMessage) -> tuple[int, Counters] | None:
    """Return the index of an interface that is gone, and its counters; None for anything else."""
    if message.type != RTM_DELLINK or len(message.payload) < _LINK.size:
        return None
    counted = _counters(attributes(message.payload, _LINK.size).get(_IFLA_STATS64, b""))
    return None if counted is None else (_LINK.unpack_from(message.payload)[2], counted)


def _counters(counted: bytes) -> Counters | None:
    return Counters(*_LINK_64.unpack_from(counted)) if len(counted) >= _LINK_64.size else None

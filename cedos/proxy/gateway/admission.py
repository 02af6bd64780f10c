"""Rules for the gateway's destinations, which are judged by their addresses, after the look-up."""

import socket
from collections.abc import Iterable, Sequence
from http import HTTPStatus
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Final

from cedos.model import Address
from cedos.proxy.http import RefusedError

IPNetwork = IPv4Network | IPv6Network

_LOCAL: Final = tuple(map(ip_network, ("0.0.0.0/8", "127.0.0.0/8", "::/127")))
_LINK: Final = (IPv4Network("169.254.0.0/16"), IPv6Network("fe80::/10"))

# Clouds answer their hosts there, and only there: Azure's is a public address, the others are private.
_CLOUDS: Final[tuple[IPNetwork, ...]] = tuple(
    map(
        ip_network,
        ("168.63.129.16/32", "100.100.100.200/32", "192.0.0.192/32", "fd00:ec2::254/128",
         "fd20:ce::254/128"),
    )
)  # fmt: skip
HIDDEN: Final = (*_LINK, *_CLOUDS)
"""Networks that `inside` opens only by networks that are no wider."""

# IPv4's special-purpose registry (IANA, RFC 6890): what is not globally reachable.
_NOT_GLOBAL4: Final = tuple(
    map(
        IPv4Network,
        ("0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "169.254.0.0/16",
         "172.16.0.0/12", "192.0.0.0/24", "192.0.2.0/24", "192.88.99.0/24", "192.168.0.0/16",
         "198.18.0.0/15", "198.51.100.0/24", "203.0.113.0/24", "224.0.0.0/3"),
    )
)  # fmt: skip

# IPv6's global unicast addresses, without those for protocols, Teredo and benchmarks, and documentation.
_GLOBAL6: Final = tuple(map(IPv6Network, ("2000::/3", "64:ff9b::/96")))
_NOT_GLOBAL6: Final = tuple(map(IPv6Network, ("2001::/23", "2001:db8::/32", "3fff::/20")))

# Translators take the IPv4 address from these bytes of an IPv6 address.
_EMBEDDED: Final[tuple[tuple[IPv6Network, tuple[tuple[int, ...], ...]], ...]] = (
    (IPv6Network("::/96"), ((12, 13, 14, 15),)),  # compatible (RFC 4291)
    (IPv6Network("::ffff:0:0:0/96"), ((12, 13, 14, 15),)),  # translated (RFC 2765)
    (IPv6Network("64:ff9b::/96"), ((12, 13, 14, 15),)),  # NAT64 (RFC 6052)
    # Another NAT64, whose prefix may have 48, 56, 64 or 96 bits (RFC 8215).
    (
        IPv6Network("64:ff9b:1::/48"),
        ((6, 7, 9, 10), (7, 9, 10, 11), (9, 10, 11, 12), (12, 13, 14, 15)),
    ),
    (IPv6Network("2002::/16"), ((2, 3, 4, 5),)),  # 6to4 (RFC 3056)
)
_TEREDO: Final = IPv6Network("2001::/32")
_ISATAP: Final = (b"\x00\x00\x5e\xfe", b"\x02\x00\x5e\xfe")  # under any prefix (RFC 5214)
GUARDED_PORTS: Final = {22: "SSH", 25: "mail between servers"}
"""Ports that attackers would use a gateway for: trying passwords, and sending mail."""


def meanings(text: str) -> list[Address]:
    """Return an address without its zone, and the IPv4 addresses to which translators lead it."""
    address = ip_address(text.partition("%")[0])
    if not isinstance(address, IPv6Address):
        return [address]
    if address.ipv4_mapped is not None:  # the kernel itself connects by IPv4
        return [address.ipv4_mapped]
    packed, found = address.packed, list[IPv4Address]()
    for network, places in _EMBEDDED:
        if address in network:
            found += (IPv4Address(bytes(packed[at] for at in place)) for place in places)
    if address in _TEREDO:  # the server, and the client, whose bits are inverted (RFC 4380)
        found += (IPv4Address(packed[4:8]), IPv4Address(bytes(255 - each for each in packed[12:])))
    if packed[8:12] in _ISATAP:
        found.append(IPv4Address(packed[12:]))
    # No translator leads to 0.0.0.0/8: those are zeros where another kind of prefix has its address.
    return [address, *(each for each in found if each.packed[0])]


def is_global(address: Address) -> bool:
    """Tell whether the registries have an address for a host of the internet."""
    if isinstance(address, IPv4Address):
        return not _within(address, _NOT_GLOBAL4)
    return _within(address, _GLOBAL6) and not _within(address, _NOT_GLOBAL6)


def _within(address: Address, networks: Iterable[IPNetwork]) -> bool:
    return any(address.version == network.version and address in network for network in networks)


class DestinationRules:
    """Destinations that the gateway may connect to.

    It never connects to its `own_ports` on this host, or to `denied` networks. It connects to this host's
    own and loopback addresses only if `local`, to others that are no global unicast addresses only if
    they are among the `inside` networks, and to ports 22 and 25 only if they are among the `ports`.
    Link-local addresses and those where clouds keep their hosts' secrets are `inside` only by a network
    that is no wider than those (`HIDDEN`).
    """

    def __init__(
        self,
        own_ports: Iterable[int] = (),
        denied: Sequence[IPNetwork] = (),
        *,
        inside: Sequence[IPNetwork] = (),
        ports: Iterable[int] = (),
        local: bool = False,
    ) -> None:
        self._own_ports = frozenset(own_ports)
        self._inside = inside
        self._opened = [each for each in inside if _is_part(each, HIDDEN)]
        self._ports = frozenset(ports)
        self._denied = denied
        self._local = local

    def check(self, text: str, port: int) -> None:
        """Refuse (403) an address, IPv4 or IPv6 as text, that the gateway must not connect to."""
        for address in meanings(text):
            self._check(address, port)
        if port in GUARDED_PORTS and port not in self._ports:
            raise _denied(f"this gateway does not connect to port {port} ({GUARDED_PORTS[port]})")

    def _check(self, address: Address, port: int) -> None:
        if address.is_multicast or address == IPv4Address("255.255.255.255"):
            raise _denied(f"{address} is not one host's address")
        if _within(address, self._denied):
            raise _denied(f"this gateway does not connect to {address}")
        here = _within(address, _LOCAL) or is_own(address)
        if here and port in self._own_ports:
            raise _denied(f"{address} port {port} is the gateway itself", "proxy_loop_detected")
        if here and self._local:
            return
        if here:
            raise _denied(f"{address} is an address of the gateway's own host")
        if _within(address, HIDDEN) and not _within(address, self._opened):
            what = (
                "on the gateway's own link"
                if _within(address, _LINK)
                else "a cloud's, for its hosts"
            )
            raise _denied(f"{address} is {what}")
        if not is_global(address) and not _within(address, self._inside):
            raise _denied(f"{address} is no public address, and this gateway keeps to those")


def _is_part(network: IPNetwork, of: Iterable[IPNetwork]) -> bool:
    return any(
        network.prefixlen >= each.prefixlen and _within(network.network_address, [each])
        for each in of
    )


def _denied(details: str, kind: str = "destination_ip_prohibited") -> RefusedError:
    return RefusedError(HTTPStatus.FORBIDDEN, kind, details)


def no_memory() -> RefusedError:
    return RefusedError(
        HTTPStatus.SERVICE_UNAVAILABLE,
        "connection_limit_reached",
        "the gateway has no memory left for another one",
    )


def is_own(address: Address) -> bool:
    """Tell whether an address is one of this host's: only those can be bound to."""
    family = socket.AF_INET if address.version == 4 else socket.AF_INET6
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as trying:
            trying.bind((str(address), 0))
    except OSError:
        return False
    return True

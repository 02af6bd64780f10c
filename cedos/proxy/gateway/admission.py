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
LINK_LOCAL: Final = (IPv4Network("169.254.0.0/16"), IPv6Network("fe80::/10"))

# Networks behind the gateway's own, or its provider's, and services that clouds keep there for their
# hosts alone (169.254.169.254, 100.100.100.200, fd00:ec2::254, 192.0.0.192).
_INSIDE: Final = tuple(
    map(
        ip_network,
        ("10.0.0.0/8", "100.64.0.0/10", "172.16.0.0/12", "192.0.0.0/24", "192.168.0.0/16",
         "fc00::/7", "fec0::/10"),
    )
)  # fmt: skip
_TRANSLATED: Final = tuple(map(IPv6Network, ("64:ff9b::/96", "64:ff9b:1::/48")))
GUARDED_PORTS: Final = {22: "SSH", 25: "mail between servers"}
"""Ports that attackers would use a gateway for: trying passwords, and sending mail."""


def plain(text: str) -> Address:
    """Return an address without its zone, and IPv4 also where IPv6 wraps it.

    It does in `::ffff:127.0.0.1`, in NAT64 (RFC 6052) and in 6to4 (RFC 3056).
    """
    address = ip_address(text.partition("%")[0])
    if not isinstance(address, IPv6Address):
        return address
    if any(address in network for network in _TRANSLATED):
        return IPv4Address(int(address) & 0xFFFFFFFF)
    return address.ipv4_mapped or address.sixtofour or address


def _within(address: Address, networks: Iterable[IPNetwork]) -> bool:
    return any(address.version == network.version and address in network for network in networks)


class DestinationRules:
    """Destinations that the gateway may connect to.

    It never connects to its `own_ports` on this host, or to `denied` networks. It connects to this host's
    own and loopback addresses only if `local`, to private and carriers' networks only if they are among
    the `inside` ones, and to ports 22 and 25 only if they are among the `ports`. Link-local addresses,
    where clouds keep their hosts' secrets, are `inside` only by a network that is no wider than those.
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
        self._links = [each for each in inside if _is_part(each, LINK_LOCAL)]
        self._ports = frozenset(ports)
        self._denied = denied
        self._local = local

    def check(self, text: str, port: int) -> None:
        """Refuse (403) an address, IPv4 or IPv6 as text, that the gateway must not connect to."""
        address = plain(text)
        if address.is_multicast or address == IPv4Address("255.255.255.255"):
            raise _denied(f"{address} is not one host's address")
        if _within(address, self._denied):
            raise _denied(f"this gateway does not connect to {address}")
        here = _within(address, _LOCAL) or is_own(address)
        if here and port in self._own_ports:
            raise _denied(f"{address} port {port} is the gateway itself", "proxy_loop_detected")
        if here and not self._local:
            raise _denied(f"{address} is an address of the gateway's own host")
        if not here and _within(address, LINK_LOCAL) and not _within(address, self._links):
            raise _denied(f"{address} is on the gateway's own link")
        if not here and _within(address, _INSIDE) and not _within(address, self._inside):
            raise _denied(f"{address} is in a private network, which this gateway keeps out of")
        if port in GUARDED_PORTS and port not in self._ports:
            raise _denied(f"this gateway does not connect to port {port} ({GUARDED_PORTS[port]})")


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

"""Rules for the gateway's destinations. They judge addresses, so a name is looked up first."""

import socket
from collections.abc import Iterable, Sequence
from http import HTTPStatus
from ipaddress import IPv4Address, IPv4Network, IPv6Network, ip_network
from typing import Final

from cedos.global_unicast import IPNetwork, is_global, meanings, within
from cedos.model import Address
from cedos.proxy.http import RefusedError

_LOCAL: Final = tuple(map(ip_network, ("0.0.0.0/8", "127.0.0.0/8", "::/127")))
_LINK: Final = (IPv4Network("169.254.0.0/16"), IPv6Network("fe80::/10"))

# Addresses at which clouds answer their own hosts. Azure's is public, the others are private.
_CLOUDS: Final[tuple[IPNetwork, ...]] = tuple(
    map(
        ip_network,
        ("168.63.129.16/32", "100.100.100.200/32", "192.0.0.192/32", "fd00:ec2::254/128",
         "fd20:ce::254/128"),
    )
)  # fmt: skip
# Networks that only an `inside` network of the same or a smaller size opens.
HIDDEN: Final = (*_LINK, *_CLOUDS)

# Ports that attackers use a gateway for: to try passwords, and to send mail.
GUARDED_PORTS: Final = {22: "SSH", 25: "mail between servers"}


class DestinationRules:
    """Destinations that the gateway may connect to.

    - The gateway's `own_ports` on this host and `denied` networks are never allowed.
    - This host's own and loopback addresses are allowed if `local`.
    - Link-local addresses, and those where clouds keep their hosts' secrets (`HIDDEN`), are allowed only
      by an `inside` network that lies within these.
    - Other addresses that are not global unicast are allowed if an `inside` network contains them.
    - Ports 22 and 25 of an allowed address are allowed if they are among the `ports`.
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
        # An IPv6 address may contain an IPv4 one (mapped, translated): all that it can mean must be
        # allowed.
        for address in meanings(text):
            self._check(address, port)
        if port in GUARDED_PORTS and port not in self._ports:
            raise _denied(f"this gateway does not connect to port {port} ({GUARDED_PORTS[port]})")

    def _check(self, address: Address, port: int) -> None:
        if address.is_multicast or address == IPv4Address("255.255.255.255"):
            raise _denied(f"{address} is not one host's address")
        if within(address, self._denied):
            raise _denied(f"this gateway does not connect to {address}")
        here = within(address, _LOCAL) or is_own(address)
        if here and port in self._own_ports:
            raise _denied(f"{address} port {port} is the gateway itself", "proxy_loop_detected")
        if here and self._local:
            return
        if here:
            raise _denied(f"{address} is an address of the gateway's own host")
        if within(address, HIDDEN) and not within(address, self._opened):
            what = (
                "on the gateway's own link"
                if within(address, _LINK)
                else "a cloud's, for its hosts"
            )
            raise _denied(f"{address} is {what}")
        if not is_global(address) and not within(address, self._inside):
            raise _denied(f"{address} is no public address, and this gateway keeps to those")


def _is_part(network: IPNetwork, of: Iterable[IPNetwork]) -> bool:
    return any(
        network.prefixlen >= each.prefixlen and within(network.network_address, [each])
        for each in of
    )


def _denied(details: str, kind: str = "destination_ip_prohibited") -> RefusedError:
    return RefusedError(HTTPStatus.FORBIDDEN, kind, details)


def is_own(address: Address) -> bool:
    """Tell whether an address is one of this host's, by binding a socket to it."""
    family = socket.AF_INET if address.version == 4 else socket.AF_INET6
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as trying:
            trying.bind((str(address), 0))
    except OSError:
        return False
    return True

"""Who may use the relay, and where it may connect: never open to everybody unless it is told so.

A destination is judged by its address, after its name was resolved.
"""

import base64
import binascii
import hmac
import os
import socket
import stat
from collections.abc import Iterable, Sequence
from http import HTTPStatus
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from pathlib import Path
from typing import Final

from cedos.errors import ConfigError
from cedos.model import Address
from cedos.proxy.http import RefusedError

IPNetwork = IPv4Network | IPv6Network

PRIVATE: Final = tuple(
    map(
        ip_network,
        ("127.0.0.0/8", "::1/128", "10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "fc00::/7"),
    )
)
_SHORTEST_TOKEN = 16
_LOCAL: Final = tuple(map(ip_network, ("0.0.0.0/8", "127.0.0.0/8", "::/127")))
LINK_LOCAL: Final = (IPv4Network("169.254.0.0/16"), IPv6Network("fe80::/10"))

# What is behind the relay's own network, or its provider's, and the services that clouds keep there
# for their hosts alone (169.254.169.254, 100.100.100.200, fd00:ec2::254, 192.0.0.192).
_INSIDE: Final = tuple(
    map(
        ip_network,
        ("10.0.0.0/8", "100.64.0.0/10", "172.16.0.0/12", "192.0.0.0/24", "192.168.0.0/16",
         "fc00::/7", "fec0::/10"),
    )
)  # fmt: skip
_TRANSLATED: Final = tuple(map(IPv6Network, ("64:ff9b::/96", "64:ff9b:1::/48")))
GUARDED_PORTS: Final = {22: "SSH", 25: "mail between servers"}
"""What strangers would use a relay for: trying passwords, and sending mail."""


def plain(text: str) -> Address:
    """An address without its zone, and IPv4 also where IPv6 wraps it.

    That is `::ffff:127.0.0.1`, what NAT64 translates (RFC 6052), and 6to4 (RFC 3056).
    """
    address = ip_address(text.partition("%")[0])
    if not isinstance(address, IPv6Address):
        return address
    if any(address in network for network in _TRANSLATED):
        return IPv4Address(int(address) & 0xFFFFFFFF)
    return address.ipv4_mapped or address.sixtofour or address


def _within(address: Address, networks: Iterable[IPNetwork]) -> bool:
    return any(address.version == network.version and address in network for network in networks)


class ClientRules:
    """Who may use the relay: with one of the tokens, where there are any and it is not transparent."""

    def __init__(
        self, allowed: Sequence[IPNetwork] = PRIVATE, tokens: Sequence[bytes] = ()
    ) -> None:
        self._allowed = allowed
        self._tokens = tokens

    def admits(self, client: Address) -> bool:
        return _within(client, self._allowed)

    def check(self, credentials: str | None) -> None:
        """Refuses (407) a request whose `Proxy-Authorization` names no token."""
        if not self._tokens:
            return
        shown = _token(credentials or "")
        # All are compared, each in constant time: how long it takes tells nothing.
        if sum(hmac.compare_digest(shown, token) for token in self._tokens) == 0:
            raise RefusedError(
                HTTPStatus.PROXY_AUTHENTICATION_REQUIRED,
                "http_request_denied",
                "this relay wants one of its tokens, as the password of any user",
            )


def _token(credentials: str) -> bytes:
    scheme, _, value = credentials.strip().partition(" ")
    if scheme.lower() == "bearer":
        return value.strip().encode("latin-1", "replace")
    if scheme.lower() != "basic":
        return b""
    try:
        return base64.b64decode(value.strip(), validate=True).partition(b":")[2]
    except (binascii.Error, ValueError):
        return b""


def read_tokens(file: Path) -> tuple[bytes, ...]:
    """One a line, `#` comments. ConfigError: unreadable, readable by others, or a token too short."""
    try:
        with file.open("rb") as opened:
            mode = os.fstat(opened.fileno()).st_mode
            lines = [line.strip() for line in opened.read().splitlines()]
    except OSError as error:
        raise ConfigError(f"{file}: {error.strerror}") from error
    if stat.S_ISREG(mode) and mode & 0o007:
        raise ConfigError(f"{file}: everybody may read or write it; chmod o= {file}")
    tokens = tuple(line for line in lines if line and not line.startswith(b"#"))
    if not tokens:
        raise ConfigError(f"{file}: there is no token in it; one a line would be right")
    for number, line in enumerate(lines, 1):
        if line in tokens and len(line) < _SHORTEST_TOKEN:
            raise ConfigError(
                f"{file}, line {number}: a token has at least {_SHORTEST_TOKEN} characters"
                " (`openssl rand -hex 16` makes one)"
            )
    return tokens


class DestinationRules:
    """Where the relay may connect.

    Never to its `own_ports` on this host, nor to `denied` networks. To this host's own and loopback
    addresses only if `local`; to private and carriers' networks only if they are among the `inside`
    ones; to ports 22 and 25 only if they are among the `ports`. Link-local addresses, where clouds keep
    their hosts' secrets, are `inside` only by a network that is no wider than those.
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
        """Refuses (403) an address, IPv4 or IPv6 as text, that the relay must not connect to."""
        address = plain(text)
        if address.is_multicast or address == IPv4Address("255.255.255.255"):
            raise _denied(f"{address} is not one host's address")
        if _within(address, self._denied):
            raise _denied(f"this relay does not connect to {address}")
        here = _within(address, _LOCAL) or is_own(address)
        if here and port in self._own_ports:
            raise _denied(f"{address} port {port} is the relay itself", "proxy_loop_detected")
        if here and not self._local:
            raise _denied(f"{address} is an address of the relay's own host")
        if not here and _within(address, LINK_LOCAL) and not _within(address, self._links):
            raise _denied(f"{address} is on the relay's own link")
        if not here and _within(address, _INSIDE) and not _within(address, self._inside):
            raise _denied(f"{address} is in a private network, which this relay keeps out of")
        if port in GUARDED_PORTS and port not in self._ports:
            raise _denied(f"this relay does not connect to port {port} ({GUARDED_PORTS[port]})")


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
    """Whether an address is one of this host's: only those can be bound to."""
    family = socket.AF_INET if address.version == 4 else socket.AF_INET6
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as trying:
            trying.bind((str(address), 0))
    except OSError:
        return False
    return True

"""Addresses of hosts of the internet (global unicast), by the registries of IANA."""

from collections.abc import Iterable
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address
from typing import Final

from cedos.model import Address

IPNetwork = IPv4Network | IPv6Network

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

# Where translators embed an IPv4 address in an IPv6 address: prefix, and positions of its bytes.
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
        return not is_within(address, _NOT_GLOBAL4)
    return is_within(address, _GLOBAL6) and not is_within(address, _NOT_GLOBAL6)


def is_within(address: Address, networks: Iterable[IPNetwork]) -> bool:
    """Tell whether an address is in one of the networks."""
    return any(address.version == network.version and address in network for network in networks)

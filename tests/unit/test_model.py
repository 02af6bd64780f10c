"""One object for each address, IPv4 in whatever form."""

from ipaddress import IPv4Address, IPv6Address

import pytest

from cedos.model import address


def test_addresses_are_made_once() -> None:
    assert address(b"\xc0\0\2\1") == IPv4Address("192.0.2.1")
    assert address(IPv6Address("2001:db8::1").packed) == IPv6Address("2001:db8::1")
    assert address(b"\xc0\0\2\1") is address(bytes([192, 0, 2, 1]))


def test_ipv4_in_ipv6_is_ipv4() -> None:
    assert address(IPv6Address("::ffff:192.0.2.1").packed) == IPv4Address("192.0.2.1")


@pytest.mark.parametrize("octets", [b"", b"\1\2\3", bytes(5), bytes(17)])
def test_other_octets_are_none(octets: bytes) -> None:
    with pytest.raises(ValueError, match="not permitted"):
        address(octets)

"""Addresses: one object for each, IPv4 in whatever form."""

from dataclasses import replace
from ipaddress import IPv4Address, IPv6Address

import pytest

from cedos.budget_kinds import Resource
from cedos.model import Budget, address


def test_addresses_are_made_once():
    assert address(b"\xc0\0\2\1") == IPv4Address("192.0.2.1")
    assert address(IPv6Address("2001:db8::1").packed) == IPv6Address("2001:db8::1")
    assert address(b"\xc0\0\2\1") is address(bytes([192, 0, 2, 1]))


def test_ipv4_in_ipv6_is_ipv4():
    assert address(IPv6Address("::ffff:192.0.2.1").packed) == IPv4Address("192.0.2.1")


@pytest.mark.parametrize("octets", [b"", b"\1\2\3", bytes(5), bytes(17)])
def test_other_octets_are_none(octets):
    with pytest.raises(ValueError, match="not permitted"):
        address(octets)


def test_a_hard_budget_names_no_helper():
    neighbours = Budget("n", Resource.DATA, 1e9, "2026-12-01T00:00:00", networks=("helper-1",))
    with pytest.raises(ValueError, match="cannot name a helper"):
        replace(neighbours, hard=True)

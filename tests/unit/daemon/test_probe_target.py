"""Whom the daemon pings, and asks for names, over a network that lacks an IP version."""

from dataclasses import replace
from ipaddress import ip_address, ip_interface

import pytest

from cedos.config.sections import ProbesConfig
from cedos.daemon.observer import probe_target
from cedos.model import Network, NetworkKind, NextHop

FE80 = ip_address("fe80::1")
BOTH = Network(
    *("wlan0", "wlan0", 2, NetworkKind.WIFI, False),
    addresses=(ip_interface("192.168.43.2/24"), ip_interface("2001:db8:43::2/64")),
    next_hops=(NextHop(4, ip_address("192.168.43.1")), NextHop(6, FE80)),
)
SIX = replace(BOTH, next_hops=(NextHop(6, FE80),))


@pytest.mark.parametrize(
    ("network", "version"),
    [
        (BOTH, 4),
        # An IPv4 address without a default route: of the link, or of a lease without a router.
        (SIX, 6),
        (replace(BOTH, next_hops=BOTH.next_hops[:1]), 4),
        (replace(BOTH, up=False), None),
    ],
)
def test_only_versions_in_which_it_leads_out_are_pinged(network, version):
    target = probe_target(ProbesConfig(), network)
    assert (None if target is None else target.version) == version


@pytest.mark.parametrize(
    ("remote", "reached"),
    [
        ("192.168.43.1", True),  # on its link
        ("198.51.100.1", False),
        ("2001:db8:9::1", True),
        ("fe80::1", True),
    ],
)
def test_a_resolver_must_be_within_reach(remote, reached):
    address = ip_address(remote)
    assert SIX.reaches(address) is reached
    assert BOTH.reaches(address)
    assert not replace(BOTH, up=False).reaches(address)

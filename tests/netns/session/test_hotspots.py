"""A phone's hotspot is metered to a session, too, though it comes over Wi-Fi."""

from collections.abc import Callable
from ipaddress import ip_address

import pytest

from cedos.model import NetworkKind
from cedos.session.io import links
from cedos.session.io.links import Egress, EgressReader
from emu.testbed.netns import Namespace

FAR = ip_address("198.51.100.1")


def egress(laptop: Namespace) -> Egress:
    with laptop.entered():
        reader = EgressReader()
    try:
        (found,) = reader.egresses(FAR)
    finally:
        reader.close()
    return found


@pytest.mark.parametrize(
    ("address", "announced", "metered"),
    [
        ("192.168.1.7/24", False, False),
        ("172.20.10.3/28", False, True),
        ("192.168.43.7/24", True, True),
    ],
)
def test_by_its_addresses_or_by_its_lease(
    make_namespace: Callable[[str], Namespace],
    monkeypatch: pytest.MonkeyPatch,
    address: str,
    announced: bool,
    metered: bool,
) -> None:
    monkeypatch.setattr(links, "announced_metered", lambda name, index: announced)
    laptop, phone = make_namespace("laptop"), make_namespace("phone")
    laptop.ip("link", "add", "wlan0", "type", "veth", "peer", "wlan0", "netns", phone.name)
    laptop.ip("address", "add", address, "dev", "wlan0")
    for namespace in (laptop, phone):
        namespace.ip("link", "set", "wlan0", "up")
    laptop.ip("route", "add", "default", "dev", "wlan0")
    found = egress(laptop)
    assert (found.kind, found.metered) == (NetworkKind.WIFI, metered)

"""Access points: what nl80211 lists, and what their information elements say."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cedos.host.monitor.providers import access_points, wifi
from cedos.host.monitor.providers.access_points import (
    ScanList,
    ScannedPoint,
    elements,
    parse,
    says_metered,
    ssid,
    summarise,
)
from cedos.host.monitor.providers.provider import AccessPoint
from cedos.kernel.netlink import attribute
from cedos.model import Network, NetworkKind


def listed(bssid, ssid=b"home", *, status=None, seen_ms=100):
    """Return an entry of a dump: NL80211_ATTR_GENERATION, IFINDEX, BSS {...}."""
    elements = bytes((0, len(ssid))) + ssid + bytes((1, 2, 0x82, 0x84))
    bss = attribute(1, bytes.fromhex(bssid.replace(":", ""))) + attribute(
        2, struct.pack("=I", 5180)
    )
    bss += attribute(6, elements) + attribute(7, struct.pack("=i", -6150))
    bss += attribute(10, struct.pack("=I", seen_ms))
    if status is not None:
        bss += attribute(9, struct.pack("=I", status))
    head = attribute(46, struct.pack("=I", 3)) + attribute(3, struct.pack("=I", 5))
    return head + attribute(47 | 0x8000, bss)


def test_an_entry():
    own = parse(listed("aa:bb:cc:00:11:22", status=1))
    assert own == ScannedPoint(AccessPoint("aa:bb:cc:00:11:22", "home"), True, 0.1, -61.5)
    hidden = parse(listed("aa:bb:cc:00:11:23", bytes(4)))
    assert (hidden.point.ssid, hidden.associated) == ("", False)
    assert parse(b"") is None


def test_the_surroundings():
    found = [
        parse(listed("aa:bb:cc:00:11:22", status=1, seen_ms=20)),
        parse(listed("aa:bb:cc:00:11:23", seen_ms=9000)),
        parse(listed("aa:bb:cc:00:11:24", seen_ms=8000)),
    ]
    heard = [one for one in found if one is not None]
    own = AccessPoint("aa:bb:cc:00:11:22", "home")
    assert summarise(heard) == ScanList(own, 3, 8.0)
    # The own one alone: nothing was scanned of late, and how many there are is not known.
    assert summarise(heard[:1]) == ScanList(own, None, 0.0)
    assert summarise([]) == ScanList(None, None, 0.0)


async def test_roaming_is_seen_at_the_next_look(monkeypatch):
    """The station's address tells at once; the list, which names the network, is read again then."""
    home = Network("home", "wlan0", 5, NetworkKind.WIFI, False)
    lists = [
        [listed("aa:bb:cc:00:11:22", status=1), listed("aa:bb:cc:00:11:23", seen_ms=4000)],
        [listed("aa:bb:cc:00:11:23", b"annexe", status=1)],
    ]
    asked = []

    async def read(index):
        asked.append(index)
        return summarise(filter(None, map(parse, lists[len(asked) - 1])))

    monkeypatch.setattr(access_points, "read", read)
    provider = wifi.WifiProvider()

    async def read_at(now_s, bssid):
        await provider._list(home.index, bssid, now_s)
        return provider.access_point(home)

    assert await read_at(1.0, "aa:bb:cc:00:11:22") == ("aa:bb:cc:00:11:22", "home")
    assert await read_at(2.0, "aa:bb:cc:00:11:22") == ("aa:bb:cc:00:11:22", "home")
    assert asked == [5]
    assert provider._counts[5].value == 2.0
    assert provider._counts[5].measured_at_s == -3.0
    assert await read_at(2.5, "aa:bb:cc:00:11:23") == ("aa:bb:cc:00:11:23", "annexe")
    assert asked == [5, 5]
    assert provider._counts[5].value == 2.0  # as old as it is


NAME = bytes.fromhex("0005") + b"Phone"
RATES = bytes.fromhex("010882848b960c121824")
# Hotspots of Samsung's phones send this, from Windows Phone on.
SAMSUNG = bytes.fromhex("dd080050f21102000000")
WMM = bytes.fromhex("dd180050f2020101810003a4000027a4000042435e0062322f00")
ANDROID = bytes.fromhex("6b0112")


PASSPOINT = bytes.fromhex("dd07506f9a10140000")


"""hostapd's with `interworking=1` and `access_network_type=2`, as Android sets them, and internet."""


def test_a_phones_hotspot():
    beacon = NAME + RATES + WMM + SAMSUNG
    assert ssid(beacon) == "Phone"
    assert says_metered(beacon)
    assert [number for number, _ in elements(beacon)] == [0, 1, 221, 221]
    assert says_metered(NAME + RATES + ANDROID)


@pytest.mark.parametrize(
    ("announced", "metered"),
    [
        ("dd080050f21101000000", False),  # unrestricted
        ("dd080050f21100000000", False),  # unknown
        ("dd080050f21104000000", True),  # variable
        ("dd080050f21102000100", True),  # fixed, over its limit
        ("dd040050f211", False),  # no level
        ("dd080050f20402000000", False),  # Wi-Fi Protected Setup
        ("6b0110", False),  # a private network
        ("6b0113", False),  # a free public one
        ("6b00", False),
        ("", False),
    ],
)
def test_what_else_is_announced(announced, metered):
    assert says_metered(NAME + bytes.fromhex(announced) + RATES) is metered


def test_an_operators_network_is_not_a_phone():
    """Customers pay by the month there; the order of elements does not matter."""
    assert not says_metered(NAME + ANDROID + PASSPOINT)
    assert not says_metered(NAME + PASSPOINT + ANDROID)
    assert says_metered(NAME + PASSPOINT + SAMSUNG)


@given(st.lists(st.tuples(st.integers(0, 255), st.binary(max_size=255)), max_size=8), st.data())
def test_what_is_cut_off_says_nothing_of_its_own(given_elements, data):
    whole = b"".join(bytes([number, len(content)]) + content for number, content in given_elements)
    assert list(elements(whole)) == given_elements
    cut = data.draw(st.integers(0, len(whole)))
    found = list(elements(whole[:cut]))
    assert found == given_elements[: len(found)]

"""Information elements of access points: recorded ones, and arbitrary bytes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cedos.host.monitor.providers.access_points import elements, says_metered, ssid

NAME = bytes.fromhex("0005") + b"Phone"
RATES = bytes.fromhex("010882848b960c121824")
SAMSUNG = bytes.fromhex("dd080050f21102000000")
"""As hotspots of Samsung's phones send it, from Windows Phone on."""
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

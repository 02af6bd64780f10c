"""What is barred counts as down, and nothing else of a network changes."""

from dataclasses import replace

from cedos.model import Network, NetworkKind
from cedos.selector.decision.barred import usable

WLAN = Network("home", "wlan0", 2, NetworkKind.WIFI, False)
LTE = Network("phone", "lte0", 3, NetworkKind.CELLULAR, True)
GONE = replace(LTE, name="usb", interface="usb0", up=False)


def test_what_is_barred_is_down_by_name_and_the_rest_as_it_was() -> None:
    networks = (WLAN, LTE, GONE)
    assert list(usable(networks, ())) == [WLAN, LTE, GONE]
    assert list(usable(networks, {"phone": "spent"})) == [WLAN, replace(LTE, up=False), GONE]
    # Names are what counts, not interfaces; nothing that is down comes up by it.
    assert list(usable(networks, {"lte0", "usb", "nosuch"})) == [WLAN, LTE, GONE]
    assert [each.up for each in networks] == [True, True, False]

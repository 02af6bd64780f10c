"""Wi-Fi, cellular and battery: parsing what the host's services say, and living without them."""

import struct

from hypothesis import given
from hypothesis import strategies as st
from kit.bus import PlayedBus

from cedos.controller.events import BatteryRead
from cedos.host.monitor.providers import battery, cellular, wifi
from cedos.kernel.netlink import attribute
from cedos.model import Network, NetworkKind

WIFI = Network("home", "wlan0", 1, NetworkKind.WIFI, False)
LTE = Network("phone", "wwan0", 2, NetworkKind.CELLULAR, True)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=10,
)


def station(*, signal, average=None, rates=b""):
    info = b"" if signal is None else attribute(7, struct.pack("b", signal))
    if average is not None:
        info += attribute(13, struct.pack("b", average))
    return attribute(3, struct.pack("=I", 1)) + attribute(6, bytes(6)) + attribute(21, info + rates)


def rate(kind, hundred_kbps):
    short = attribute(1, struct.pack("=H", hundred_kbps & 0xFFFF))
    return attribute(kind, short + attribute(5, struct.pack("=I", hundred_kbps)))


def test_a_stations_signal_and_speed():
    found = wifi.parse_stations(
        [station(signal=-61, average=-64, rates=rate(8, 8667) + rate(14, 60))]
    )
    assert found == {"rssi_dbm": -64.0, "link_bps": 866.7e6}
    assert wifi.parse_stations([station(signal=-61, rates=rate(14, 60))]) == {
        "rssi_dbm": -61.0,
        "link_bps": 6e6,
    }
    assert wifi.parse_stations([station(signal=None)]) == {}
    assert wifi.parse_stations([]) == {}
    # An access point of our own has guests; their signals are not ours.
    assert wifi.parse_stations([station(signal=-50), station(signal=-60)]) == {}


def survey(observed_ms, busy_ms, *, used=True):
    info = attribute(1, struct.pack("=I", 5180)) + (attribute(3, b"") if used else b"")
    info += attribute(4, struct.pack("=Q", observed_ms)) + attribute(5, struct.pack("=Q", busy_ms))
    return attribute(84, info)


def test_channel_utilization_is_the_difference_of_two_surveys():
    first = wifi.parse_survey([survey(9, 9, used=False), survey(1_000, 100)])
    second = wifi.parse_survey([survey(3_000, 600)])
    assert first == wifi.Survey(1_000, 100)
    assert second is not None
    assert wifi.utilization(first, second) == 0.25
    assert wifi.utilization(second, first) is None
    assert wifi.utilization(first, first) is None
    assert wifi.parse_survey([station(signal=-60)]) is None


async def test_a_host_without_nl80211_gives_nothing():
    provider = wifi.WifiProvider()
    try:
        assert await provider.read(LTE, 1.0) == {}
        # Here: no such family, or no such device behind that index.
        assert await provider.read(Network("x", "x", 999_999, NetworkKind.WIFI, False), 1.0) == {}
    finally:
        await provider.close()


MODEM = "/org/freedesktop/ModemManager1/Modem/0"
OBJECTS = {
    MODEM: {"org.freedesktop.ModemManager1.Modem": {"Ports": [["cdc-wdm0", 6], ["wwan0", 2]]}}
}
UNKNOWN = -1.7976931348623157e308
SIGNAL = {
    "Rate": 0,
    "Gsm": {"rssi": UNKNOWN},
    "Lte": {"rssi": -65.0, "rsrp": -95.0, "rsrq": -11.0, "snr": 8.2},
    "Nr5g": {"rsrp": UNKNOWN, "rsrq": UNKNOWN, "snr": UNKNOWN},
}


def test_modems_and_signals():
    assert cellular.parse_modems(OBJECTS) == cellular.Modems({"wwan0": MODEM}, {})
    assert cellular.parse_signal(SIGNAL) == {
        "rsrp_dbm": -95.0, "rsrq_db": -11.0, "sinr_db": 8.2, "rssi_dbm": -65.0, "dbm": -95.0,
    }  # fmt: skip
    nr = {**SIGNAL, "Nr5g": {"rsrp": -101.0, "snr": 3.0}}
    assert cellular.parse_signal(nr) == {"rsrp_dbm": -101.0, "sinr_db": 3.0, "dbm": -101.0}
    assert cellular.parse_signal({"Gsm": {"rssi": -70.0}}) == {"dbm": -70.0}
    assert cellular.parse_signal({"Umts": {"rscp": -80.0, "rssi": True}}) == {"dbm": -80.0}


async def test_a_rate_that_somebody_else_set_is_left_alone():
    bus = PlayedBus({"GetManagedObjects": [OBJECTS], "GetAll": [{**SIGNAL, "Rate": 5}]})
    provider = cellular.CellularProvider(bus)
    assert await provider.read(LTE, 7.0)
    await provider.close()
    assert not [call for call in bus.calls if call[0] == "Setup"]


@given(JSON)
def test_no_answer_breaks_a_parser(answer):
    cellular.parse_modems(answer)
    if isinstance(answer, dict):
        cellular.parse_signal(answer)
        cellular.parse_signal({"Lte": answer})
        battery.parse_battery(answer)
        cellular.parse_modems({"/m": {"org.freedesktop.ModemManager1.Modem": answer}})


FULL = {"Type": 2, "IsPresent": True, "Percentage": 80.0, "State": 2, "Energy": 40.0}


def test_the_battery():
    assert battery.parse_battery(FULL) == BatteryRead(0.8, True, 144_000.0)
    charging = battery.parse_battery({**FULL, "State": 1, "Energy": 0.0})
    assert charging == BatteryRead(0.8, False, None)
    for other in ({"IsPresent": False}, {"Type": 1}, {"Percentage": 800.0}):
        assert battery.parse_battery({**FULL, **other}) == BatteryRead()
    assert battery.parse_battery({}) == BatteryRead()


async def test_without_modem_manager_nothing_is_known():
    bus = PlayedBus({})
    provider = cellular.CellularProvider(bus)
    for second in range(20):
        assert await provider.read(LTE, float(second)) == {}
    assert len(bus.calls) == 2  # it is looked for every ten seconds
    await provider.close()

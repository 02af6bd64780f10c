from math import nan
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from cedos.model import Context, Indicator
from cedos.selector.decision.features import features
from cedos.selector.decision.roles import Roles, assign


def test_columns_are_those_of_a_data_set(host: Any) -> None:
    context = host.context(wlan0_rtt_s=0.02, wlan0_rssi_dbm=-60.0, lte0_past5_bps=1e7)
    found = features(context, host.transfer(3000, "up"), assign(host.both))
    assert found == {
        "size_bytes": 3000.0,
        "direction_up": 1.0,
        "wifi_rtt_s": 0.02,
        "wifi_rssi_dbm": -60.0,
        "cellular_past5_bps": 1e7,
    }


def test_parts_are_played_by_role_not_by_name(host: Any) -> None:
    ethernet = host.network("eth7", "ethernet")
    context = host.context(eth7_rtt_s=0.001, lte0_rtt_s=0.05, wlan0_rtt_s=0.5)
    found = features(context, host.transfer(), assign([ethernet, host.lte]))
    assert (found["wifi_rtt_s"], found["cellular_rtt_s"]) == (0.001, 0.05)


def test_what_is_unknown_is_absent(host: Any) -> None:
    context = host.context(wlan0_rtt_s=nan, lte0_rtt_s=0.05)
    columns = ["size_bytes", "wifi_rtt_s", "wifi_dns_s", "cellular_rtt_s", "cellular_cqi"]
    found = features(context, host.transfer(3000), assign(host.both), columns)
    assert found == {"size_bytes": 3000.0, "direction_up": 0.0, "cellular_rtt_s": 0.05}
    alone = features(context, host.transfer(3000), Roles(None, host.lte), columns)
    assert alone == found
    nobody = features(Context(0.0, {}), host.transfer(3000), assign(host.both))
    assert nobody == {"size_bytes": 3000.0, "direction_up": 0.0}


def test_a_model_gets_what_it_asks_for(host: Any) -> None:
    context = host.context(age_s=7.0, wlan0_rtt_s=0.02, wlan0_rssi_dbm=-60.0, wlan0_past1_bps=1e6)
    asked = ("wifi_rtt_s", "wifi_rate_age_s", "cellular_rate_age_s")
    found = features(context, host.transfer(1), assign(host.both), asked)
    assert found == {
        "size_bytes": 1.0,
        "direction_up": 0.0,
        "wifi_rtt_s": 0.02,
        "wifi_rate_age_s": 7.0,
    }


def test_past_rates_are_those_in_the_transfers_direction(host: Any) -> None:
    context = host.context(
        wlan0_past1_bps=9e6, wlan0_past1_up_bps=2e6, lte0_past1_bps=5e6, lte0_rtt_s=0.05
    )
    roles = assign(host.both)
    for columns in (None, ("wifi_past1_bps", "cellular_past1_bps", "cellular_rtt_s")):
        down = features(context, host.transfer(1), roles, columns)
        up = features(context, host.transfer(1, "up"), roles, columns)
        assert (down["wifi_past1_bps"], up["wifi_past1_bps"]) == (9e6, 2e6)
        assert up["cellular_past1_bps"] == 5e6, "nothing better is known"
        assert up.keys() == down.keys()
        assert "wifi_past1_up_bps" not in up


def test_trains_are_those_in_the_transfers_direction(host: Any) -> None:
    """As in the data sets that the shipped model learned from: a row up has the train up."""
    context = host.context(
        wlan0_udp_bps=9e6, wlan0_udp_loss=0.0, wlan0_udp_up_bps=2e6, wlan0_udp_up_loss=0.1
    )
    roles = assign(host.both)
    for columns in (None, ("wifi_udp_bps", "wifi_udp_loss")):
        for way, rate, loss in (("down", 9e6, 0.0), ("up", 2e6, 0.1)):
            found = features(context, host.transfer(1, way), roles, columns)
            assert (found["wifi_udp_bps"], found["wifi_udp_loss"]) == (rate, loss)
            assert "wifi_udp_up_bps" not in found


def test_the_hosts_speed_is_the_newest_that_any_network_knows(host: Any) -> None:
    context = Context(
        10.0,
        {
            "wlan0": {"speed_mps": Indicator(1.0, 5.0)},
            "lte0": {"speed_mps": Indicator(9.0, 8.0)},
        },
    )
    for columns in (None, ("speed_mps",)):
        found = features(context, host.transfer(), assign(host.both), columns)
        assert found == {"size_bytes": 100_000.0, "direction_up": 0.0, "speed_mps": 9.0}


@given(
    st.dictionaries(
        st.sampled_from(["rtt_s", "past5_bps", "available", "cqi"]), st.floats(0, 1e9), max_size=4
    )
)
def test_asking_for_everything_by_name_is_the_same(host: Any, known: dict[str, float]) -> None:
    context = host.context(**{f"wlan0_{name}": value for name, value in known.items()})
    roles = assign(host.both)
    all_known = features(context, host.transfer(), roles)
    assert features(context, host.transfer(), roles, tuple(all_known)) == all_known

from ipaddress import ip_interface

import pytest

from cedos.errors import PlaceError
from cedos.host.monitor.providers.series_file import Series, SeriesProvider
from cedos.model import Indicator, Network, NetworkKind

HEADER = "t_s,down_mbps,up_mbps,rtt_ms,rssi_dbm,rsrp_dbm,rsrq_db,sinr_db,cqi,available,speed_mps"
WIFI = Network("home", "wlan0", 1, NetworkKind.WIFI, False, (ip_interface("10.0.1.2/24"),))


def write(tmp_path, *lines, header=HEADER):
    file = tmp_path / "series.csv"
    file.write_text("\n".join((header, *lines)) + "\n")
    return file


def ramp(tmp_path, seconds):
    """Second s carries s Mbit/s at -50 - s dBm."""
    return write(tmp_path, *(f"{s},{s},,,{-50 - s},,,,,1," for s in range(seconds)))


def values(series, position_s):
    return {name: value for name, (value, _) in series.at(position_s).items()}


def test_the_series_wraps_with_the_replay(tmp_path):
    series = Series(ramp(tmp_path, 20))
    assert values(series, 20.0)["past1_bps"] == 19e6
    assert values(series, 21.0)["past1_bps"] == 0.0
    assert values(series, 21.0)["past5_bps"] == pytest.approx((16 + 17 + 18 + 19 + 0) / 5 * 1e6)
    assert values(series, 2_000_007.5) == values(series, 27.5)


def test_all_columns_come_in_units_of_the_context(tmp_path):
    file = write(
        tmp_path,
        "0,8,1,45,-60.5,-90,-11,15,12,1,1.4,130,75,LTE,0",
        header=HEADER + ",link_mbps,chan_util_pct,net_mode,filled",
    )
    assert values(Series(file), 1.0) == pytest.approx(
        {
            "past1_bps": 8e6, "past5_bps": 8e6, "past10_bps": 8e6, "past1_up_bps": 1e6,
            "past5_up_bps": 1e6, "past10_up_bps": 1e6, "available": 1.0, "rssi_dbm": -60.5,
            "link_bps": 130e6, "chan_util": 0.75, "rsrp_dbm": -90.0, "rsrq_db": -11.0,
            "sinr_db": 15.0, "cqi": 12.0, "speed_mps": 1.4,
        }
    )  # fmt: skip


def test_what_was_not_measured_lately_is_older_and_then_unknown(tmp_path):
    lines = [f"{s},1,,,{'-70' if s == 2 else ''},,,,,1," for s in range(30)]
    series = Series(write(tmp_path, *lines))
    assert series.at(3.0)["rssi_dbm"] == (-70.0, 0.0)
    assert series.at(8.5)["rssi_dbm"] == (-70.0, 5.5)
    assert "rssi_dbm" in series.at(12.9)
    assert "rssi_dbm" not in series.at(13.0)


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (["0,eight,,,,,,,,1,"], r"series.csv:2: down_mbps is 'eight'; a number"),
        (["0,nan,,,,,,,,1,"], r"series.csv:2: down_mbps is 'nan'"),
        (["0,1,,,,,,,,1,", "1.5,1,,,,,,,,1,"], r"series.csv:3: t_s is '1.5'; whole seconds"),
        ([",1,,,,,,,,1,"], r"series.csv:2: t_s is ''"),
        ([], "no rows"),
    ],
)
def test_what_is_no_series_is_refused(tmp_path, lines, message):
    with pytest.raises(PlaceError, match=message):
        Series(write(tmp_path, *lines))


def test_a_foreign_or_missing_file_is_refused(tmp_path):
    with pytest.raises(PlaceError, match="no column t_s"):
        Series(write(tmp_path, header="a,b"))
    with pytest.raises(PlaceError, match="unreadable"):
        Series(tmp_path / "absent.csv")


async def test_the_provider_serves_its_interface_only(tmp_path):
    provider = SeriesProvider(ramp(tmp_path, 20), "wlan0", started_at_s=995.0)
    found = await provider.read(WIFI, 1_000.25)
    # What lay before the start of the replay was measured, too.
    assert found["rssi_dbm"] == Indicator(-54.0, 1_000.0)
    assert found["past5_bps"].value == pytest.approx(2e6)
    assert (await provider.read(WIFI, 1_003.0))["rssi_dbm"].value == -57.0
    other = Network("lte", "lte0", 2, NetworkKind.CELLULAR, True)
    assert await provider.read(other, 1_003.0) == {}
    await provider.close()

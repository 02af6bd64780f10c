from pathlib import Path

import pytest

from cedos.errors import DataSetError
from cedos.model import Direction
from emu.data import aged, datasets
from emu.data.choices import context_of
from emu.data.measure import history
from emu.places import places
from emu.repository import ROOT

SYNTHETIC = ROOT / "traces"


def rows(place: str) -> list[dict[str, object]]:
    return [
        {
            "place": place, "group": place, "start_s": 20.0, "size_bytes": size, "direction": "down",
            "t_wifi_s": size / 1e6, "censored_wifi": False, "t_cellular_s": size / 5e5,
            "censored_cellular": False, "wifi_rtt_s": 0.02, "wifi_past1_bps": 1.0,
            "cellular_past1_bps": 2.0, "wifi_udp_bps": 3.0, "wifi_dns_s": 0.1,
        }
        for size in (3_000, 30_000, 3_000_000)
    ]  # fmt: skip


def test_old_rates_are_those_of_the_trace_at_that_time_and_recents_are_others() -> None:
    known = places.load(SYNTHETIC)
    name = next(iter(known))
    found = aged.aged(rows(name), known, seed=3)
    old = [row for row in found if "wifi_rate_age_s" in row]
    assert old
    for row in old:
        age_s = float(row["wifi_rate_age_s"])
        assert 1.5 <= age_s <= 19.0
        then = history(known[name], 20.0 - age_s, Direction.DOWN)
        assert row["wifi_past1_bps"] == then["wifi_past1_bps"]
        assert row["wifi_rtt_s"] == 0.02, "pings go on"
        assert "wifi_udp_bps" not in row
    recent = [row for row in found if "wifi_recent_s" in row]
    assert recent
    for row in recent:
        assert row["wifi_recent_bytes"] in (3_000, 30_000)
        assert row["wifi_recent_bytes"] != row["size_bytes"], "its own time would tell all"
        assert row["wifi_recent_s"] == float(row["wifi_recent_bytes"]) / 1e6
    assert aged.aged(rows(name), known, seed=3) == found


def test_a_place_that_is_not_there_is_named() -> None:
    with pytest.raises(DataSetError, match="row 1: place nowhere"):
        aged.aged(rows("nowhere"), {})


def test_aged_rows_are_read_as_they_were_written(tmp_path: Path) -> None:
    known = places.load(SYNTHETIC)
    name = next(iter(known))
    made = aged.aged(rows(name), known)
    datasets.write(tmp_path / "aged.parquet", made)
    read = datasets.read(tmp_path / "aged.parquet")
    assert read.ignored == ()
    both = datasets.joined([read, datasets.from_columns({
        "place": ["a"], "size_bytes": [1], "direction": ["up"], "t_wifi_s": [1.0],
    }, "other")])  # fmt: skip
    assert len(both) == len(made) + 1
    assert both.texts["group"][-1] == "a"


def test_the_decision_sees_how_old_a_rows_rates_are() -> None:
    context = context_of({"wifi_past1_bps": 1e6, "wifi_rate_age_s": 7.0, "wifi_rtt_s": 0.02,
                          "wifi_recent_s": 0.1, "wifi_recent_bytes": 3000.0,
                          "wifi_recent_age_s": 2.0})  # fmt: skip
    known = context.networks["wlan0"]
    assert known["past1_bps"].measured_at_s == -7.0
    assert known["rtt_s"].measured_at_s == 0.0
    assert known["recent_s"].measured_at_s == -2.0
    assert "rate_age_s" not in known

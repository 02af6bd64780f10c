"""Tests."""

import json
import math

import pytest
from click.testing import CliRunner

from cedos.model import Direction
from emu import ROOT
from emu.commands.cedos_emu import group
from emu.data import collect, datasets, derived
from emu.data.choices import context_of
from emu.data.collect import ComputedRows, Row, history
from emu.data.derived import MOST_LENGTHENED, observed
from emu.places import places, synth
from emu.places.places import load
from emu.places.traces import Trace


@pytest.fixture(scope="module")
def few_places(tmp_path_factory):
    directory = tmp_path_factory.mktemp("places")
    for seed in (1, 2):
        synth.generate("walk-away", seed, 60, directory)
    return load(directory)


def test_starts_lie_one_in_each_part_of_the_place(few_places):
    rows = collect.plan(few_places, starts=4, seed=3)
    assert rows == collect.plan(few_places, starts=4, seed=3)
    assert rows != collect.plan(few_places, starts=4, seed=4)
    assert len(rows) == 2 * 4 * len(collect.DEFAULT_SIZES)
    for name, place in few_places.items():
        starts = sorted({row.start_s for row in rows if row.place == name})
        part_s = place.common_s / 4
        assert [int(start // part_s) for start in starts] == [0, 1, 2, 3]


def test_another_data_sets_plan_is_repeated_with_its_rtts():
    entry = {"place": "a", "start_s": 1.5, "size_bytes": 3000, "direction": "up"}
    rows = collect.plan_like(
        [
            {**entry, "wifi_rtt_min_s": 0.021, "cellular_rtt_min_s": math.nan},
            {**entry, "start_s": 9.0, "wifi_rtt_min_s": 0.020, "cellular_rtt_min_s": None},
        ]
    )
    assert [row.start_s for row in rows] == [1.5, 9.0]
    assert [row.wifi_rtt_s for row in rows] == pytest.approx([0.020 - collect.LINK_S] * 2)
    assert {row.cellular_rtt_s for row in rows} == {None}
    assert rows[0].direction is Direction.UP


def test_finished_rows_are_not_measured_again(tmp_path):
    rows = [Row("a", 1.0, 3000, Direction.DOWN), Row("a", 2.0, 3000, Direction.DOWN)]
    partial = tmp_path / "x.partial"
    lines = [json.dumps({"key": row.key, "place": "a", "start_s": row.start_s}) for row in rows]
    partial.write_text("\n".join(lines) + "\n" + '{"key": "a/3.000')  # killed while it wrote
    told = []
    found = collect.collect(
        rows, tmp_path, partial, jobs=2, done=lambda done, total: told.append((done, total))
    )
    assert [entry["start_s"] for entry in found] == [1.0, 2.0]
    assert told == [(2, 2)]
    assert partial.read_text().count("\n") == 2  # the torn line is gone


def test_the_context_never_sees_the_future(few_places):
    place = next(iter(few_places.values()))
    start_s = 20.4
    known = history(place, start_s, Direction.DOWN)
    assert known["wifi_past5_bps"] == pytest.approx(place.wifi.down.rate_bps(15.4, 20.4), abs=0.1)
    # The same place with another future is the same context.
    times = place.wifi.down.times_ms
    past = Trace(times[times < start_s * 1000], place.wifi.down.period_ms)
    vars(place.wifi)["down"] = past
    assert history(place, start_s, Direction.DOWN) == known


SYNTHETIC = ROOT / "traces"


def rows(place):
    return [
        {
            "place": place, "group": place, "start_s": 20.0, "size_bytes": size, "direction": "down",
            "t_wifi_s": size / 1e6, "censored_wifi": False, "t_cellular_s": size / 5e5,
            "censored_cellular": False, "wifi_rtt_s": 0.02, "wifi_past1_bps": 1.0,
            "cellular_past1_bps": 2.0, "wifi_udp_bps": 3.0, "wifi_dns_s": 0.1,
        }
        for size in (3_000, 30_000, 3_000_000)
    ]  # fmt: skip


def test_old_rates_are_those_of_the_trace_at_that_time_and_recents_are_others():
    known = places.load(SYNTHETIC)
    name = next(iter(known))
    found = derived.aged(rows(name), known, seed=3)
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
    assert derived.aged(rows(name), known, seed=3) == found


def test_the_decision_sees_how_old_a_rows_rates_are():
    context = context_of({"wifi_past1_bps": 1e6, "wifi_rate_age_s": 7.0, "wifi_rtt_s": 0.02,
                          "wifi_recent_s": 0.1, "wifi_recent_bytes": 3000.0,
                          "wifi_recent_age_s": 2.0})  # fmt: skip
    known = context.networks["wlan0"]
    assert known["past1_bps"].measured_at_s == -7.0
    assert known["rtt_s"].measured_at_s == 0.0
    assert known["recent_s"].measured_at_s == -2.0
    assert "rate_age_s" not in known


SEEN = {
    "ended_s": 12.5, "took_s": 0.5, "lengthened": 1.25, "strategy": "wifi", "direction": "down",
    "size_bytes": 30_000,
    "columns": [("size_bytes", 30_000.0), ("direction_up", 0.0), ("wifi_rtt_s", 0.02),
                ("wifi_rate_age_s", 7.123456789)],
}  # fmt: skip


@pytest.mark.parametrize(
    "change",
    [{"columns": []}, {"columns": None}, {"lengthened": None}, {"lengthened": MOST_LENGTHENED + 1}],
)
def test_what_tells_nothing_of_the_network_is_left_out(change):
    assert not list(observed([SEEN | change], "home", "homes"))


# Computed rows.


def test_the_simulator_computes_rows_of_every_strategy(tmp_path):
    synth.generate("walk-away", 1, 60, tmp_path / "places")
    out = tmp_path / "computed.parquet"
    arguments = ["collect", "--places", str(tmp_path / "places"), "--engine", "simulator"]
    arguments += ["--starts", "2", "--size", "30000:down", "--size", "300000:up", "--jobs", "1"]
    result = CliRunner().invoke(group, [*arguments, "--out", str(out)])
    assert result.exit_code == 0, result.output
    rows = datasets.read(out).to_rows()
    assert len(rows) == 4
    bench = ComputedRows(tmp_path / "places")
    known = load(tmp_path / "places")
    (place,) = known.values()
    sizes = [(30_000, Direction.DOWN), (300_000, Direction.UP)]
    planned = collect.plan(known, starts=2, sizes=sizes, vary_rtts=True)
    assert {each.wifi_rtt_s is None for each in planned} == {True, False}
    for row, each in zip(rows, planned, strict=True):
        # Each strategy took at least two round trips of its network, and the same plan gives the same.
        for kind, access in place.networks.items():
            rtt_s = getattr(each, f"{kind}_rtt_s") or access.rtt_s
            assert min(row[f"t_{kind}_s"], row[f"t_mptcp_{kind}_s"]) > 2 * rtt_s
        again = bench.measure(each)
        assert again is not None
        assert {name: again[name] for name in row if name in again} == row
    assert bench.measure(Row(place.name, 1.0, 3000, Direction.DOWN)) is not None
    cancelled = ComputedRows(tmp_path / "places", lambda: True)
    assert cancelled.measure(Row(place.name, 1.0, 3000, Direction.DOWN)) is None

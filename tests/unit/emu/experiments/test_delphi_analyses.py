"""Delphi's analyses: indicators, probing, what could be reached, outages."""

import csv
import random

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from emu.data import datasets
from emu.data.datasets import TIMES, from_columns
from emu.data.probe_replay import COLUMNS, load, replay
from emu.data.probe_rules import FixedRate, PassiveChange
from emu.experiments.delphi import floor, prediction

SECONDS = 30


def series(folder, rssi):
    """Return a place: Wi-Fi at 10 Mbit/s that falls to 1 after ten seconds, cellular at 5."""
    rows = []
    for network, fast, slow in (("wifi", 10e6, 1e6), ("cellular", 5e6, 5e6)):
        for second in range(SECONDS):
            rate_bps = fast if second < 10 else slow
            row = {
                "place": "p", "group": "p", "scenario": "s", "network": network,
                "t_s": float(second), "true_down_bps": rate_bps, "true_up_bps": rate_bps,
                "pings": 4.0, "ping_loss": 0.0, "rtt_s": 0.03, "rtt_min_s": 0.03,
            }  # fmt: skip
            if second % 2 == 0:
                row |= {"udp_bps": rate_bps, "udp_loss": 0.0, "udp_probe_s": 0.1}
                row |= {"udp_bytes_up": 150.0, "udp_bytes_down": 60_000.0}
            else:
                row |= {"dns_s": 0.04}
            if rssi and network == "wifi":
                row["rssi_dbm"] = -50.0 if second < 10 else -75.0
            rows.append(row)
    file = folder / "series.parquet"
    pq.write_table(pa.table({name: [row.get(name) for row in rows] for name in COLUMNS}), file)
    return file


def test_a_rule_knows_what_it_asked_and_pays_for_it(tmp_path):
    walk = load(series(tmp_path, rssi=True))["p"]
    always, seldom = replay(walk, FixedRate(1.0)), replay(walk, FixedRate(20.0))
    assert always.probes == 2 * SECONDS
    assert seldom.probes == 4
    assert always.bytes > 10 * seldom.bytes
    assert always.energy_j > seldom.energy_j > 0
    assert "wifi_udp_bps" not in always.known[0]  # nothing is known before the first answer
    assert always.known[12]["wifi_udp_bps"] == 1e6
    assert seldom.known[12]["wifi_udp_bps"] == 10e6  # asked at 0 and at 20
    assert seldom.known[21]["wifi_udp_bps"] == 1e6
    assert seldom.known[12]["wifi_rtt_s"] == 0.03  # pings go by their own schedule
    assert max(seldom.errors) == pytest.approx(9.0)  # ten times the truth
    assert max(always.errors, default=0.0) == 0.0


def test_delphis_rule_asks_when_the_signal_falls(tmp_path):
    walk = load(series(tmp_path, rssi=True))["p"]
    assert walk.synthetic == frozenset({"cellular"})
    asked = replay(walk, PassiveChange(0.4))
    assert asked.known[12]["wifi_udp_bps"] == 1e6
    # The signal that nobody measured triggers, but is no input of the model.
    assert all("cellular_rsrp_dbm" not in known for known in asked.known)
    assert asked.known[12]["wifi_rssi_dbm"] == -75.0


def data(rows=120):
    draw = random.Random(1)
    rates = [draw.uniform(1e6, 50e6) for _ in range(rows)]
    return from_columns(
        {
            "place": [f"p{number % 6}" for number in range(rows)],
            "size_bytes": [3_000_000] * rows,
            "direction": ["down"] * rows,
            "t_wifi_s": [24e6 / rate for rate in rates],
            "t_cellular_s": [1.0 + draw.random() for _ in range(rows)],
            "wifi_past1_bps": rates,
            "wifi_rssi_dbm": [-80 + rate / 2e6 + draw.gauss(0, 8) for rate in rates],
            "wifi_rtt_s": [0.02] * rows,
            "cellular_rtt_s": [draw.random() for _ in range(rows)],
            "wifi_udp_gap_p90_s": [1.0 / rate for rate in rates],
        },
        "drawn",
    )


def test_what_is_the_rate_correlates_wholly_and_noise_does_not():
    found = prediction.correlations(data(), places=1)
    wifi = found["wifi"]["all"]
    # Strongest first; what never changes is left out, and what no predictor looks at is not.
    assert sorted(wifi) == ["past1_bps", "rssi_dbm", "udp_gap_p90_s"]
    assert next(iter(wifi)) == "past1_bps"
    assert wifi["udp_gap_p90_s"]["r"] < -0.5
    assert wifi["past1_bps"]["r"] == pytest.approx(1.0)
    assert 0.4 < wifi["rssi_dbm"]["r"] < 0.95
    low, high = wifi["rssi_dbm"]["r_ci95"]
    assert low < wifi["rssi_dbm"]["r"] < high
    assert abs(found["cellular"]["all"]["rtt_s"]["r"]) < 0.3
    assert found["wifi"]["p0"]["past1_bps"]["n"] == 20


# Seconds over Wi-Fi, cellular, and both with either primary.
WIFI_BEST = (1.0, 2.0, 3.0, 4.0)
CELLULAR_BEST = (3.0, 1.5, 4.0, 4.0)


def written(file, times_s, first_start_s=0.0):
    with file.open("w", newline="") as out:
        rows = csv.writer(out)
        rows.writerow(["place", "group", "start_s", "size_bytes", "direction", *TIMES])
        for k, each in enumerate(times_s):
            rows.writerow([f"p{k % 3}", f"p{k % 3}", first_start_s + k, 3000, "down", *each])
    return file


class Steady:
    """A model of networks that do as they promise."""

    def naive(self, row):
        return {"wifi": 1.5, "cellular": 1.5}


@pytest.fixture(autouse=True)
def always_wifi(monkeypatch):
    monkeypatch.setattr(floor, "models_by_group", lambda data, *_, **__: [Steady()] * len(data))
    monkeypatch.setattr(floor, "cedos_choices", lambda rows, *_: ["wifi"] * len(rows))


def test_the_oracle_of_one_measurement_is_scored_on_the_other(tmp_path):
    ours = written(tmp_path / "ours.csv", [WIFI_BEST] * 4 + [CELLULAR_BEST] * 2)
    # The second one found Wi-Fi best three times only.
    theirs = written(tmp_path / "theirs.csv", [WIFI_BEST] * 3 + [CELLULAR_BEST] * 3)
    found = floor.run(datasets.read(ours), str(theirs))
    told = found["max_s"]["told"]["all"]
    assert told["cedos"]["within10_share"] == pytest.approx(4 / 6)
    assert told["cedos"]["regret_mean"] == pytest.approx(2 / 6)  # twice as long, twice in six
    assert told["second_knows_first"]["within10_share"] == pytest.approx(5 / 6)
    assert told["second_knows_first"]["regret_mean"] == pytest.approx(1 / 6)
    assert told["first_knows_second"]["mean_s_over_oracle"] == pytest.approx(9.0 / 7.5)
    assert found["noise"]["wifi"]["median"] == 0.0


def test_later_transfers_of_a_place_are_compared(tmp_path):
    count = 3 * (floor.FIRST + 2)
    found = floor.run(datasets.read(written(tmp_path / "ours.csv", [CELLULAR_BEST] * count)))
    places = found["max_s"]["places"]
    assert places["rows"] == 6  # two after the first thirty, at each of three places
    assert places["regret_never_seen"] == pytest.approx(1.0)
    assert places["gone_share"] == 0.0

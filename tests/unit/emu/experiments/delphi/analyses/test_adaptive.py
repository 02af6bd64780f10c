"""Probing rules on recorded probes: what they ask, what they pay, what they know."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from cedos.errors import DataSetError
from cedos.selector.probing.rules import FixedRate, PassiveChange
from emu.data.probe_replay import load, replay
from emu.data.probe_series import COLUMNS
from emu.experiments.delphi.adaptive import _Played, _within

SECONDS = 30


def series(folder: Path, rssi: bool) -> Path:
    """One place: Wi-Fi at 10 Mbit/s that falls to 1 after ten seconds, cellular at 5."""
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


def test_a_rule_knows_what_it_asked_and_pays_for_it(tmp_path: Path) -> None:
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


def test_delphis_rule_asks_when_the_signal_falls(tmp_path: Path) -> None:
    walk = load(series(tmp_path, rssi=True))["p"]
    assert walk.synthetic == frozenset({"cellular"})
    asked = replay(walk, PassiveChange(0.4))
    assert asked.known[12]["wifi_udp_bps"] == 1e6
    # The signal that nobody measured triggers, but is no input of the model.
    assert all("cellular_rsrp_dbm" not in known for known in asked.known)
    assert asked.known[12]["wifi_rssi_dbm"] == -75.0


def test_drawn_signals_are_the_same_for_the_same_seed(tmp_path: Path) -> None:
    file = series(tmp_path, rssi=False)
    first, again, other = load(file, 1)["p"], load(file, 1)["p"], load(file, 2)["p"]
    assert first.synthetic == {"wifi", "cellular"}
    drawn = [[row["rssi_dbm"] for row in walk.networks["wifi"]] for walk in (first, again, other)]
    assert drawn[0] == drawn[1] != drawn[2]
    assert sum(drawn[0][:10]) / 10 > sum(drawn[0][10:]) / 20  # stronger while it was faster


def test_a_file_without_a_column_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "bad.parquet"
    pq.write_table(pa.table({"place": ["p"]}), file)
    with pytest.raises(DataSetError, match="column group is missing"):
        load(file)


def test_half_the_bytes_are_nearly_spent_and_never_more() -> None:
    def play(price_s: float) -> _Played:
        return _Played(price_s, np.zeros(1), {"kb_per_300s": 10.0 / price_s})

    points = [play(price_s) for price_s in (0.01, 0.1, 1.0)]
    found = _within(350.0, points, play)
    assert found is not None
    assert 0.95 * 350.0 <= found.kb <= 350.0
    assert _within(5.0, points, play) is None  # the dearest of them spends more
    cheapest = _within(1e6, points, play)
    assert cheapest is points[0]  # there is nothing between it and so much

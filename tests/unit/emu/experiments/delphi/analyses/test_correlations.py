"""Figure 2's numbers, on data whose correlations are known."""

import random

import pytest

from cedos.errors import DataSetError
from emu.data.datasets import DataSet, from_columns
from emu.experiments.delphi import correlations


def data(rows: int = 120) -> DataSet:
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


def test_what_is_the_rate_correlates_wholly_and_noise_does_not() -> None:
    found = correlations.run(data(), places=1)
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


def test_without_such_transfers_it_says_so() -> None:
    with pytest.raises(DataSetError, match="no uploads of 7 bytes"):
        correlations.run(data(), size_bytes=7, direction="up")

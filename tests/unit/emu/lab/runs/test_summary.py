import numpy as np
import pytest

from emu.lab.runs.summary import PolicyRun, summarise


def run(times: list[float], energy: list[float] | None = None) -> PolicyRun:
    return PolicyRun(
        time_s=np.array(times),
        size_bytes=np.full(len(times), 125_000.0),
        censored=np.array([t >= 30 for t in times]),
        energy_j=energy or [5.0],
        cellular_bytes=[2e6],
    )


def test_figures_by_hand() -> None:
    summary = summarise({"a": run([1.0, 2.0, 4.0, 30.0]), "b": run([2.0, 2.1, 2.0, 15.0])})
    a = summary["policies"]["a"]
    assert a["n"] == 4
    assert a["censored"] == 1
    assert a["median_s"] == 3.0
    assert a["mean_s"] == 37 / 4
    assert a["mean_mbps"] == pytest.approx(4 / 37)  # 4 Mbit in 37 s
    assert a["oracle_match"] == 0.5  # 1.0 and 2.0 are the best; 4.0 and 30.0 are twice theirs
    assert a["regret_mean"] == pytest.approx((0 + 0 + 1 + 1) / 4)
    b = summary["policies"]["b"]
    assert b["oracle_match"] == 0.75  # 2.1 is within a tenth of 2.0
    assert b["cellular_mb"] == 2.0


def test_intervals_hold_the_figure_and_need_repeats_for_energy() -> None:
    draw = np.random.default_rng(3)
    times = list(draw.lognormal(0, 1, 200))
    figures = summarise({"a": run(times), "b": run(times, [4.0, 6.0])})["policies"]
    for key in ("median_s", "p95_s", "mean_s", "mean_mbps"):
        low, high = figures["a"][f"{key}_ci95"]
        assert low < figures["a"][key] < high
    assert "energy_j_ci95" not in figures["a"]
    assert figures["b"]["energy_j_ci95"] == [4.0, 6.0]


def test_a_run_without_transfers_has_joules_and_bytes_alone() -> None:
    summary = summarise({"a": run([]), "b": run([])})
    assert summary["policies"]["a"] == {
        "n": 0,
        "censored": 0,
        "energy_j": 5.0,
        "cellular_mb": 2.0,
    }

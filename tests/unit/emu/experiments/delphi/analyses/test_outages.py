"""Where outages are, what a data set without their signs is, and how policies are compared there."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from emu.data import datasets
from emu.data.datasets import DataSet
from emu.experiments.delphi import outages
from emu.places.traces import Trace
from predictors.base import Distribution

STRATEGIES = ("wifi", "cellular", "mptcp_wifi", "mptcp_cellular")
TIMES_S = (5.0, 1.0, 5.0, 1.2)


def steady_but(*dead_s: tuple[float, float]) -> Trace:
    """12 Mbit/s for 40 s, but for some stretches in which nothing is carried."""
    return Trace(
        [ms for ms in range(40_000) if not any(a <= ms / 1e3 < b for a, b in dead_s)], 40_000
    )


def data_set(starts_s: list[float], **columns: Any) -> DataSet:
    count = len(starts_s)
    raw: dict[str, list[Any]] = {
        "place": [f"p{k % 2}" for k in range(count)],
        "start_s": list(starts_s),
        "size_bytes": [3000] * count,
        "direction": ["down"] * count,
    }
    raw |= {
        f"t_{name}_s": [time_s] * count for name, time_s in zip(STRATEGIES, TIMES_S, strict=True)
    }
    return datasets.from_columns(raw | columns, "by hand")


def test_outages_are_told_by_when_they_begin(monkeypatch: pytest.MonkeyPatch) -> None:
    access = {"wifi": steady_but((10.0, 20.0)), "cellular": steady_but()}
    networks = {name: SimpleNamespace(down=each, up=each) for name, each in access.items()}
    place = SimpleNamespace(networks=networks)
    monkeypatch.setattr(outages.collections, "load", lambda _: {"p0": place, "p1": place})
    data = data_set([5.0, 9.5, 12.0, 8.0], wifi_past1_bps=[12e6, 12e6, 12e6, 1e4])
    met = outages.outages(data, Path("anywhere"))
    assert met["dies"].tolist() == [False, True, False, False]
    assert met["dead"].tolist() == [False, False, True, False]
    # By its last rate the transfer of the last row would take 2.4 s, and Wi-Fi goes out after two.
    assert met["later"].tolist() == [False, False, False, True]
    assert met["next_second"].tolist() == [False, True, True, False]


def test_without_signs_nothing_tells_of_an_outage() -> None:
    data = data_set(
        [0.0, 1.0, 2.0],
        wifi_ping_loss=[0.0, 1.0, 0.0],
        wifi_available=[1.0, 0.0, 1.0],
        wifi_rtt_s=[0.02, None, 0.04],
        wifi_past1_bps=[1e6, 0.0, 1e6],
        wifi_past5_bps=[1e6, 5e5, 1e6],
    )
    blind = outages.without_signs(data)
    assert {"wifi_ping_loss", "wifi_available"}.isdisjoint(blind.columns)
    assert blind.columns["wifi_rtt_s"].tolist() == pytest.approx([0.02, 0.03, 0.04])
    assert blind.columns["wifi_past1_bps"].tolist() == [1e6, 0.0, 1e6]
    more = outages.without_signs(data, last_second=False)
    assert set(more.columns) == {"size_bytes", "direction_up", "wifi_past5_bps"}


def test_losses_are_compared_where_outages_are(monkeypatch: pytest.MonkeyPatch) -> None:
    data = data_set([float(k) for k in range(8)])
    dies = np.arange(8) < 4
    monkeypatch.setattr(
        outages, "outages", lambda *_: {"dies": dies, "all": np.ones(8, dtype=np.bool_)}
    )
    monkeypatch.setattr(outages, "rules", lambda _: {})
    surely = [{name: Distribution((1.0,)) for name in STRATEGIES}] * 8

    def chosen(names: list[str]) -> Any:
        return outages._ModelChoices(names, surely)

    everything = {
        outages.FULL: chosen(["wifi"] + ["cellular"] * 7),
        outages.without("trees"): chosen(["wifi"] * 4 + ["cellular"] * 4),
        outages.without("svr"): chosen(["wifi"] * 3 + ["cellular"] * 5),
    }
    monkeypatch.setattr(outages, "_choices_of_all", lambda *_: everything)
    found = outages.run(data, "anywhere", ["trees", "svr"])
    assert found["rows"] == {"dies": 4, "all": 8}
    assert found["policies"][outages.FULL]["dies"]["lost_share"] == 0.25
    assert found["policies"][outages.FULL]["all"]["lost_share"] == 0.125
    assert found["policies"][outages.FULL]["regret_mean"] == pytest.approx(4.0 / 8)
    against = found["against"]["dies"]
    assert (against["best_without"], against["times"]) == (
        outages.without("svr"),
        pytest.approx(1 / 3),
    )
    # 1 s expected, so a copy begins at 1.3 s and is there a second later: 1.3 s more than the best.
    assert against["times_bounded"] == pytest.approx(1 / 3)

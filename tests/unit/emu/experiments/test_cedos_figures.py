"""What is drawn for Cedos' Figure 8 and Table VI, and how it is counted."""

import json
from math import inf
from pathlib import Path

import pytest
from click.testing import CliRunner

from emu.experiments.cedos import __main__ as program
from emu.experiments.cedos import idle_power, study, subway
from emu.experiments.cedos.compare import Tally, figures
from emu.experiments.cedos.simulate import Carried
from emu.repository import ROOT

RESULTS = ROOT / "notebooks" / "results"


def test_files_say_how_many_days_they_are_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []
    monkeypatch.setattr(program, "many_days", lambda count, *_: asked.append(count) or {})
    monkeypatch.setattr(study, "figures", lambda count, seed: asked.append(count) or {})
    monkeypatch.setattr(subway, "figures", dict)
    parts = ("days", "delays", "study", "subway")
    asked_for = ["--days", "60", "--out", str(tmp_path), *parts]
    assert CliRunner().invoke(program.main, asked_for).exit_code == 0
    found = {part: json.loads((tmp_path / f"cedos_{part}.json").read_text()) for part in parts}
    assert asked == [60, *[12] * len(program.DELAYS_S), 12]
    # (Whole users of ten days.)
    assert [found[part].get("days") for part in parts] == [60, 20, 20, None]


def test_what_is_never_done_is_no_number_and_results_are_json() -> None:
    never = Tally(flows=1, total_bytes=1.0, most_wifi_bytes=1.0)
    never.met["chance"], never.wifi_bytes["chance"], never.late_s["chance"] = 0, 0.0, [inf]
    assert figures([never])["chance"]["missed_by_most_s"] is None
    for file in RESULTS.glob("*.json"):
        json.loads(file.read_text(), parse_constant=pytest.fail)


def test_a_ride_has_the_published_stations() -> None:
    wifi, attached = subway.ride(3)
    assert wifi == subway.ride(3)[0]
    assert sum(each > 0 for each in wifi) == subway.WORKING * round(subway.CARRIES_S)
    stays = [now and not before for before, now in zip([False, *attached], attached, strict=False)]
    assert sum(stays) == subway.STOPS
    assert all(there for rate, there in zip(wifi, attached, strict=True) if rate)
    longs = [len(subway.ride(seed)[0]) for seed in range(30)]
    published_s = subway.STOPS * (subway.ATTACHED_S + subway.BETWEEN_S)
    assert abs(sum(longs) / 30 / published_s - 1.0) < 0.03


def test_a_stream_plays_through_and_is_nearly_as_good_as_with_knowledge_of_the_future() -> None:
    found = subway.figures(seeds=1)
    for name in ("computed", "paper"):
        one = found[name]
        assert one["stalls"] == 0
        assert 0.3 < one["wifi_share"] <= one["clairvoyant_wifi_share"] + 1e-9
        assert max(found[f"{name}_ride"]["store_bytes"]) > 10e6  # stored ahead at a station
    # Whoever begins later, and fills less, leaves more to Wi-Fi.
    assert found["computed"]["wifi_share"] >= found["paper"]["wifi_share"]


def test_switches_are_counted_between_parts() -> None:
    over_wifi, over_cellular = (0.0, 1.0, 10.0, 0.0), (1.0, 1.0, 0.0, 10.0)
    both = (2.0, 1.0, 8.0, 2.0)
    assert study.switches(Carried(parts=[])) == 0
    assert study.switches(Carried(parts=[over_wifi, both, over_wifi])) == 0
    assert study.switches(Carried(parts=[over_wifi, over_cellular, both, over_cellular])) == 3


def test_who_sleeps_is_woken_in_time_and_for_less_than_who_stays_awake() -> None:
    locked, ours, nobody = idle_power.figures(10, 1, ("wakelock", "alarm", "no_alarm")).values()
    assert abs(1000.0 * (idle_power.ASLEEP_W + idle_power.LOOK_J / 120.0) - 55.1) < 1e-6
    assert ours["met_share"] == locked["met_share"] == 1.0
    assert nobody["met_share"] < 0.8
    assert 43.0 < nobody["mw"] < ours["mw"] < locked["mw"]
    assert ours["mw"] - 43.0 < 0.5 * (locked["mw"] - 43.0)

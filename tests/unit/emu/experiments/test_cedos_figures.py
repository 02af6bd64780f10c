"""Numbers of Cedos' Figure 8 and Table VI."""

import json
from math import inf
from random import Random

import numpy as np
import pytest
from click.testing import CliRunner
from scipy.optimize import linprog

from emu import ROOT
from emu.experiments.cedos import __main__ as program
from emu.experiments.cedos import studies
from emu.experiments.cedos.compare import Tally, feasible, figures, most_wifi_bytes
from emu.experiments.cedos.world import Wanted, World

RESULTS = ROOT / "notebooks" / "results"


def test_files_say_how_many_days_they_are_of(tmp_path, monkeypatch):
    asked = []
    monkeypatch.setattr(program, "many_days", lambda count, *_: asked.append(count) or {})
    monkeypatch.setattr(studies, "table6", lambda count, seed: asked.append(count) or {})
    monkeypatch.setattr(studies, "figure8", dict)
    parts = ("days", "delays", "study", "subway")
    asked_for = ["--days", "60", "--out", str(tmp_path), *parts]
    assert CliRunner().invoke(program.main, asked_for).exit_code == 0
    found = {part: json.loads((tmp_path / f"cedos_{part}.json").read_text()) for part in parts}
    assert asked == [60, *[12] * len(program.DELAYS_S), 12]
    # (Whole users of ten days.)
    assert [found[part].get("days") for part in parts] == [60, 20, 20, None]


def test_what_is_never_done_is_no_number_and_results_are_json():
    never = Tally(flows=1, total_bytes=1.0, most_wifi_bytes=1.0)
    never.met["chance"], never.wifi_bytes["chance"], never.late_s["chance"] = 0, 0.0, [inf]
    assert figures([never])["chance"]["missed_by_most_s"] is None
    for file in RESULTS.glob("*.json"):
        json.loads(file.read_text(), parse_constant=pytest.fail)


def test_a_ride_has_the_published_stations():
    wifi, attached = studies.ride(3)
    assert wifi == studies.ride(3)[0]
    assert sum(each > 0 for each in wifi) == studies.WORKING * round(studies.CARRIES_S)
    stays = [now and not before for before, now in zip([False, *attached], attached, strict=False)]
    assert sum(stays) == studies.STOPS
    assert all(there for rate, there in zip(wifi, attached, strict=True) if rate)
    longs = [len(studies.ride(seed)[0]) for seed in range(30)]
    published_s = studies.STOPS * (studies.ATTACHED_S + studies.BETWEEN_S)
    assert abs(sum(longs) / 30 / published_s - 1.0) < 0.03


def test_a_stream_plays_through_and_is_nearly_as_good_as_with_knowledge_of_the_future():
    found = studies.figure8(seeds=1)
    for name in ("computed", "paper"):
        one = found[name]
        assert one["stalls"] == 0
        assert 0.3 < one["wifi_share"] <= one["clairvoyant_wifi_share"] + 1e-9
        assert max(found[f"{name}_ride"]["store_bytes"]) > 10e6  # stored ahead at a station
    # Whoever begins later, and fills less, leaves more to Wi-Fi.
    assert found["computed"]["wifi_share"] >= found["paper"]["wifi_share"]


def test_who_sleeps_is_woken_in_time_and_for_less_than_who_stays_awake():
    locked, ours, nobody = studies.figure7(10, 1, ("wakelock", "alarm", "no_alarm")).values()
    assert abs(1000.0 * (studies.ASLEEP_W + studies.LOOK_J / 120.0) - 55.1) < 1e-6
    assert ours["met_share"] == locked["met_share"] == 1.0
    assert nobody["met_share"] < 0.8
    assert 43.0 < nobody["mw"] < ours["mw"] < locked["mw"]
    assert ours["mw"] - 43.0 < 0.5 * (locked["mw"] - 43.0)


SECONDS = 12


def drawn(seed):
    random = Random(seed)
    wifi = [random.choice([0.0, 0.0, 8e6, 24e6]) for _ in range(SECONDS)]
    cellular = [random.choice([0.0, 8e6, 16e6]) for _ in range(SECONDS)]
    flows = []
    for _ in range(random.randint(1, 4)):
        released_s = random.randint(0, SECONDS - 2)
        deadline_s = random.randint(released_s + 1, SECONDS)
        flows.append(Wanted(released_s, random.uniform(1e5, 6e6), float(deadline_s)))
    return World(wifi, cellular, sorted(flows))


def linear_program(world):
    """Most bytes over Wi-Fi with all in time, by linear programming; None: not all can be."""
    flows, slots = world.flows, 2 * SECONDS
    count = len(flows) * slots
    wanted = np.zeros((len(flows), count))
    room = np.zeros((slots, count))
    cost = np.zeros(count)
    bounds = []
    for number, flow in enumerate(flows):
        for slot in range(slots):
            at = number * slots + slot
            at_s = slot % SECONDS
            wanted[number, at] = room[slot, at] = 1.0
            cost[at] = -1.0 if slot < SECONDS else 0.0
            open_now = flow.released_s <= at_s and at_s + 1 <= flow.deadline_s
            bounds.append((0.0, None if open_now else 0.0))
    capacity = np.array([*world.wifi, *world.cellular]) / 8e6
    sizes = np.array([flow.size_bytes for flow in flows]) / 1e6
    found = linprog(
        cost, A_ub=room, b_ub=capacity, A_eq=wanted, b_eq=sizes, bounds=bounds, method="highs"
    )
    return None if found.status == 2 else -found.fun * 1e6


@pytest.mark.parametrize("seed", range(60))
def test_it_is_what_linear_programming_finds(seed):
    world = drawn(seed)
    best = linear_program(world)
    if best is None:
        assert len(feasible(world)) < len(world.flows)
    else:
        assert len(feasible(world)) == len(world.flows)
        assert most_wifi_bytes(world) == pytest.approx(best, rel=1e-6, abs=1.0)

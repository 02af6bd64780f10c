"""Figures that are put together from several run folders."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from cedos.model import Direction
from emu.runs import calibration, mobility, walk, wget
from emu.runs.runs import Recorded
from emu.runs.scenario import Load, Scenario


def flow(policy, number, time_s, **changes):
    given = {"started_s": 10.0 * number, "mptcp": True, "direction": "down", "censored": False}
    return {"policy": policy, "repeat": 0, "number": number, "time_s": time_s, **given, **changes}


def made(times, rates=()):
    """A run whose policies took these times, and received so many bytes by those instants."""
    flows = [flow(name, k, each) for name, all_ in times.items() for k, each in enumerate(all_)]
    summary = {name: {"censored": 0, "energy_j": 1.0, "cellular_mb": 2.0} for name in times}
    return SimpleNamespace(
        directory=Path(), policies=list(times), flows=flows, duration_s=30.0,
        summary={"policies": summary},
        scenario=SimpleNamespace(place="somewhere", start_s=0.0, repeats=1, seed=1),
        rates=[
            {"policy": name, "repeat": 0, "at_s": at_s, "received_bytes": count}
            for name, at_s, count in rates
        ],
    )  # fmt: skip


def test_policies_are_measured_by_the_best_that_needs_no_controller():
    found = mobility.of_run(
        made({"wifi-first": [4.0, 4.0], "mptcp-wifi": [1.0, 3.0], "cedos": [1.0, 1.0]})
    )
    assert found["best_fixed"] == "mptcp-wifi"
    cedos = found["policies"]["cedos"]
    assert cedos["mean_s"] == 1.0
    assert cedos["over_best_fixed"] == 0.5
    low, high = cedos["over_best_fixed_ci95"]
    assert low <= 0.5 <= high
    assert found["policies"]["wifi-first"]["over_best_fixed"] == 2.0


def test_a_stall_is_a_time_without_bytes_while_something_is_under_way():
    instants = [k / 10 for k in range(130)]
    received = [
        # nothing from 0.5 to 2.0, while the first download (0 to 3 s) runs; nothing from 3 to 10
        (
            "cedos",
            at_s,
            int(1e5 * (at_s - min(max(at_s - 0.5, 0.0), 1.5))) if at_s <= 3 else 150_000,
        )
        for at_s in instants
    ]
    recorded = made({"wifi-first": [1.0], "cedos": [3.0]}, received)
    assert mobility.longest_stall_s(recorded, "cedos") == pytest.approx(1.5, abs=0.15)


def test_all_places_count_alike_beside_all_transfers():
    runs = [
        made({"wifi-first": [1.0] * 4, "cedos": [0.5] * 4}),
        made({"wifi-first": [10.0], "cedos": [20.0]}),
    ]
    found = mobility.all_places([mobility.of_run(each) for each in runs], runs)
    cedos = found["policies"]["cedos"]
    assert found["best_fixed"] == "wifi-first"
    assert cedos["over_best_fixed"] == pytest.approx(22.0 / 14.0)
    assert cedos["over_best_fixed_by_place"] == pytest.approx(1.0)


LOAD = Load("x", "198.51.100.2", Direction.DOWN, 1000, 1000, slot_s=1.0)
POLICIES = ("wifi-first", "cedos")


def recorded(place, **tables):
    scenario = Scenario(load=(LOAD,), place=place, policies=POLICIES)
    empty = {
        name: [] for name in Recorded.__dataclass_fields__ if name not in ("directory", "scenario")
    }
    environment = {"duration_s": 4.0, "synthetic": False}
    return Recorded(Path(), scenario, **{**empty, "environment": environment, **tables})


def run_flow(policy, number, size, time_s, **more):
    return {
        "policy": policy, "repeat": 0, "number": number, "size_bytes": size, "time_s": time_s,
        "censored": False, "network": "wifi", **more,
    }  # fmt: skip


def test_throughput_is_normalised_by_wifi_and_places_weigh_alike():
    one = recorded(
        "one",
        flows=[
            run_flow("wifi-first", 0, 1_000_000, 2.0),
            run_flow("wifi-first", 1, 1_000_000, 4.0),
            run_flow("cedos", 0, 1_000_000, 1.0, network="both"),
            run_flow("cedos", 1, 1_000_000, 1.0),
        ],
    )
    other = recorded(
        "other",
        flows=[
            run_flow("wifi-first", 0, 1_000_000, 1.0),
            run_flow("cedos", 0, 1_000_000, 0.5, censored=True),
        ],
    )
    found = wget.figures([one, other])
    here = found["by_place"]["one"]
    assert here["wifi-first"]["mean_mbps"] == 3.0
    assert here["cedos"]["normalised"] == pytest.approx(8 / 3, abs=1e-3)
    assert here["cedos"]["time_ratio"] == 3.0
    assert here["cedos"]["networks"] == {"both": 1, "wifi": 1}
    low, high = here["cedos"]["normalised_ci95"]
    assert low == 2.0
    assert high == 4.0
    both = found["by_size"]["1000000"]["cedos"]
    assert both["normalised"] == pytest.approx((8 / 3 + 2) / 2, abs=1e-3)
    assert (both["n"], both["censored"]) == (3, 1)
    assert found["all"]["wifi-first"]["normalised_ci95"] == [1.0, 1.0]


def rates(policy, interface, *mbps):
    """Samples every half second, that much between one and the next."""
    rows, moved = [], 0
    for step, rate in enumerate((0.0, *mbps)):
        moved += int(rate * 1e6 / 16)
        rows.append(
            {"policy": policy, "repeat": 0, "at_s": step / 2, "interface": interface,
             "received_bytes": moved, "sent_bytes": 0}
        )  # fmt: skip
    return rows


def test_a_walk_says_when_it_moved_and_how_long_nothing_came():
    run = recorded(
        "stairs",
        rates=[
            *rates("wifi-first", "wlan0", 8, 8, 8, 0, 0, 0, 8, 0),
            *rates("wifi-first", "lte0", 0, 0, 0, 0, 0, 0, 0, 0),
            *rates("cedos", "wlan0", 8, 8, 8, 0, 0, 0, 0, 0),
            *rates("cedos", "lte0", 0, 0, 0, 0, 4, 4, 4, 4),
        ],
        capacity=[
            {"network": "wifi", "at_s": 0.0, "rate_bps": 9e6},
            {"network": "cellular", "at_s": 0.0, "rate_bps": 4e6},
        ],
    )
    found = walk.figures([run])
    place = found["places"]["stairs"]
    assert list(walk.lines(found)) == [
        "stairs wifi-first: 4.0 Mbit/s, did not move, longest stall 1.5 s",
        "stairs cedos: 5.0 Mbit/s, moved at 2.0 s, longest stall 0.5 s",
    ]
    stays, moves = (place["policies"][policy] for policy in POLICIES)
    assert (stays["moved_s"], stays["longest_stall_s"], stays["mean_mbps"]) == (None, 1.5, 4.0)
    assert (moves["moved_s"], moves["longest_stall_s"], moves["mean_mbps"]) == (2.0, 0.5, 5.0)
    assert moves["mbps"]["cellular"] == [0, 0, 0, 0, 4, 4, 4, 4]


def predicted(network, size_bytes, took_s):
    """A second was expected, from half of it to two."""
    return {
        "policy": "cedos", "repeat": 0, "network": network, "alone": True, "size_bytes": size_bytes,
        "low_s": 0.5, "median_s": 1.0, "high_s": 2.0, "mean_s": 1.2,
        "took_s": took_s,
    }  # fmt: skip


def test_predictions_are_judged_by_network_and_size():
    rows = [
        predicted("wifi", 3_000, 1.0),
        predicted("wifi", 3_000, 4.0),
        predicted("wifi", 2_000_000, 0.5),
        predicted("wifi", 300_000, 2.0),
        {**predicted("cellular", 3_000, 9.0), "alone": False},
    ]
    run = replace(recorded("one"), predictions=rows)
    found = calibration.figures([run])["policies"]["cedos"]
    assert found["calibration"].keys() == {"wifi"}, "MPTCP says nothing of one network"
    small = found["calibration"]["wifi"]["small"]
    assert small == {
        "n": 2,
        "expected_over_actual_median": 0.625,
        "expected_over_actual_sum": 0.48,
        "coverage90": 0.5,
    }
    assert found["calibration"]["wifi"]["large"]["coverage90"] == 1.0
    told = list(calibration.lines(calibration.figures([run])))
    assert any("wifi, medium: expected 0.50 x" in line for line in told)

"""Figures 11 and 12 from run folders whose figures can be worked out by hand."""

import json
from pathlib import Path
from typing import Any

import pytest

from cedos.model import Direction
from emu.lab.figures import believed, walk, wget
from emu.lab.runs.runs import Recorded
from emu.lab.runs.scenario import Load, Scenario

LOAD = Load("x", "h", Direction.DOWN, 1000, 1000, slot_s=1.0)
POLICIES = ("wifi-first", "cedos")


def recorded(place: str, **tables: Any) -> Recorded:
    scenario = Scenario(load=(LOAD,), place=place, policies=POLICIES)
    empty: dict[str, Any] = {
        name: [] for name in Recorded.__dataclass_fields__ if name not in ("directory", "scenario")
    }
    environment = {"duration_s": 4.0, "synthetic": False}
    return Recorded(Path(), scenario, **{**empty, "environment": environment, **tables})


def flow(policy: str, number: int, size: int, time_s: float, **more: Any) -> dict[str, Any]:
    return {
        "policy": policy, "repeat": 0, "number": number, "size_bytes": size, "time_s": time_s,
        "censored": False, "network": "wifi", **more,
    }  # fmt: skip


def test_throughput_is_normalised_by_wifi_and_places_weigh_alike() -> None:
    one = recorded(
        "one",
        flows=[
            flow("wifi-first", 0, 1_000_000, 2.0),
            flow("wifi-first", 1, 1_000_000, 4.0),
            flow("cedos", 0, 1_000_000, 1.0, network="both"),
            flow("cedos", 1, 1_000_000, 1.0),
        ],
    )
    other = recorded(
        "other",
        flows=[flow("wifi-first", 0, 1_000_000, 1.0), flow("cedos", 0, 1_000_000, 0.5, censored=True)],
    )  # fmt: skip
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


def rates(policy: str, interface: str, *mbps: float) -> list[dict[str, Any]]:
    """Samples every half second, that much between one and the next."""
    rows, moved = [], 0
    for step, rate in enumerate((0.0, *mbps)):
        moved += int(rate * 1e6 / 16)
        rows.append(
            {"policy": policy, "repeat": 0, "at_s": step / 2, "interface": interface,
             "received_bytes": moved, "sent_bytes": 0}
        )  # fmt: skip
    return rows


def test_a_walk_says_when_it_moved_and_how_long_nothing_came() -> None:
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
    place = walk.figures([run])["places"]["stairs"]
    stays, moves = (place["policies"][policy] for policy in POLICIES)
    assert (stays["moved_s"], stays["longest_stall_s"], stays["mean_mbps"]) == (None, 1.5, 4.0)
    assert (moves["moved_s"], moves["longest_stall_s"], moves["mean_mbps"]) == (2.0, 0.5, 5.0)
    assert moves["mbps"]["cellular"] == [0, 0, 0, 0, 4, 4, 4, 4]
    assert place["capacity_mbps"] == {"wifi": [9.0], "cellular": [4.0]}


def test_the_first_second_belongs_to_connecting() -> None:
    late = [
        row
        for policy in POLICIES
        for interface, mbps in (("wlan0", (0, 0, 0, 8, 8, 8, 8, 8)), ("lte0", (0,) * 8))
        for row in rates(policy, interface, *mbps)
    ]
    place = walk.figures([recorded("stairs", rates=late)])["places"]["stairs"]
    assert place["policies"]["cedos"]["longest_stall_s"] == 0.5


def test_repetitions_are_paired_in_whatever_order_they_lie() -> None:
    flows = [
        flow("wifi-first", 0, 1000, 1.0), flow("wifi-first", 0, 1000, 4.0, repeat=1),
        flow("cedos", 0, 1000, 2.0, repeat=1), flow("cedos", 0, 1000, 1.0),
    ]  # fmt: skip
    cedos = wget.figures([recorded("one", flows=flows)])["by_place"]["one"]["cedos"]
    # Repetition by repetition as fast, and twice as fast: no resample is slower than Wi-Fi.
    assert cedos["time_ratio_ci95"] == [1.0, 2.0]


def decided(at_s: float, **networks: dict[str, float]) -> dict[str, Any]:
    """A decision with fresh indicators."""
    indicators = {
        name: {
            each: {"value": value, "measured_at_s": 500.0 + at_s} for each, value in known.items()
        }
        for name, known in networks.items()
    }
    record = json.dumps({"context": {"at_s": 500.0 + at_s, "networks": indicators}})
    return {"policy": "cedos", "repeat": 0, "at_s": at_s, "record": record}


def test_what_was_believed_is_held_against_what_the_traces_carried_next() -> None:
    capacity = [
        {"network": network, "at_s": float(second), "rate_bps": bps}
        for network, rates in (("wifi", [8e6, 2e6, 2e6, 1e6]), ("cellular", [4e6] * 4))
        for second, bps in enumerate(rates)
    ]
    decisions = [
        # 5 Mbit/s on Wi-Fi in the next two seconds: twice as much believed; cellular right.
        decided(0.0, wlan0={"past1_bps": 10e6}, lte0={"past1_bps": 4e6}),
        # 2 Mbit/s from the first second on: half of that believed; cellular twice as much.
        decided(1.0, wlan0={"past1_bps": 1e6}, lte0={"past1_bps": 8e6}),
        # Silent: nothing is believed of it.
        decided(1.5, wlan0={"past1_bps": 1e6, "silence_s": 0.5}, lte0={"past1_bps": 4e6}),
        decided(3.0, wlan0={"past1_bps": 9e6}, lte0={"past1_bps": 9e6}),  # too near the end
    ]
    run = recorded("one", capacity=capacity, decisions=decisions)
    found = believed.figures([run])["policies"]["cedos"]
    assert found["wifi"] == {"n": 2, "factor": 2.0, "bias": 1.0}
    twice_in_three = pytest.approx(2 ** (1 / 3), abs=1e-3)
    assert found["cellular"] == {"n": 3, "factor": twice_in_three, "bias": twice_in_three}
    # Of the two instants only in the second one was a network half as fast again as the other.
    assert (found["order_share"], found["order_n"]) == (1.0, 1)

"""The figures of mobility from runs that are made up, so that every one of them is known."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from emu.lab.figures import mobility
from emu.lab.runs.runs import Recorded


def flow(policy: str, number: int, time_s: float, **changes: Any) -> dict[str, Any]:
    given = {"started_s": 10.0 * number, "mptcp": True, "direction": "down", "censored": False}
    return {"policy": policy, "repeat": 0, "number": number, "time_s": time_s, **given, **changes}


def made(times: dict[str, list[float]], rates: list[tuple[str, float, int]] = ()) -> Recorded:
    """A run whose policies took these times, and received so many bytes by those instants."""
    flows = [flow(name, k, each) for name, all_ in times.items() for k, each in enumerate(all_)]
    summary = {name: {"censored": 0, "energy_j": 1.0, "cellular_mb": 2.0} for name in times}
    return cast(
        Recorded,
        SimpleNamespace(
            directory=Path(), policies=list(times), flows=flows, duration_s=30.0,
            summary={"policies": summary},
            scenario=SimpleNamespace(place="somewhere", start_s=0.0, repeats=1, seed=1),
            rates=[
                {"policy": name, "repeat": 0, "at_s": at_s, "received_bytes": count}
                for name, at_s, count in rates
            ],
        ),
    )  # fmt: skip


def test_policies_are_measured_by_the_best_that_needs_no_controller() -> None:
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


def test_a_stall_is_a_time_without_bytes_while_something_is_under_way() -> None:
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


def test_all_places_count_alike_beside_all_transfers() -> None:
    runs = [
        made({"wifi-first": [1.0] * 4, "cedos": [0.5] * 4}),
        made({"wifi-first": [10.0], "cedos": [20.0]}),
    ]
    found = mobility.all_places([mobility.of_run(each) for each in runs], runs)
    cedos = found["policies"]["cedos"]
    assert found["best_fixed"] == "wifi-first"
    assert cedos["over_best_fixed"] == pytest.approx(22.0 / 14.0)
    assert cedos["over_best_fixed_by_place"] == pytest.approx(1.0)

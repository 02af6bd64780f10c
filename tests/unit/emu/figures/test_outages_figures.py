"""What outages cost live transfers, from runs that are made up."""

from types import SimpleNamespace
from typing import Any, cast

from emu.figures import outages
from emu.places.places import Place
from emu.places.traces import Trace
from emu.runs.runs import Recorded


def link(dead_ms: range) -> SimpleNamespace:
    """12 Mbit/s for 40 s both ways, but for a stretch in which nothing is carried."""
    trace = Trace([ms for ms in range(40_000) if ms not in dead_ms], 40_000)
    return SimpleNamespace(down=trace, up=trace)


def run(times_s: dict[str, list[float]]) -> Recorded:
    """Transfers planned at 0, 5, 9.5, 12 and 25 s of a run that begins two seconds into its place."""
    flows = [
        {
            "policy": policy, "repeat": 0, "number": number, "planned_s": planned_s,
            "direction": "down", "mptcp": number % 2 == 0, "time_s": time_s,
        }
        for policy, all_s in times_s.items()
        for number, (planned_s, time_s) in enumerate(
            zip((0.0, 5.0, 9.5, 12.0, 25.0), all_s, strict=True)
        )
    ]  # fmt: skip
    scenario = SimpleNamespace(place="p", start_s=2.0)
    return cast(Recorded, SimpleNamespace(scenario=scenario, flows=flows, policies=list(times_s)))


PLACES: Any = {
    "p": cast(
        Place,
        SimpleNamespace(
            name="p", networks={"wifi": link(range(12_000, 20_000)), "lte": link(range(0))}
        ),
    )
}


def test_what_is_late_over_a_second_counts_where_an_outage_is() -> None:
    found = outages.figures(
        [
            run(
                {
                    "wifi-first": [1.0, 1.0, 9.0, 7.0, 1.0],
                    "cellular-only": [3.0, 3.0, 3.0, 1.0, 1.0],
                    "cedos-start": [1.0, 1.0, 7.0, 1.5, 1.0],
                    "cedos": [1.0, 1.0, 1.5, 1.5, 9.0],
                }
            )
        ],
        PLACES,
    )
    # Wi-Fi is out from the run's tenth second to its eighteenth.
    assert found["rows"]["dies"] == found["rows"]["dies_mptcp"] == 1
    assert found["rows"]["dead"] == found["rows"]["dead_tcp"] == 1
    assert found["rows"]["next_second"] == 2
    assert found["rows"]["all"] == 5
    said = {name: each["next_second"]["lost_share"] for name, each in found["policies"].items()}
    assert said == {"wifi-first": 1.0, "cellular-only": 0.5, "cedos-start": 0.5, "cedos": 0.0}
    assert found["policies"]["cedos"]["next_second"]["lost_s"] == 0.25
    assert found["policies"]["cedos"]["all"]["lost_share"] == 0.2
    against = found["against"]["cedos"]
    assert against["next_second"]["best_fixed"] == "cellular-only"
    assert against["next_second"]["fixed"] == against["next_second"]["at_start"] == 0.0
    assert against["all"]["best_fixed"] == "wifi-first"
    assert against["all"]["fixed"] == 0.5
    assert against["all"]["at_start"] == 1.0
    # Where the others lose nothing there is nothing to make less of.
    assert against["dead"] == {"best_fixed": "cellular-only"}
    assert set(found["against"]) == {"cedos"}


def test_only_policies_that_all_runs_have_are_compared() -> None:
    times_s = [1.0] * 5
    found = outages.figures(
        [run({"cedos": times_s, "wifi-first": times_s}), run({"cedos": times_s})], PLACES
    )
    assert list(found["policies"]) == ["cedos"]
    assert found["rows"]["all"] == 10
    assert all(of == {} for of in found["against"]["cedos"].values())

"""What outages cost live transfers, from runs that are made up."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from cedos.errors import DataSetError
from emu.lab.figures import outages
from emu.lab.runs.runs import Recorded
from emu.places.traces import Trace

PLANNED_S = (0.0, 5.0, 9.5, 12.0, 25.0)


def trace(dead_ms: range = range(0)) -> Trace:
    """12 Mbit/s for 40 s, but for a stretch in which nothing is carried."""
    return Trace([ms for ms in range(40_000) if ms not in dead_ms], 40_000)


def place(name: str, down: range, up: range = range(0)) -> Any:
    wifi = SimpleNamespace(down=trace(down), up=trace(up))
    steady = SimpleNamespace(down=trace(), up=trace())
    return SimpleNamespace(name=name, networks={"wifi": wifi, "cellular": steady})


# Of runs that begin two seconds into the place, Wi-Fi is out from the tenth second to the eighteenth.
PLACES: Any = {"p": place("p", range(12_000, 20_000)), "q": place("q", range(12_000, 20_000))}


def run(times_s: dict[str, list[float]], name: str = "p", **changes: Any) -> Recorded:
    """Transfers at `PLANNED_S`, every second one plain TCP; the second half of a list is a repetition."""
    flows = [
        {
            "policy": policy,
            "repeat": number // len(PLANNED_S),
            "number": number % len(PLANNED_S),
            "planned_s": PLANNED_S[number % len(PLANNED_S)],
            "direction": "down",
            "mptcp": number % len(PLANNED_S) % 2 == 0,
            "time_s": time_s,
        }
        for policy, all_s in times_s.items()
        for number, time_s in enumerate(all_s)
    ]
    given = {
        "directory": Path(name),
        "scenario": SimpleNamespace(place=name, start_s=2.0),
        "flows": flows,
        "capacity": [],
        "policies": list(times_s),
    }
    return cast(Recorded, SimpleNamespace(**given | changes))


TIMES_S = {
    "wifi-first": [1.0, 1.0, 9.0, 7.0, 1.0],
    "cellular-only": [3.0, 3.0, 3.0, 1.0, 1.0],
    "cedos-start": [1.0, 1.0, 7.0, 1.5, 1.0],
    "cedos": [1.0, 1.0, 1.5, 1.5, 9.0],
}


def test_what_is_late_over_a_second_counts_where_an_outage_is() -> None:
    found = outages.figures([run(TIMES_S)], PLACES)
    assert found["rows"]["dies"] == found["rows"]["dies_mptcp"] == 1
    assert found["rows"]["dead"] == found["rows"]["dead_tcp"] == 1
    assert found["rows"]["next_second"] == 2
    assert found["rows"]["all"] == 5
    shares = {name: each["next_second"]["lost_share"] for name, each in found["policies"].items()}
    assert shares == {"wifi-first": 1.0, "cellular-only": 0.5, "cedos-start": 0.5, "cedos": 0.0}
    assert found["policies"]["cedos"]["next_second"]["lost_s"] == 0.25
    assert found["policies"]["cedos"]["all"]["lost_share"] == 0.2
    assert found["policies"]["cedos"]["all"]["lost"] == 1
    against = found["against"]["cedos"]
    assert against["next_second"]["best_fixed"] == "cellular-only"
    assert against["next_second"]["fixed"] == against["next_second"]["at_start"] == 0.0
    assert against["all"]["best_fixed"] == "wifi-first"
    assert against["all"]["fixed"] == 0.5
    assert against["all"]["at_start"] == 1.0
    # Where nobody loses anything there is nothing to make less of.
    assert against["dead"] == {"best_fixed": "cellular-only"}
    assert set(found["against"]) == {"cedos"}


def test_just_a_second_is_not_lost() -> None:
    found = outages.figures([run({"a": [1.0] * 5, "b": [2.0, 2.001, 1.0, 1.0, 1.0]})], PLACES)
    assert found["policies"]["b"]["all"]["lost"] == 1


def test_transfers_are_paired_by_repetition_and_number_in_whatever_order_they_lie() -> None:
    slow, fast = [1.0] * 5, [5.0] * 5
    twice = run({"a": slow + fast, "b": fast + slow})
    half = len(twice.flows) // 2
    for flows in (twice.flows, [*twice.flows[:half], *reversed(twice.flows[half:])]):
        found = outages.figures([run({"a": [], "b": []}, flows=flows)], PLACES)
        assert [found["policies"][name]["all"]["lost"] for name in "ab"] == [5, 5]


def test_an_outage_is_one_of_the_transfers_own_direction() -> None:
    uploads = run(TIMES_S)
    for row in uploads.flows:
        cast(Any, row)["direction"] = "up"
    down, up = ({"p": place("p", *dead)} for dead in ((range(9_000),), (range(0), range(9_000))))
    assert outages.figures([uploads], down)["rows"]["next_second"] == 0
    assert outages.figures([uploads], up)["rows"]["next_second"] == 2


def test_before_a_trace_begins_it_has_ended() -> None:
    early = run(TIMES_S, scenario=SimpleNamespace(place="p", start_s=0.0))
    dead = {"p": place("p", range(39_000, 40_000))}
    begins_dead = {"p": place("p", range(3_000))}
    assert outages.figures([early], dead)["rows"]["next_second"] == 0
    assert outages.figures([early], begins_dead)["rows"]["dies"] == 1, (
        "it carried something at its end"
    )


def test_a_network_that_dies_says_more_than_one_that_is_dead() -> None:
    out = {"phone": SimpleNamespace(down=trace(range(40_000 - 1)), up=trace())}
    both = {"p": place("p", range(12_000, 20_000))}
    networks = both["p"].networks
    for both["p"].networks in ({**out, **networks}, {**networks, **out}):
        rows = outages.figures([run(TIMES_S)], both)["rows"]
        assert (rows["dies"], rows["dead"]) == (1, 4)


def test_intervals_are_over_places() -> None:
    """All that one place has to say is one thing: two places differ, so that nothing is certain."""
    well, ill = {"a": [1.0] * 5, "b": [1.0] * 5}, {"a": [1.0] * 5, "b": [9.0] * 5}
    found = outages.figures([run(well), run(ill, "q")], PLACES)
    assert found["policies"]["b"]["all"]["lost_share_ci95"] == [0.0, 1.0]
    again = outages.figures([run(well), run(ill)], PLACES)
    assert again["policies"]["b"]["all"]["lost_share_ci95"] == [0.5, 0.5], "a place is one place"


def test_infinitely_many_are_told() -> None:
    names = {"wifi-first": [1.0] * 5, "cedos": [9.0] * 5}
    found = outages.figures([run(names)], PLACES)["against"]["cedos"]["all"]
    assert found == {"best_fixed": "wifi-first", "fixed": None, "fixed_ci95": None}
    other = {"wifi-first": [5.0] + [1.0] * 4, "cedos": [1.0, 9.0, 9.0, 1.0, 1.0]}
    found = outages.figures([run(names), run(other, "q")], PLACES)["against"]["cedos"]["all"]
    assert found["fixed"] == 7.0
    assert found["fixed_ci95"] == [2.0, None], "at a place alone the others may lose none"


def test_the_best_fixed_policy_is_chosen_in_each_resample() -> None:
    here = {"wifi-first": [9.0] * 5, "cellular-only": [1.0] * 5, "cedos": [9.0] + [1.0] * 4}
    there = {"wifi-first": [1.0] * 5, "cellular-only": [9.0] * 5, "cedos": [1.0] * 5}
    found = outages.figures([run(here), run(there, "q")], PLACES)["against"]["cedos"]["all"]
    assert found["fixed"] == 0.2
    assert found["fixed_ci95"][1] is None, "whoever knew the place lost nothing there"


def test_lines_are_counts_and_times() -> None:
    printed = list(outages.lines(outages.figures([run(TIMES_S)], PLACES)))
    assert "cedos: next_second 0 (0.0%, 0.25 s)" in printed[3]
    assert printed[-1].endswith("all 1.00, all_mptcp 1.00"), "and not the fixed policies' 0.5"


def test_only_policies_that_all_runs_have_are_compared() -> None:
    times_s = [1.0] * 5
    found = outages.figures(
        [run({"cedos": times_s, "wifi-first": times_s}), run({"cedos": times_s})], PLACES
    )
    assert list(found["policies"]) == ["cedos"]
    assert found["rows"]["all"] == 10
    assert all(of == {} for of in found["against"]["cedos"].values())


def test_other_traces_than_those_replayed_are_refused() -> None:
    right = [{"network": "wifi", "at_s": 0.0, "rate_bps": 12e6}]
    assert outages.figures([run(TIMES_S, capacity=right)], PLACES)
    wrong = [{"network": "wifi", "at_s": 0.0, "rate_bps": 11e6}]
    with pytest.raises(DataSetError, match=r"replayed other traces than p .* --places"):
        outages.figures([run(TIMES_S, capacity=wrong)], PLACES)

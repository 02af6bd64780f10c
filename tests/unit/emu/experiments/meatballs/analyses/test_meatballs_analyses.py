"""The experiments' files can be carried out on the synthetic samples, small; figures hang together."""

import pytest

from cedos.errors import CedosError
from emu.experiments.meatballs import exchanges_analysis, offload_analysis
from emu.experiments.meatballs.exchange_policy import STYLES
from emu.experiments.meatballs.offload import LENGTHS_S, utterances
from emu.experiments.meatballs.outcome import SETTINGS
from emu.experiments.trials import agreement, beside
from emu.places import places
from emu.repository import ROOT

HERE = ROOT / "traces"


@pytest.fixture(scope="module")
def found() -> dict:
    return exchanges_analysis.run(
        places.load(HERE),
        walking=["walk-away-s7"],
        driving=["drive-past-s13"],
        trials=2,
        duration_s=200.0,
    )


def test_all_policies_under_all_settings_at_both_places(found: dict) -> None:
    assert found["simulated"]
    for place in found["places"].values():
        assert place["synthetic"]
        assert list(place["policies"]) == list(SETTINGS)
        for by in place["policies"].values():
            assert list(by) == [*exchanges_analysis.SIMPLE, *STYLES]
            assert len({each["requests"] for each in by.values()}) == 1


def test_costs_are_what_is_waited_and_paid(found: dict) -> None:
    for place in found["places"].values():
        for setting in SETTINGS.values():
            for each in place["policies"][setting.name].values():
                requests = each["requests"] / found["trials"]
                paid = setting.s_per_j * each["energy_j"]
                paid += setting.s_per_byte * each["cellular_kb"] * 1e3
                # (The mean wait is over trials whose numbers of requests may differ by one.)
                assert each["cost_s"] == pytest.approx(
                    each["wait_ms"] * requests / 1e3 + paid, rel=0.05, abs=0.2
                )


def test_redundancy_never_waits_longer_than_one_network(found: dict) -> None:
    for place in found["places"].values():
        by = place["policies"]["no"]
        assert by["brute-force"]["wait_ms"] <= by["wifi-preferred"]["wait_ms"] + 1.0
        assert by["cellular-only"]["hedged_share"] == by["adaptive"]["hedged_share"] == 0.0


def test_simple_policies_are_the_same_under_all_settings(found: dict) -> None:
    for place in found["places"].values():
        for name in exchanges_analysis.SIMPLE:
            waits = {place["policies"][setting][name]["wait_ms"] for setting in SETTINGS}
            assert len(waits) == 1


def test_offloading_to_a_loaded_server_is_hedged() -> None:
    known = places.load(HERE)
    figures = offload_analysis.run(
        known,
        walking=["walk-away-s7"],
        driving=["drive-past-s13"],
        load="static-s5",
        base_s=0.0015,
        per_s=0.006,
        spread=0.1,
        local_passes=120,
        server_passes=15,
        trials=1,
        duration_s=70.0,
        load_duration_s=200.0,
    )
    by = figures["scenarios"]["load"]["policies"]["no"]
    assert by["brute-force"]["hedged_share"] > 0.5
    best = min(by[name]["wait_s"] for name in offload_analysis.SIMPLE)
    assert by["brute-force"]["wait_s"] <= best + 0.05
    assert by["local-only"]["remote_share"] == 0.0
    assert figures["scenarios"]["load"]["others_mean"] > 2.0


def test_utterances_are_those_of_the_paper() -> None:
    tasks = utterances(1200.0, 1)
    assert len({each.length_s for each in tasks}) <= 20
    assert all(LENGTHS_S[0] <= each.length_s <= LENGTHS_S[1] for each in tasks)
    assert tasks[20].length_s == tasks[0].length_s
    assert tasks[0].up_bytes == pytest.approx(20_000 * tasks[0].length_s, abs=1)


def test_worse_means_beyond_the_interval() -> None:
    assert beside([2.0, 2.1, 2.2], [1.0, 1.1, 1.2])["worse"]
    assert not beside([2.0, 0.1, 2.2], [1.0, 1.1, 1.2])["worse"]
    assert not beside([1.0, 1.0], [1.0, 1.0])["worse"]


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"trials": 0}, "at least one"),
        ({"device": "nokia-3310"}, "no device 'nokia-3310'; there are"),
        ({"cellular": "6g"}, "has no radio '6g'; it has"),
        ({"walking": ["nowhere"]}, "no place 'nowhere'"),
        ({"driving": []}, "at least one place"),
    ],
)
def test_what_cannot_be_carried_out_is_refused(wrong: dict, message: str) -> None:
    wanted = {"walking": ["walk-away-s7"], "driving": ["drive-past-s13"], "trials": 1} | wrong
    with pytest.raises(CedosError, match=message):
        exchanges_analysis.run(places.load(HERE), duration_s=30.0, **wanted)


def test_noise_agrees_and_what_is_always_later_does_not() -> None:
    noisy = agreement(
        "s", [[(1.1, 1.0), (2.0, 2.1)], [(1.0, 1.1), (2.1, 2.0)], [(1.3, 1.1), (2.0, 2.1)]]
    )
    assert noisy["agree"]
    assert noisy["difference_s"] == pytest.approx(0.05 / 3, abs=1e-4)
    assert noisy["live_s"] - noisy["simulated_s"] == pytest.approx(noisy["difference_s"], abs=2e-4)
    late = agreement("s", [[(1.10, 1.0)], [(1.11, 1.0)], [(1.09, 1.0)]])
    assert not late["agree"]
    low, high = late["difference_s_ci95"]
    assert 0.0 < low < 0.1 < high
    assert late["difference_median_s"] == pytest.approx(0.1)

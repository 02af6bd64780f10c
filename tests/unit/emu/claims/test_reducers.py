"""Ratios by place and by group of places, of runs made by hand."""

import pytest

from emu.claims import expressions


def run(place, **means):
    policies = {
        name.replace("_", "-"): {"mean_s": value, "n": 10, "energy_j": 1.0}
        for name, value in means.items()
    }
    return {"place": place, "policies": policies}


RUNS = [
    run("a-1", cedos=2.0, mptcp_cellular=1.0, wifi_first=4.0),
    run("a-1", cedos=2.0, mptcp_cellular=3.0, wifi_first=1.0),
    run("a-2", cedos=1.0, mptcp_cellular=2.0, wifi_first=4.0),
    run("b-1", cedos=3.0, mptcp_cellular=2.0, wifi_first=4.0),
]


def test_the_best_fixed_policy_is_that_of_the_run_of_all_or_of_the_place():
    assert expressions.in_hindsight(RUNS, "cedos") == pytest.approx(8 / 6)
    assert expressions.over_best(RUNS, "cedos") == pytest.approx(8 / 8)
    assert expressions.over_best_of_place(RUNS, "cedos", "a-1") == pytest.approx(4 / 4)
    assert expressions.over_best_of_place(RUNS, "cedos", "a-2") == pytest.approx(1 / 2)
    assert expressions.over_best_of_each(RUNS, "cedos") == pytest.approx(8 / 8)
    assert expressions.places_over(RUNS, "cedos", 1.0) == 1


def test_an_interval_by_groups_is_wider_than_one_group_alone():
    value, low, high = expressions.over_by_group(RUNS, "cedos", "mptcp-cellular")
    assert value == pytest.approx(1.0)
    assert low < value < high
    (only,) = {tuple(expressions.over_by_group(RUNS[3:], "cedos", "mptcp-cellular"))}
    assert only == pytest.approx((1.5, 1.5, 1.5))


def test_a_mean_over_transfers_weighs_runs_by_their_transfers():
    runs = [run("a", cedos=1.0), run("b", cedos=4.0)]
    runs[1]["policies"]["cedos"]["n"] = 30
    assert expressions.transfer_mean(runs, "cedos") == pytest.approx(13 / 4)

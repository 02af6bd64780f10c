"""The expressions and reducers of claims."""

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cedos.errors import DataSetError
from emu.claims import expressions
from emu.claims.expressions import evaluate

FILES = {
    "one.json": {
        "a": 2.0,
        "runs": [
            {"place": "p02", "n": 2, "t": 1.0, "whole": True},
            {"place": "sbu7-1", "n": 4, "t": 3.0, "whole": False},
        ],
        "by name": {"x, y": {"v": 5}, "z": {"v": 7}},
        "interval": [-0.5, 1.5],
        "none": None,
    },
    "two.json": {"b": 8},
}


def at(expression):
    return evaluate(expression, "one.json", FILES.__getitem__)


@pytest.mark.parametrize(
    ("expression", "numbers"),
    [
        ("/a", [2.0]), ("100 * /a - 50", [150.0]), ("-/a + 2 * 3", [4.0]),
        ("(1 + 2) * 3 / /a", [4.5]), ("/interval", [-0.5, 1.5]), ("/interval/1", [1.5]),
        ("/runs/*/t", [1.0, 3.0]), ("/runs/*/n * /runs/*/t", [2.0, 12.0]),
        ("sum(/runs/*/n * /runs/*/t) / sum(/runs/*/n)", [14 / 6]), ("/runs/[place=p02]/t", [1.0]),
        ("mean(/runs/[place=p02|sbu7-1]/t)", [2.0]), ("/'by name'/'x, y'/v", [5.0]),
        ("/'by name'/{z|x, y}/v", [7.0, 5.0]), ("count(/runs)", [2.0]),
        ("count(/runs) - sum(/runs/*/whole)", [1.0]), ("two.json:/b / /a", [4.0]),
        ("max(/runs/*/t)", [3.0]), ("100 / 8", [12.5]),
    ],
)  # fmt: skip
def test_expressions(expression, numbers):
    assert at(expression) == pytest.approx(numbers)


@pytest.mark.parametrize(
    "wrong",
    [
        "", "/missing", "/runs/5/t", "/a +", "(/a", "/a)", "nothing(/a)", "/none", "/runs", "/a /a",
        "%",
    ],
)  # fmt: skip
def test_what_leads_to_no_number_is_refused_by_name(wrong):
    with pytest.raises(DataSetError):
        at(wrong)


@given(st.text(max_size=30))
def test_any_text_gives_numbers_or_an_error_of_ours(text):
    with suppress(DataSetError):
        assert all(isinstance(each, float) for each in at(text))


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


def test_the_best_fixed_policy_is_that_of_all_or_of_the_place():
    assert expressions.over_best(RUNS, "cedos") == pytest.approx(8 / 8)
    assert expressions.over_best_of_place(RUNS, "cedos", "a-1") == pytest.approx(4 / 4)
    assert expressions.over_best_of_place(RUNS, "cedos", "a-2") == pytest.approx(1 / 2)
    assert expressions.over_best_of_each(RUNS, "cedos") == pytest.approx(8 / 8)


def test_an_interval_by_groups_is_wider_than_one_group_alone():
    value, low, high = expressions.over_by_group(RUNS, "cedos", "mptcp-cellular")
    assert value == pytest.approx(1.0)
    assert low < value < high
    (only,) = {tuple(expressions.over_by_group(RUNS[3:], "cedos", "mptcp-cellular"))}
    assert only == pytest.approx((1.5, 1.5, 1.5))

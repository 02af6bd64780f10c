"""Expressions lead from result files to numbers, and say where they do not."""

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cedos.errors import DataSetError
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

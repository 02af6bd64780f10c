import random
from math import inf

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from emu.experiments.meatballs.offload import VALUE, ComputePredictor


def test_a_computation_is_a_line_over_its_parameters():
    dice = random.Random(1)
    predictor = ComputePredictor(("length_s", "words"), "recognition")
    for k in range(60):
        length_s, words = dice.uniform(1, 8), dice.uniform(2, 30)
        took_s = (0.4 + 0.6 * length_s + 0.02 * words) * dice.lognormvariate(0.0, 0.05)
        told = predictor.observe({"length_s": length_s, "words": words}, took_s, float(k))
        assert told[0].quantity == "recognition"
        assert told[0].prediction == 1.0
    assert predictor.point({"length_s": 5.0, "words": 10.0}) == pytest.approx(3.6, rel=0.05)
    assert predictor.predict({"length_s": 5.0, "words": 10.0})[VALUE].quantile(0.95) < 4.5


def test_two_runs_of_about_the_same_length_say_little_of_longer_ones():
    """The longer one took a little less, by chance: a line through both would cross zero soon."""
    predictor = ComputePredictor(("length_s",))
    predictor.observe({"length_s": 1.5}, 1.2, 0.0)
    predictor.observe({"length_s": 1.6}, 1.1, 30.0)
    assert 1.5 < predictor.point({"length_s": 6.0}) < 5.0
    for k, length_s in enumerate((4.0, 7.0, 2.0, 5.0, 6.5)):
        predictor.observe({"length_s": length_s}, 0.75 * length_s, 60.0 + 30.0 * k)
    assert predictor.point({"length_s": 6.0}) == pytest.approx(4.5, rel=0.05)


@settings(max_examples=40)
@given(st.lists(st.tuples(st.floats(), st.floats()), max_size=15), st.floats())
@example([(0.0, 740991.0), (1.0, 0.0078125)], 0.0)
def test_whatever_is_observed_predictions_stay_numbers(runs, at):
    predictor = ComputePredictor(("x",))
    for x, value in runs:
        predictor.observe({"x": x}, value, 0.0)
    found = predictor.predict({"x": at})[VALUE].samples
    assert all(0.0 < each < inf for each in found)

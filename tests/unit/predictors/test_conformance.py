"""What every predictor keeps to, whatever it predicts: one suite for all of them."""

from collections.abc import Callable, Mapping
from itertools import pairwise
from math import isfinite

import pytest
from hypothesis import given
from hypothesis import strategies as st

from predictors.adapt import Adaptive
from predictors.base import Predictor
from predictors.inputs import COLUMNS
from predictors.train import KINDS, fit
from predictors.train_examples import Examples, Settings

FEW = {"trees": 3, "forest": 2, "boosting": 5}
PREDICTORS: Mapping[str, Callable[[Examples], Predictor]] = {
    **{
        kind: lambda examples, kind=kind: fit(examples, Settings(kind=kind, trees=FEW.get(kind)))
        for kind in KINDS
    },
    "adaptive": lambda examples: Adaptive(fit(examples, Settings(trees=3))),
}


@pytest.fixture(scope="module", params=PREDICTORS)
def predictor(request: pytest.FixtureRequest, examples: Examples) -> Predictor:
    return PREDICTORS[request.param](examples)


def test_features_are_known_columns(predictor: Predictor) -> None:
    assert set(predictor.features) <= set(COLUMNS)
    assert len(set(predictor.features)) == len(predictor.features)


@given(
    st.dictionaries(st.sampled_from(COLUMNS), st.one_of(st.just(float("nan")), st.floats(0, 1e9))),
    st.floats(1, 1e10),
)
def test_whatever_is_known_it_predicts_positive_ascending_samples(
    predictor: Predictor, columns: dict[str, float], size: float
) -> None:
    for distribution in predictor.predict(columns | {"size_bytes": size}).values():
        assert all(isfinite(sample) and sample > 0.0 for sample in distribution.samples)
        assert all(low <= high for low, high in pairwise(distribution.samples))


def test_facts_in_answer_out(predictor: Predictor, usual: Mapping[str, float]) -> None:
    facts = dict(usual)
    assert predictor.predict(facts) == predictor.predict(facts)
    assert facts == usual


def test_it_learns_from_what_happened(predictor: Predictor, usual: Mapping[str, float]) -> None:
    for name, before in predictor.predict(usual).items():
        for _ in range(30):
            predictor.update(usual, name, 4.0 * before.mean)
        assert predictor.predict(usual)[name].mean > before.mean

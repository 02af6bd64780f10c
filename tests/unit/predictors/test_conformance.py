"""Conformance of predictors: one suite for all of them."""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from math import isfinite, nan

import pytest
from hypothesis import given
from hypothesis import strategies as st

from emu.experiments.meatballs.offload import ComputePredictor
from predictors.base import Predictor
from predictors.dwell import DwellPredictor
from predictors.inputs import COLUMNS
from predictors.network import NetworkPredictor
from predictors.training.examples import Settings
from predictors.training.train import KINDS, fit

FEW = {"trees": 3, "forest": 2, "boosting": 5}
ANYTHING = st.one_of(st.just(nan), st.just(float("inf")), st.floats(0, 1e9))


@dataclass
class Case:
    """A predictor, the columns that it may look at, and facts of an ordinary moment."""

    predictor: Predictor
    columns: tuple[str, ...]
    usual: Mapping[str, float]


def network():
    predictor = NetworkPredictor("wifi")
    for size in (1e3, 4e5, 2e3, 3e5, 1e3):
        predictor.observe(size, 0.05 + 8.0 * size / 5e6, 0.0)
    return predictor


def dwell():
    predictor = DwellPredictor()
    for session_s in (5.0, 60.0, 400.0):
        predictor.observe("a", session_s)
    return predictor


def compute():
    predictor = ComputePredictor(("length_s",))
    for length_s in (1.0, 3.0, 8.0):
        predictor.observe({"length_s": length_s}, 0.5 + 0.7 * length_s, 0.0)
    return predictor


TRAINED = {
    **{
        kind: lambda examples, kind=kind: fit(examples, Settings(kind=kind, trees=FEW.get(kind)))
        for kind in KINDS
    }
}
MEASURING = {
    "network": (network, ("size_bytes", "at_s"), {"size_bytes": 5e4, "at_s": 1.0}),
    "dwell": (dwell, ("age_s",), {"age_s": 10.0}),
    "compute": (compute, ("length_s", "at_s"), {"length_s": 2.0, "at_s": 1.0}),
}
USUAL_TRANSFER = {
    "size_bytes": 300_000.0, "direction_up": 0.0, "wifi_rtt_s": 0.02, "wifi_past1_bps": 20e6,
    "cellular_rtt_s": 0.05, "cellular_past1_bps": 30e6,
}  # fmt: skip


@pytest.fixture(scope="module", params=[*TRAINED, *MEASURING])
def case(request, examples):
    if request.param in TRAINED:
        return Case(TRAINED[request.param](examples), COLUMNS, USUAL_TRANSFER)
    make, columns, usual = MEASURING[request.param]
    return Case(make(), columns, usual)


def test_features_are_known_columns(case):
    assert set(case.predictor.features) <= set(case.columns)
    assert len(set(case.predictor.features)) == len(case.predictor.features)


@given(st.data(), st.floats(1, 1e10))
def test_whatever_is_known_it_predicts_positive_ascending_samples(case, data, size):
    columns = data.draw(st.dictionaries(st.sampled_from(case.columns), ANYTHING))
    if case.columns is COLUMNS:
        columns = {name: value for name, value in columns.items() if value != float("inf")}
    for distribution in case.predictor.predict(columns | {"size_bytes": size}).values():
        assert all(isfinite(sample) and sample > 0.0 for sample in distribution.samples)
        assert all(low <= high for low, high in pairwise(distribution.samples))


def test_facts_in_answer_out(case):
    facts = dict(case.usual)
    assert case.predictor.predict(facts) == case.predictor.predict(facts)
    assert facts == case.usual

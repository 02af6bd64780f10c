"""Sizes and shapes of held-out errors."""

from collections.abc import Callable
from dataclasses import replace
from math import exp, log

import numpy as np
import pytest

from predictors.held_out import LEAST_SIZE, around
from predictors.training.examples import Examples, Settings
from predictors.training.train import fit


def test_errors_stand_around_the_point_and_widen_around_their_median() -> None:
    assert around(2.0, log(2.0), (-1.0, 0.0, 1.0), 1.0).samples == pytest.approx((1.0, 2.0, 4.0))
    assert around(2.0, log(2.0), (-1.0, 0.0, 1.0), 2.0).samples == pytest.approx((0.5, 2.0, 8.0))
    # The median of an even number is between the two in the middle.
    assert around(1.0, 1.0, (0.0, 2.0), 3.0).samples == pytest.approx((exp(-2.0), exp(4.0)))
    assert max(around(1.0, 3.0, (0.0, 50.0), 9.0).samples) < 1e11


def test_intervals_are_wide_where_a_network_cannot_be_foretold(
    made_up: Callable[..., Examples],
) -> None:
    """Half of the rows have lost pings, and are ten times as slow or fast as the others, by chance."""
    examples = made_up(groups=20, each=40, seed=8)
    rng = np.random.default_rng(9)
    wild = rng.random(len(examples)) < 0.5
    factor = np.where(wild, np.exp(rng.normal(0.0, 1.5, len(examples))), 1.0)
    told = replace(
        examples,
        columns={**examples.columns, "wifi_ping_loss": np.where(wild, 0.4, 0.0)},
        times_s={**examples.times_s, "wifi": factor * examples.times_s["wifi"]},
    )
    model = fit(told, Settings(trees=5))

    def spread(row: dict[str, float], name: str) -> float:
        found = model.predict(row)[name]
        return log(found.quantile(0.95) / found.quantile(0.05))

    rows = [told.row(k) for k in range(0, len(told), 7)]
    calm = [row | {"wifi_ping_loss": 0.0} for row in rows]
    lossy = [row | {"wifi_ping_loss": 0.4} for row in rows]
    wide, narrow = (np.median([spread(row, "wifi") for row in each]) for each in (lossy, calm))
    assert wide > 2.0 * narrow
    # The other network's errors are its own.
    wide, narrow = (np.median([spread(row, "cellular") for row in each]) for each in (lossy, calm))
    assert wide < 1.5 * narrow


def test_a_model_that_never_errs_is_not_believed_to_the_last_digit(examples: Examples) -> None:
    perfect = replace(
        examples,
        columns={"size_bytes": examples.columns["size_bytes"]},
        times_s={name: np.ones(len(examples)) for name in examples.times_s},
    )
    same_size = replace(perfect, columns={"size_bytes": np.full(len(examples), 3e3)})
    model = fit(same_size, Settings(trees=3))
    assert all(size >= LEAST_SIZE for size in model.errors.sized([8.0] * 200))
    assert model.predict({"size_bytes": 3e3})["wifi"].mean == pytest.approx(1.0, abs=0.02)

"""Completion times of all strategies: a regressor for the point, held-out errors for the spread.

**Point.** Delphi predicts one completion time per strategy by a regression tree and never adds
single-path predictions to get MPTCP (section 6). Three things differ here, because each predicts
better at places that were never measured (figures: `docs/decisions/completion-trees.md`):

- A regressor learns a ratio: the logarithm of the real time divided by the naive time. The naive
  time is the textbook's, without learning (`predictors.inputs`).
- One tree may hold the answers for all strategies in its leaves. So it learns their differences well.
- Several trees may be averaged.

Any other family of models can take the place of the trees (`predictors.regressor`).

**Spread.** The relative error of a prediction is the real time divided by the predicted one. Meatballs
keeps one distribution of it for each predictor (dissertation, 4.3.1). But the size of errors differs
much between places and moments: 5 % where a network is steady, a factor of ten where it comes and
goes. The shape of their distribution differs little. So a forest predicts, from the same inputs, the
*size*: the expected absolute logarithm of the relative error. The distribution of the logarithm is
one of a few standard shapes, multiplied by that size.
"""

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import exp, isfinite
from typing import Any
from zlib import crc32

from predictors import regressor
from predictors.base import Distribution
from predictors.inputs import COLUMNS, INPUTS, STRATEGIES, inputs_of
from predictors.regressor import Forest, Regressor, mirror

# The largest logarithmic error. `exp` of it stays finite.
_LARGEST = 25.0

# The least expected error: 1 %.
LEAST_SIZE = 0.01

# By strategy: logarithmic errors divided by their expected size, ascending and equally likely.
Shape = Mapping[str, tuple[float, ...]]


@dataclass(frozen=True, slots=True)
class HeldOutErrors:
    """Relative errors (real divided by predicted time) at places that were held out of training."""

    # Predicts the expected absolute logarithm of the relative error, for each strategy.
    sizes: Forest
    limits: tuple[float, ...]  # the sizes at which the next shape begins, ascending
    shapes: tuple[Shape, ...]  # one more than `limits`; the first one is for the smallest sizes

    def expected_sizes(self, both: Sequence[float]) -> list[float]:
        """Return the expected size of each strategy's logarithmic error.

        `both`: the inputs and their negatives (`regressor.mirror`).
        """
        return [max(size, LEAST_SIZE) for size in self.sizes.walk(both)]

    def shape(self, size: float) -> int:
        """Return the index in `shapes` of the shape for errors of this size."""
        return bisect_right(self.limits, size)

    def to_dict(self) -> dict[str, Any]:
        return {
            "sizes": self.sizes.to_dict(),
            "limits": list(self.limits),
            "shapes": [{name: list(shape[name]) for name in shape} for shape in self.shapes],
        }

    @classmethod
    def from_dict(
        cls, data: Mapping[str, Any], inputs: Sequence[str], names: Sequence[str]
    ) -> "HeldOutErrors":
        """Rebuild them for a model of these inputs and strategies.

        ValueError: says what is wrong with them. KeyError, TypeError: something is missing, or of
        another type.
        """
        # Check all numbers: a model file comes from outside.
        limits = tuple(float(limit) for limit in data["limits"])
        if not all(map(isfinite, limits)) or list(limits) != sorted(limits):
            raise ValueError("the limits of error sizes must ascend")
        shapes = tuple(
            {name: _ascending(shape[name]) for name in names} for shape in data["shapes"]
        )
        if len(shapes) != len(limits) + 1:
            raise ValueError(f"{len(limits)} limits part {len(limits) + 1} shapes of errors")
        return cls(Forest.rebuild(data["sizes"], inputs, len(names)), limits, shapes)


def distribution_around(
    point: float,  # the predicted value
    size: float,  # the expected absolute logarithm of the relative error
    shape: Sequence[float],  # logarithmic errors divided by their expected size, ascending
) -> Distribution:
    """Return the distribution of a quantity around its predicted value."""
    # Keep the largest value within floating-point numbers.
    if size * shape[-1] > _LARGEST:
        size = _LARGEST / shape[-1]
    return Distribution(tuple([point * exp(size * each) for each in shape]))


def _ascending(data: Sequence[float]) -> tuple[float, ...]:
    shape = tuple(float(each) for each in data)
    if not shape or list(shape) != sorted(shape):
        raise ValueError("errors must ascend")
    if not all(map(isfinite, shape)):
        raise ValueError("errors must be finite")
    return shape


# The columns for which the model has a typical value, used where nothing is known.
STAND_INS = ("wifi_rtt_s", "wifi_past1_bps", "cellular_rtt_s", "cellular_past1_bps")


@dataclass(slots=True)
class CompletionModel:
    """A predictor of completion times in seconds, from the columns of a transfer data set."""

    features: tuple[str, ...]  # the columns that the model was trained with
    # The values used for unknown round trips (s) and rates (bit/s), by `STAND_INS`.
    typical: Mapping[str, float]
    # Regressors, each with its strategies. A regressor predicts the logarithm of the real time
    # divided by the naive time.
    parts: tuple[tuple[tuple[str, ...], Regressor], ...]
    errors: HeldOutErrors  # the distribution of the errors around the predicted time
    # What the model was trained on; plain data for people.
    provenance: Mapping[str, Any] = field(default_factory=dict)
    _fingerprint: str = field(default="", init=False, repr=False, compare=False)

    def fingerprint(self) -> str:
        """Return a checksum of the trained model.

        The daemon keeps it beside the corrections that it learns: they are of no use to another model.
        """
        if not self._fingerprint:  # the shipped model takes a quarter of a second
            self._fingerprint = f"{crc32(repr(self.to_dict()).encode()):08x}"
        return self._fingerprint

    @property
    def strategies(self) -> tuple[str, ...]:
        return tuple(name for names, _ in self.parts for name in names)

    def points(self, features: Mapping[str, float]) -> dict[str, float]:
        """Return the predicted completion time of each strategy, s, before any spread."""
        inputs, naive_s = inputs_of(features, self.typical)
        return self._points(mirror(inputs), naive_s)

    def naive(self, features: Mapping[str, float]) -> dict[str, float]:
        """Return the naive time of each strategy, s, from which the regressors start."""
        return inputs_of(features, self.typical)[1]

    def predict(self, features: Mapping[str, float]) -> dict[str, Distribution]:
        """Return the completion time of each strategy as a distribution in seconds.

        Args:
            features: `size_bytes`, and what is known of the other columns; NaN is unknown.

        Raises:
            KeyError: without `size_bytes`.
        """
        inputs, naive_s = inputs_of(features, self.typical)
        both = mirror(inputs)
        # The point from the regressors, the spread from the shape for its expected size of errors.
        errors = self.errors
        points = self._points(both, naive_s)
        return {
            name: distribution_around(point, size, errors.shapes[errors.shape(size)][name])
            for (name, point), size in zip(points.items(), errors.expected_sizes(both), strict=True)
        }

    def _points(self, both: Sequence[float], naive_s: Mapping[str, float]) -> dict[str, float]:
        return {
            name: naive_s[name] * exp(log_ratio)
            for names, part in self.parts
            for name, log_ratio in zip(names, part.walk(both), strict=True)
        }

    def to_dict(self) -> dict[str, Any]:
        """Return the trained model as plain data for JSON."""
        return {
            "features": list(self.features),
            "inputs": list(INPUTS),
            "typical": dict(self.typical),
            "parts": [
                {"strategies": list(names), "kind": regressor.kind_of(part), **part.to_dict()}
                for names, part in self.parts
            ],
            "errors": self.errors.to_dict(),
            "provenance": dict(self.provenance),
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> "CompletionModel":
        """Rebuild a model from the data that `to_dict` returned.

        Another version may have written them, if this one knows their inputs, features and strategies.
        ValueError: says what is wrong with it.
        """
        try:
            return cls._from_dict(data)
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"not a completion model: {error!r}") from error

    @classmethod
    def _from_dict(cls, data: Mapping[str, Any]) -> "CompletionModel":
        # Refuse inputs, features and strategies that this version does not know.
        inputs = [str(name) for name in data["inputs"]]
        _check_known("inputs", inputs, INPUTS)
        features = tuple(str(name) for name in data["features"])
        _check_known("features", features, COLUMNS)
        typical = {name: float(data["typical"][name]) for name in STAND_INS}
        if not all(isfinite(value) and value > 0.0 for value in typical.values()):
            raise ValueError("typical values must be positive")
        parts = []
        for each in data["parts"]:
            of = tuple(str(name) for name in each["strategies"])
            _check_known("strategies", of, STRATEGIES)
            parts.append((of, regressor.from_dict(each, inputs, len(of))))
        if not parts:
            raise ValueError("a model without regressors")
        # Each strategy has one regressor.
        names = tuple(name for known, _ in parts for name in known)
        if len(set(names)) != len(names):
            raise ValueError("a strategy is predicted twice")
        return cls(
            features,
            typical,
            tuple(parts),
            HeldOutErrors.from_dict(data["errors"], inputs, names),
            dict(data["provenance"]),
        )


def _check_known(what: str, names: Sequence[str], known: Sequence[str]) -> None:
    foreign = sorted(set(names) - set(known))
    if foreign:
        raise ValueError(f"it has {what} that are not known here: {', '.join(foreign)}")
    if not names:
        raise ValueError(f"it has no {what}")

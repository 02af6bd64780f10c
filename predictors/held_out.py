"""Errors at places held out of training: how large they are here, and of what shape.

Meatballs keeps one distribution of relative errors for each predictor (dissertation, 4.3.1). Between
places and moments errors differ by far more than their shape does: a twentieth where a network has been
steady, tenfold where it comes and goes. So a forest over the same inputs says how large the logarithm
of the relative error will be, and its distribution is that size times one of a few standard shapes.
"""

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import exp, isfinite
from typing import Any

from predictors.base import Distribution
from predictors.tree import Forest

_LARGEST = 25.0
"""No error is beyond all numbers, however wide."""

LEAST_SIZE = 0.01
"""No error is expected to be smaller: 1 %."""

Shape = Mapping[str, tuple[float, ...]]
"""By strategy, logarithmic errors over their expected size: ascending, equally likely."""


@dataclass(frozen=True, slots=True)
class HeldOutErrors:
    """Relative errors (real over predicted) at places held out of training.

    Attributes:
        sizes: the expected absolute logarithm of the relative error, one output per strategy.
        limits: sizes that part one shape from the next, ascending.
        shapes: one more than `limits`, the one for the smallest sizes first.
    """

    sizes: Forest
    limits: tuple[float, ...]
    shapes: tuple[Shape, ...]

    def sized(self, both: Sequence[float]) -> list[float]:
        """The expected size of each strategy's logarithmic error for `mirrored` inputs."""
        return [max(size, LEAST_SIZE) for size in self.sizes.walk(both)]

    def shape(self, size: float) -> int:
        """The number of the shape that errors of this size have."""
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
        """Rebuilds them for a model of these inputs and strategies.

        Raises:
            ValueError: says what is wrong with them.
            KeyError, TypeError: something is missing, or of another type.
        """
        limits = tuple(float(limit) for limit in data["limits"])
        if not all(map(isfinite, limits)) or list(limits) != sorted(limits):
            raise ValueError("the limits of error sizes must ascend")
        shapes = tuple(
            {name: _ascending(shape[name]) for name in names} for shape in data["shapes"]
        )
        if len(shapes) != len(limits) + 1:
            raise ValueError(f"{len(limits)} limits part {len(limits) + 1} shapes of errors")
        return cls(Forest.over(data["sizes"], inputs, len(names)), limits, shapes)


def around(point: float, size: float, shape: Sequence[float], widening: float) -> Distribution:
    """A predicted quantity with its errors.

    Args:
        point: what is predicted of it.
        size: the expected absolute logarithm of its relative error.
        shape: logarithmic errors over that, ascending.
        widening: multiplies their distances from the median.
    """
    if widening != 1.0:
        half = len(shape) // 2
        middle = shape[half] if len(shape) % 2 else 0.5 * (shape[half - 1] + shape[half])
        shape = [middle + widening * (each - middle) for each in shape]
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

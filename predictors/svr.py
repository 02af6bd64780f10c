"""Support vector regression with a radial basis kernel, as plain lists (Delphi, section 6.1).

One machine per strategy, each over the inputs that are most correlated with its target. A machine
knows no missing values: a middle one stands in for them, and a flag of its own, standardised like
every input, says so. A prediction walks all support vectors, some thousands of multiplications in
plain Python; trees are faster by a factor of a hundred, so this is for comparison rather than for the
daemon, which loads it all the same.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import exp, isfinite
from typing import Any

from predictors.inputs import INPUTS

_LARGEST = 25.0


@dataclass(frozen=True, slots=True)
class Machine:
    """One strategy's machine.

    Attributes:
        inputs: names of inputs; the flag "it is missing" of an input is called `missing NAME`.
        fill: what stands in for a missing value, per entry of `inputs` (0 for flags).
        mean: subtracted, per entry.
        scale: what the difference is divided by, per entry.
        gamma: of the kernel exp(-gamma * squared distance).
        vectors: the support vectors, standardised.
        intercept: what is predicted far from all of them.
    """

    inputs: tuple[str, ...]
    fill: tuple[float, ...]
    mean: tuple[float, ...]
    scale: tuple[float, ...]
    gamma: float
    vectors: tuple[tuple[float, ...], ...]
    weights: tuple[float, ...]
    intercept: float
    _at: list[tuple[int, bool]] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        at = [
            (INPUTS.index(name.removeprefix(MISSING)), name.startswith(MISSING))
            for name in self.inputs
        ]
        object.__setattr__(self, "_at", at)

    def predict(self, inputs: Sequence[float]) -> float:
        """The machine's number for values of `INPUTS`, NaN where unknown."""
        point = []
        for (index, flag), fill, mean, scale in zip(
            self._at, self.fill, self.mean, self.scale, strict=True
        ):
            value = inputs[index]
            missing = value != value  # noqa: PLR0124  (only NaN differs from itself)
            value = float(missing) if flag else fill if missing else value
            point.append((value - mean) / scale)
        total = self.intercept
        for vector, weight in zip(self.vectors, self.weights, strict=True):
            distance = sum([(a - b) ** 2 for a, b in zip(point, vector, strict=True)])
            total += weight * exp(-self.gamma * distance)
        return min(max(total, -_LARGEST), _LARGEST)

    def to_dict(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in _FIELDS}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any], inputs: Sequence[str]) -> "Machine":
        """Rebuilds a machine; ValueError if it is none over these inputs."""
        try:
            names = tuple(str(name) for name in data["inputs"])
            fill, mean, scale, weights = (
                tuple(float(v) for v in data[name]) for name in ("fill", "mean", "scale", "weights")
            )
            vectors = tuple(tuple(float(v) for v in vector) for vector in data["vectors"])
            gamma, intercept = float(data["gamma"]), float(data["intercept"])
        except (KeyError, TypeError) as error:
            raise ValueError(f"not a support vector machine: {error!r}") from error
        if not names or not {name.removeprefix(MISSING) for name in names} <= set(inputs):
            raise ValueError("a support vector machine over other inputs")
        lengths = {len(names), len(fill), len(mean), len(scale), *map(len, vectors)}
        if len(lengths) != 1 or len(vectors) != len(weights):
            raise ValueError("a support vector machine whose lists differ in length")
        numbers = [*fill, *mean, *scale, *weights, gamma, intercept]
        if not all(isfinite(v) for v in numbers) or min(*scale, gamma) <= 0.0:
            raise ValueError("a support vector machine with impossible numbers")
        if not all(isfinite(v) for vector in vectors for v in vector):
            raise ValueError("a support vector machine with impossible vectors")
        return cls(names, fill, mean, scale, gamma, vectors, weights, intercept)


MISSING = "missing "
_FIELDS = ("inputs", "fill", "mean", "scale", "gamma", "vectors", "weights", "intercept")


@dataclass(frozen=True, slots=True)
class Machines:
    machines: tuple[Machine, ...]

    def walk(self, both: Sequence[float]) -> list[float]:
        inputs = both[::2]
        return [machine.predict(inputs) for machine in self.machines]

    def to_dict(self) -> dict[str, Any]:
        return {"machines": [machine.to_dict() for machine in self.machines]}

    @classmethod
    def over(cls, data: Mapping[str, Any], inputs: Sequence[str], outputs: int) -> "Machines":
        """Rebuilds machines; ValueError as `Machine.from_dict`, or if there are not `outputs`."""
        try:
            machines = tuple(Machine.from_dict(each, inputs) for each in data["machines"])
        except (KeyError, TypeError) as error:
            raise ValueError(f"not support vector machines: {error!r}") from error
        if len(machines) != outputs:
            raise ValueError(f"{len(machines)} support vector machines for {outputs} strategies")
        return cls(machines)

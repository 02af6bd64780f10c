"""Regressors: trees, forests and support vector machines as plain data, walked in Python.

A regressor maps the inputs (`predictors.inputs.INPUTS`) to the logarithm of real over naive time,
one number for each of some strategies. A model file names its family by `kind`.

**Trees.** A tree is stored as scikit-learn stores it (parallel arrays, one entry per node), so that
a file can be compared with its source. For walking it is rebuilt once as nested tuples: a quarter
of a microsecond per tree of depth 7, where `sklearn.predict` takes about 60.

**Support vector regression** with a radial basis kernel (Delphi, section 6.1). Each strategy has a
machine over the inputs most correlated with its target. A machine cannot handle missing values: the
median stands in for one, and a further input, a flag, tells that it was missing. A prediction goes
through all support vectors, some thousands of multiplications in plain Python. Trees are a hundred times
as fast, so machines serve only for comparison.
"""

from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import exp, inf, isfinite, nextafter
from typing import Any, Protocol

from predictors.inputs import INPUTS, Rule

_LEAF = -1
_LARGEST_LOG = 60.0
_DOUBLE_BYTES = 8
_FIELDS = ("feature", "threshold", "left", "right", "missing_left", "value")

# (Number among the mirrored inputs, threshold, child if the input is <= the threshold, child otherwise
# and for NaN); or for a leaf (None, its values, None, None). Nodes and leaves have the same form, because
# that is unpacked quickest. No number is negative: a list looks up its last entries in a slower way.
_Walk = tuple[int | None, Any, Any, Any]


@dataclass(frozen=True, slots=True)
class Tree:
    """A tree: entry k of each array belongs to node k, node 0 is the root."""

    feature: "array[int]"  # the input that the node looks at; -1: it is a leaf
    threshold: "array[float]"  # `input <= threshold` goes left
    left: "array[int]"  # index of the left child
    right: "array[int]"  # index of the right child
    missing_left: "array[int]"  # whether NaN goes left
    # What a leaf predicts, one double per output; empty elsewhere. Packed: objects would take six
    # times the memory, and those of a walk are unpacked at once.
    value: tuple[bytes, ...]

    def to_dict(self) -> dict[str, Any]:
        """Return plain data for JSON; `from_dict` gives the same tree back."""
        plain = {name: list(getattr(self, name)) for name in _FIELDS}
        plain["missing_left"] = [bool(each) for each in self.missing_left]
        plain["value"] = [list(self.leaf(node)) for node in range(len(self.value))]
        return plain

    @classmethod
    def of(
        cls,
        feature: Iterable[int],
        threshold: Iterable[float],
        left: Iterable[int],
        right: Iterable[int],
        missing_left: Iterable[int],
        value: Iterable[Iterable[float]],
    ) -> "Tree":
        """Make a tree from plain lists, as packed copies: they keep none of a decoded file in memory."""
        return cls(
            array("i", feature),
            array("d", threshold),
            array("i", left),
            array("i", right),
            array("b", missing_left),
            tuple([array("d", leaf).tobytes() for leaf in value]),
        )

    def leaf(self, node: int) -> "array[float]":
        """Return the prediction of a leaf."""
        return array("d", self.value[node])

    @classmethod
    def from_dict(cls, data: Mapping[str, Any], inputs: int, outputs: int) -> "Tree":
        """Rebuild a tree from untrusted data.

        `data`: what `to_dict` gave.

        ValueError: it is no tree, or one over other inputs or outputs.
        """
        try:
            tree = cls.of(*(data[name] for name in _FIELDS))
            tree._check(inputs, outputs)
        except (KeyError, TypeError, IndexError, OverflowError) as error:
            raise ValueError(f"not a tree: {error!r}") from error
        return tree

    def with_inputs_at(self, at: Sequence[int]) -> "Tree":
        """Return the same tree with input k moved to input `at[k]`."""
        feature = array("i", [at[index] if index >= 0 else index for index in self.feature])
        return replace(self, feature=feature)

    def _check(self, inputs: int, outputs: int) -> None:
        count = len(self.feature)
        if not count or any(len(getattr(self, name)) != count for name in _FIELDS):
            raise ValueError("a tree's arrays differ in length, or it has no node")
        for node, feature in enumerate(self.feature):
            if feature == _LEAF:
                value = self.leaf(node)
                if len(value) != outputs or not all(isfinite(each) for each in value):
                    raise ValueError(f"leaf {node} does not hold {outputs} finite numbers")
                continue
            if not 0 <= feature < inputs or not isfinite(self.threshold[node]):
                raise ValueError(f"node {node} compares input {feature}, of {inputs} there are")
            # Children come after their parent, so that every walk ends.
            for child in (self.left[node], self.right[node]):
                if not node < child < count:
                    raise ValueError(f"node {node} leads to node {child}")


@dataclass(frozen=True, slots=True)
class Forest:
    """Trees whose predictions are added up and scaled: one tree, an average (1/n), or boosting."""

    trees: tuple[Tree, ...]  # over the same inputs and outputs
    scale: float = 1.0  # what the sum of the trees' leaves is multiplied with
    _roots: list[_Walk] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_roots", [_nest(tree) for tree in self.trees])

    @classmethod
    def average(cls, trees: Sequence[Tree]) -> "Forest":
        return cls(tuple(trees), 1.0 / len(trees))

    def predict(self, inputs: Sequence[float]) -> list[float]:
        """Return one number per output for finite or NaN `inputs`."""
        return self.walk(mirror(inputs))

    def walk(self, both: Sequence[float]) -> list[float]:
        leaves: list[bytes] = []
        for index, held, below, above in self._roots:
            # Walk to a leaf; `held` is the threshold on the way, and the leaf's numbers at its end.
            while index is not None:
                index, held, below, above = below if both[index] <= held else above  # noqa: PLW2901
            leaves.append(held)
        # All trees' leaves in one array: every n-th number belongs to one output.
        found, scale = array("d", b"".join(leaves)), self.scale
        outputs = len(leaves[0]) // _DOUBLE_BYTES
        return [sum(found[each::outputs]) * scale for each in range(outputs)]

    def to_dict(self) -> dict[str, Any]:
        return {"scale": self.scale, "trees": [tree.to_dict() for tree in self.trees]}

    @classmethod
    def rebuild(cls, data: Mapping[str, Any], inputs: Sequence[str], outputs: int) -> "Forest":
        """Rebuild a forest over this version's `INPUTS`.

        `data`: what `to_dict` gave.
        `inputs`: the names of the inputs that its trees count, whatever others or in whatever order.

        ValueError: as `Tree.from_dict`, and for leaves beyond all measure.
        """
        try:
            grown, scale = list(data["trees"]), float(data["scale"])
        except (KeyError, TypeError) as error:
            raise ValueError(f"not a forest: {error!r}") from error
        if not grown or not isfinite(scale):
            raise ValueError("a forest without trees")
        # A file may come from elsewhere: the sum of the largest leaves must stay within floating point.
        trees = [Tree.from_dict(tree, len(inputs), outputs) for tree in grown]
        reach = sum(max(map(abs, array("d", b"".join(tree.value)))) for tree in trees) * abs(scale)
        if reach > _LARGEST_LOG:
            raise ValueError("a leaf is beyond all measure")
        # The file's inputs may be in another order than this version's.
        at = [INPUTS.index(name) for name in inputs]
        return cls(tuple(tree.with_inputs_at(at) for tree in trees), scale)


def mirror(inputs: Sequence[float]) -> list[float]:
    """Return each input and, behind it, its negative (see `_nest`)."""
    both = [0.0] * (2 * len(inputs))
    both[::2] = inputs
    both[1::2] = [-value for value in inputs]
    return both


def _nest(tree: Tree) -> _Walk:
    # Children come after their parent, so building backwards finds them built.
    built: list[_Walk] = [(None, None, None, None)] * len(tree.feature)
    for node in range(len(tree.feature) - 1, -1, -1):
        feature, threshold = tree.feature[node], tree.threshold[node]
        if feature == _LEAF:
            built[node] = (None, tree.value[node], None, None)
            continue
        left, right = built[tree.left[node]], built[tree.right[node]]
        if tree.missing_left[node]:
            # NaN compares false and so takes the second child. Where that must be the left one, the
            # node asks for "input > threshold" instead: "-input <= the number just below -threshold".
            built[node] = (2 * feature + 1, nextafter(-threshold, -inf), right, left)
        else:
            built[node] = (2 * feature, threshold, left, right)
    return built[0]


_LARGEST = 25.0


@dataclass(frozen=True, slots=True)
class Machine:
    """The machine of one strategy."""

    # Names of inputs; the flag "it is missing" of an input is called `missing NAME`.
    inputs: tuple[str, ...]
    # What stands in for a missing value, per entry of `inputs` (0 for flags).
    fill: tuple[float, ...]
    mean: tuple[float, ...]  # subtracted, per entry
    scale: tuple[float, ...]  # what the difference is divided by, per entry
    gamma: float  # of the kernel exp(-gamma * squared distance)
    vectors: tuple[tuple[float, ...], ...]  # the support vectors, standardised
    weights: tuple[float, ...]
    intercept: float  # what is predicted far from all of them
    _at: list[tuple[int, bool]] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        at = [
            (INPUTS.index(name.removeprefix(MISSING)), name.startswith(MISSING))
            for name in self.inputs
        ]
        object.__setattr__(self, "_at", at)

    def predict(self, inputs: Sequence[float]) -> float:
        """Return the machine's number for values of `INPUTS`, NaN where unknown."""
        point = []
        for (index, flag), fill, mean, scale in zip(
            self._at, self.fill, self.mean, self.scale, strict=True
        ):
            value = inputs[index]
            missing = value != value  # noqa: PLR0124  (only NaN differs from itself)
            # A flag says that a value is missing; the value itself is then filled in.
            value = float(missing) if flag else fill if missing else value
            point.append((value - mean) / scale)
        total = self.intercept
        for vector, weight in zip(self.vectors, self.weights, strict=True):
            # A radial kernel: near support vectors count, far ones do not.
            distance = sum([(a - b) ** 2 for a, b in zip(point, vector, strict=True)])
            total += weight * exp(-self.gamma * distance)
        return min(max(total, -_LARGEST), _LARGEST)

    def to_dict(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in _SVR_FIELDS}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any], inputs: Sequence[str]) -> "Machine":
        """Rebuild a machine; ValueError if it is none over these inputs."""
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
        # All lists must fit together, and all numbers must be finite.
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
_SVR_FIELDS = ("inputs", "fill", "mean", "scale", "gamma", "vectors", "weights", "intercept")


@dataclass(frozen=True, slots=True)
class Machines:
    machines: tuple[Machine, ...]

    def walk(self, both: Sequence[float]) -> list[float]:
        inputs = both[::2]
        return [machine.predict(inputs) for machine in self.machines]

    def to_dict(self) -> dict[str, Any]:
        return {"machines": [machine.to_dict() for machine in self.machines]}

    @classmethod
    def rebuild(cls, data: Mapping[str, Any], inputs: Sequence[str], outputs: int) -> "Machines":
        """Rebuild machines; ValueError as `Machine.from_dict`, or if there are not `outputs`."""
        try:
            machines = tuple(Machine.from_dict(each, inputs) for each in data["machines"])
        except (KeyError, TypeError) as error:
            raise ValueError(f"not support vector machines: {error!r}") from error
        if len(machines) != outputs:
            raise ValueError(f"{len(machines)} support vector machines for {outputs} strategies")
        return cls(machines)


class Regressor(Protocol):
    """Inputs in, logarithms of real over naive time out."""

    def walk(self, both: Sequence[float], /) -> list[float]:
        """Return one number per strategy for inputs of `mirror`; NaN inputs are unknown."""

    def to_dict(self) -> dict[str, Any]:
        """Return plain data for JSON, without the kind."""


# Readers of regressors by kind. Arguments: the data, the file's names of inputs, the number of
# outputs.
_KINDS: Mapping[str, Callable[[Mapping[str, Any], Sequence[str], int], Regressor]] = {
    "trees": Forest.rebuild,
    "svr": Machines.rebuild,
    "rule": Rule.rebuild,
}
_KIND_OF: Mapping[type, str] = {Forest: "trees", Machines: "svr", Rule: "rule"}


def kind_of(regressor: Regressor) -> str:
    return _KIND_OF[type(regressor)]


def from_dict(data: Mapping[str, Any], inputs: Sequence[str], outputs: int) -> Regressor:
    """Rebuild a regressor of any kind.

    Args:
        data: what `to_dict` gave, and its `kind`.
        inputs: the file's names of inputs, in its order; all of them known here.
        outputs: how many numbers it must give.

    Raises:
        ValueError: it is none, of an unknown kind, or over other inputs or outputs.
    """
    try:
        make = _KINDS[data["kind"]]
    except (KeyError, TypeError) as error:
        raise ValueError(f"a regressor of no known kind ({', '.join(_KINDS)})") from error
    return make(data, inputs, outputs)

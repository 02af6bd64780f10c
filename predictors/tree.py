"""Regression trees as plain data, walked in Python, and sums of several of them.

A tree is kept as scikit-learn keeps it (parallel arrays, one entry per node), so that a file can be
compared with its source. For walking it is rebuilt once as nested tuples: a quarter of a microsecond
per tree of depth 7, where `sklearn.predict` takes about 60.
"""

from array import array
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import inf, isfinite, nextafter
from typing import Any

from predictors.inputs import INPUTS

_LEAF = -1
_LARGEST_LOG = 60.0
_DOUBLE_BYTES = 8
_FIELDS = ("feature", "threshold", "left", "right", "missing_left", "value")

# (number among the `mirrored` inputs, threshold, child if that is <= threshold, child otherwise and for
# NaN), or for a leaf (None, its values, None, None): what is unpacked alike is walked quickest. No number
# is below zero: a list is asked for its last entries in a slower way.
_Walk = tuple[int | None, Any, Any, Any]


@dataclass(frozen=True, slots=True)
class Tree:
    """One tree: entry k of each array belongs to node k, node 0 is the root.

    Attributes:
        feature: the input that the node looks at; -1: it is a leaf.
        threshold: `input <= threshold` goes left.
        left: index of the left child.
        right: index of the right child.
        missing_left: whether NaN goes left.
        value: what a leaf predicts, one double per output; empty elsewhere. Packed: objects would take
            six times the memory, and those of a walk are unpacked at once.
    """

    feature: "array[int]"
    threshold: "array[float]"
    left: "array[int]"
    right: "array[int]"
    missing_left: "array[int]"
    value: tuple[bytes, ...]

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON; `from_dict` gives the same tree back."""
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
        """From plain lists, with numbers of its own: a decoded file's would keep that from going."""
        return cls(
            array("i", feature),
            array("d", threshold),
            array("i", left),
            array("i", right),
            array("b", missing_left),
            tuple([array("d", leaf).tobytes() for leaf in value]),
        )

    def leaf(self, node: int) -> "array[float]":
        """What it predicts."""
        return array("d", self.value[node])

    @classmethod
    def from_dict(cls, data: Mapping[str, Any], inputs: int, outputs: int) -> "Tree":
        """Rebuilds a tree, whoever wrote it.

        `data`: what `to_dict` gave.

        Raises:
            ValueError: it is no tree, or one over other inputs or outputs.
        """
        try:
            tree = cls.of(*(data[name] for name in _FIELDS))
            tree._check(inputs, outputs)
        except (KeyError, TypeError, IndexError, OverflowError) as error:
            raise ValueError(f"not a tree: {error!r}") from error
        return tree

    def moved(self, at: Sequence[int]) -> "Tree":
        """The same tree where input k has become input `at[k]`."""
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
    """Trees whose predictions are added up and scaled: one tree, an average (1/n), or boosting.

    Attributes:
        trees: over the same inputs and outputs.
        scale: what the sum of the trees' leaves is multiplied with.
    """

    trees: tuple[Tree, ...]
    scale: float = 1.0
    _roots: list[_Walk] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_roots", [_nested(tree) for tree in self.trees])

    @classmethod
    def average(cls, trees: Sequence[Tree]) -> "Forest":
        return cls(tuple(trees), 1.0 / len(trees))

    def predict(self, inputs: Sequence[float]) -> list[float]:
        """One number per output for finite or NaN `inputs`."""
        return self.walk(mirrored(inputs))

    def walk(self, both: Sequence[float]) -> list[float]:
        leaves: list[bytes] = []
        for index, held, below, above in self._roots:
            while index is not None:
                index, held, below, above = below if both[index] <= held else above  # noqa: PLW2901
            leaves.append(held)
        found, scale = array("d", b"".join(leaves)), self.scale
        outputs = len(leaves[0]) // _DOUBLE_BYTES
        return [sum(found[each::outputs]) * scale for each in range(outputs)]

    def to_dict(self) -> dict[str, Any]:
        return {"scale": self.scale, "trees": [tree.to_dict() for tree in self.trees]}

    @classmethod
    def over(cls, data: Mapping[str, Any], inputs: Sequence[str], outputs: int) -> "Forest":
        """Rebuilds a forest over this version's `INPUTS`.

        `data`: what `to_dict` gave.
        `inputs`: the names of the inputs that its trees count, whatever others or in whatever order.

        Raises:
            ValueError: as `Tree.from_dict`, and for leaves beyond all measure.
        """
        try:
            grown, scale = list(data["trees"]), float(data["scale"])
        except (KeyError, TypeError) as error:
            raise ValueError(f"not a forest: {error!r}") from error
        if not grown or not isfinite(scale):
            raise ValueError("a forest without trees")
        trees = [Tree.from_dict(tree, len(inputs), outputs) for tree in grown]
        reach = sum(max(map(abs, array("d", b"".join(tree.value)))) for tree in trees) * abs(scale)
        if reach > _LARGEST_LOG:
            raise ValueError("a leaf is beyond all measure")
        at = [INPUTS.index(name) for name in inputs]
        return cls(tuple(tree.moved(at) for tree in trees), scale)


def mirrored(inputs: Sequence[float]) -> list[float]:
    """Each input and, behind it, its negative (see `_nested`)."""
    both = [0.0] * (2 * len(inputs))
    both[::2] = inputs
    both[1::2] = [-value for value in inputs]
    return both


def _nested(tree: Tree) -> _Walk:
    # Children come after their parent, so going backwards finds them built.
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

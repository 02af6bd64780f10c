"""What a completion model's point comes from: any family of models, walked in plain Python.

A regressor maps the inputs (`predictors.inputs.INPUTS`) to the logarithm of real over naive time, one
number for each of some strategies. Families live in files of their own; a model file names them by
`kind`.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from predictors.rules import Rule
from predictors.svr import Machines
from predictors.tree import Forest


class Regressor(Protocol):
    """Inputs in, logarithms of real over naive time out."""

    def walk(self, both: Sequence[float], /) -> list[float]:
        """One number per strategy for inputs that are `tree.mirrored`; NaN inputs are unknown."""

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON, without the kind."""


# Kind -> from data, the file's names of inputs and the number of outputs.
_KINDS: Mapping[str, Callable[[Mapping[str, Any], Sequence[str], int], Regressor]] = {
    "trees": Forest.over,
    "svr": Machines.over,
    "rule": Rule.over,
}
_KIND_OF: Mapping[type, str] = {Forest: "trees", Machines: "svr", Rule: "rule"}


def kind_of(regressor: Regressor) -> str:
    return _KIND_OF[type(regressor)]


def from_dict(data: Mapping[str, Any], inputs: Sequence[str], outputs: int) -> Regressor:
    """Rebuilds a regressor of any kind.

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

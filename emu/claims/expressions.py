"""Numbers from result files, by expressions in a small language.

    mean(/places/[place=p02|sbu7-1]/policies/cedos/mean_s) / mean(/places/*/policies/wifi-first/mean_s)

A *path* begins with `/`. Its parts are keys, numbers of list elements, `*` (all elements),
`[KEY=VALUE|VALUE]` (the elements with that value) and `{KEY|KEY}` (several keys); a key with other
characters stands in quotes. `NAME.json:/path` leads into another result file. An operator stands
between spaces. Lists are calculated element by element. Functions: `FUNCTIONS` of lists of numbers,
and `REDUCERS` of parts of a file.

Figures that need more of a result file than a path: means by place, ratios over the best policy.
"""

import ast
import json
import math
import operator
import re
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from statistics import fmean
from typing import Any, Final

import numpy as np

from cedos.errors import DataSetError
from emu import ROOT
from emu.runs.mobility import FIXED
from emu.statistics import ci95

RESULTS: Final = ROOT / "notebooks" / "results"
_PART: Final = r"(?:'[^']*'|\[[^\]]*\]|\{[^}]*\}|\*|[\w.+:%-]+)"
_PATH: Final = re.compile(rf"(?:[\w.-]+\.json:)?(?:/{_PART})+")
_OPERATORS: Final[Mapping[type, Callable[[Any, Any], Any]]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
}
FUNCTIONS: Final[Mapping[str, Callable[..., Any]]] = {
    "mean": np.mean,
    "median": np.median,
    "min": np.min,
    "max": np.max,
    "sum": np.sum,
    "count": len,
    "quantile": np.quantile,
}
_RESAMPLES: Final = 2000
# The `places` of a file that `emu.runs.mobility` wrote: one run each.
Runs = Sequence[Mapping[str, Any]]


def over_best(runs: Runs, policy: str) -> float:
    """Return a policy's mean time over that of the fixed policy that is best over all runs."""
    return _mean_s(runs, policy) / min(_mean_s(runs, name) for name in _fixed(runs))


def over_best_of_place(runs: Runs, policy: str, place: str) -> float:
    """Return the same of one place's runs: the best fixed policy is that of the place."""
    return over_best([run for run in runs if run["place"] == place], policy)


def over_best_of_each(runs: Runs, policy: str) -> float:
    """Return a policy's mean time over the mean of each place's best fixed policy."""
    places = dict.fromkeys(run["place"] for run in runs)
    ours = best = 0.0
    for place in places:
        here = [run for run in runs if run["place"] == place]
        ours += len(here) * _mean_s(here, policy)
        best += len(here) * min(_mean_s(here, name) for name in _fixed(here))
    return ours / best


def over_by_group(runs: Runs, policy: str, other: str) -> list[float]:
    """Return one policy's mean time over another's, and its 95 % interval.

    Runs of one group of places are no independent evidence: the bootstrap draws groups, and then
    runs of each. A group is what a place's name has before its dash.
    """
    groups: defaultdict[str, list[tuple[float, float]]] = defaultdict(list)
    for run in runs:
        times = tuple(run["policies"][name]["mean_s"] for name in (policy, other))
        groups[run["place"].partition("-")[0]].append(times)
    pairs = [np.array(each) for each in groups.values()]
    draw = np.random.default_rng(1)
    drawn = []
    for _ in range(_RESAMPLES):
        chosen = [pairs[i] for i in draw.integers(0, len(pairs), len(pairs))]
        sums = sum(each[draw.integers(0, len(each), len(each))].sum(axis=0) for each in chosen)
        drawn.append(sums[0] / sums[1])
    every = np.concatenate(pairs).sum(axis=0)
    return [float(every[0] / every[1]), *ci95(drawn)]


def run_ratios(runs: Runs, policy: str, other: str) -> list[float]:
    """Return one policy's mean time over another's, run by run."""
    return [run["policies"][policy]["mean_s"] / run["policies"][other]["mean_s"] for run in runs]


def _mean_s(runs: Runs, policy: str) -> float:
    return fmean(run["policies"][policy]["mean_s"] for run in runs)


def _fixed(runs: Runs) -> list[str]:
    return [name for name in FIXED if all(name in run["policies"] for run in runs)]


REDUCERS: Final[Mapping[str, Callable[..., Any]]] = {
    each.__name__: each
    for each in (over_best, over_best_of_place, over_best_of_each, over_by_group, run_ratios)
}


@cache
def result(name: str) -> Any:
    """Read a committed result file; DataSetError where there is none."""
    if not name:
        raise DataSetError("the source keeps no result file for paths to lead into")
    try:
        return json.loads((RESULTS / name).read_text())
    except OSError as error:
        raise DataSetError(f"{RESULTS / name}: {error.strerror}") from error


def evaluate(expression: str, file: str, read: Callable[[str], Any] = result) -> list[float]:
    """Return the numbers that an expression gives; one file is where its paths begin.

    DataSetError: a path that leads nowhere, an unknown function, no number.
    """
    try:
        with np.errstate(all="raise"):
            found = _calculated(expression, file, read)
        numbers = [float(each) for each in np.atleast_1d(np.asarray(found, dtype=float)).ravel()]
    except (ArithmeticError, LookupError, SyntaxError, TypeError, ValueError) as error:
        raise DataSetError(f"`{expression}` of {file}: {error!r}") from error
    if not numbers or not all(map(math.isfinite, numbers)):
        raise DataSetError(f"`{expression}` of {file} gives no number: {numbers}")
    return numbers


def _calculated(expression: str, file: str, read: Callable[[str], Any]) -> Any:
    """Calculate an expression: one of Python's, in which each path is a text that `at` is called with."""

    def at(path: str) -> Any:
        name, _, inside = path.partition(":/") if ".json:/" in path else (file, "", path[1:])
        found, several = [read(name)], False
        for part in re.findall(_PART, inside):
            several = several or part[0] in "*[{"
            found = [each for value in found for each in _step(value, part)]
        if several:
            # Numbers are calculated with, element by element; anything else is for a reducer.
            return _numbers(found)
        (value,) = found
        return _numbers(value) if isinstance(value, list) else value

    functions = {**FUNCTIONS, **REDUCERS, "at": at}

    def value_of(node: ast.expr) -> Any:
        match node:
            case ast.Constant(int() | float() as number):
                return float(number)
            case ast.Constant(str() as text):
                return text
            case ast.UnaryOp(ast.USub(), operand):
                return -value_of(operand)
            case ast.BinOp(left, sign, right) if type(sign) in _OPERATORS:
                return _OPERATORS[type(sign)](value_of(left), value_of(right))
            case ast.Call(ast.Name(name), arguments, []) if name in functions:
                return functions[name](*map(value_of, arguments))
        raise ValueError(f"{ast.unparse(node)} is out of place")

    text = _PATH.sub(lambda found: f"at({found[0]!r})", expression.strip())
    return value_of(ast.parse(text, mode="eval").body)


def _step(value: Any, part: str) -> list[Any]:
    if part == "*":
        return list(value.values() if isinstance(value, dict) else value)
    if part[0] == "[":
        key, _, wanted = part[1:-1].partition("=")
        return [each for each in value if str(each[key]) in wanted.split("|")]
    if part[0] == "{":
        return [value[key] for key in part[1:-1].split("|")]
    key = part[1:-1] if part[0] == "'" else part
    return [value[int(key)] if isinstance(value, list) else value[key]]


def _numbers(values: list[Any]) -> Any:
    if values and all(isinstance(each, int | float) for each in values):
        return np.array(values, dtype=float)
    return values

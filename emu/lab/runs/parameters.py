"""Whether an analysis can use the parameters that a file gives it, before it computes for minutes."""

import inspect
import math
import typing
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import msgspec

from cedos.errors import ConfigError

_GIVEN = "progress"
"""The parameter that no file gives."""


def check(name: str, run: Callable[..., Any], given: Mapping[str, Any]) -> None:
    """Hold what a file gives the analysis `name` against what its function `run` takes.

    ConfigError: a parameter is unknown, missing, of another type, empty, negative or no finite number,
    or names a family of models that there is not.
    """
    _, *taken = inspect.signature(run).parameters.values()
    known = {each.name: each for each in taken if each.name != _GIVEN}
    if foreign := sorted(set(given) - set(known)):
        shown = ", ".join(known) or "none"
        raise ConfigError(f"{name} has no parameter {foreign[0]!r}; it has {shown}")
    for each in known.values():
        if each.default is inspect.Parameter.empty and each.name not in given:
            raise ConfigError(f"{name} needs the parameter {each.name}")
    types = typing.get_type_hints(run)
    for key, value in given.items():
        try:
            msgspec.convert(value, types[key])
        except msgspec.ValidationError as error:
            raise ConfigError(f"{name}: {key}: {error}") from error
        if isinstance(value, list) and not value:
            raise ConfigError(f"{name}: {key} is empty; at least one is needed")
        for number in _numbers(value):
            if not math.isfinite(number) or (number < 0 and key != "seed"):
                raise ConfigError(f"{name}: {key} holds {number:g}; a number from 0 is needed")
    _check_kinds(name, given.get("kinds", ()))


def _check_kinds(name: str, kinds: Any) -> None:
    # (scikit-learn takes a second to import: only where families are named.)
    if not kinds:
        return
    from predictors.training.train import KINDS  # noqa: PLC0415

    if unknown := [each for each in kinds if each not in KINDS]:
        raise ConfigError(f"{name}: no family {unknown[0]!r}; there are {', '.join(KINDS)}")


def _numbers(value: Any) -> Iterator[float]:
    match value:
        case bool():
            return
        case int() | float():
            yield value
        case list():
            for each in value:
                yield from _numbers(each)

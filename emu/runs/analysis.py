"""Analyses: the numbers of a paper's table or figure, as an experiment that needs no network.

A file says which analysis, of which data, with which parameters:

    analysis = "correlations"
    data = "traces/transfers.parquet"
    [parameters]
    direction = "down"

`data` is looked for beside the file, then in the repository.

An analysis is a module in one of `ROOMS` with a function `run`: of a data set, if its first parameter is
called `data`, or of a collection of places, if it is called `places`.
"""

import importlib
import inspect
import typing
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from cedos.config import toml_file
from cedos.errors import ConfigError
from emu import ROOT
from emu.data import datasets
from emu.data.evaluate import Progress
from emu.places import places

# The parameter that no file gives.
_PROGRESS = "progress"


def check(name: str, run: Callable[..., Any], given: Mapping[str, Any]) -> None:
    """Check the parameters that a file gives to the analysis `name`, by its function `run`.

    ConfigError: a parameter is unknown, missing, of another type, or an empty list.
    """
    _, *taken = inspect.signature(run).parameters.values()
    known = {each.name: each for each in taken if each.name != _PROGRESS}
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
        if value == []:
            raise ConfigError(f"{name}: {key} is empty; at least one is needed")


_EXPERIMENTS = "emu.experiments"
# Each analysis: its module below `emu.experiments`, and its function.
ANALYSES: Mapping[str, str] = {
    "adaptive": "delphi.adaptive:run",
    "choices": "delphi.choices:run",
    "correlations": "delphi.prediction:correlations",
    "exchanges": "meatballs.exchanges:run",
    "floor": "delphi.floor:run",
    "imp": "imp.grid:run",
    "offload": "meatballs.offload_policy:run",
    "prediction": "delphi.prediction:prediction",
    "sessions_cedos": "sessions.cedos_tables:run",
    "sessions_dtp": "sessions.dtp:run",
    "sessions_intnw": "sessions.intnw:run",
    "size_error": "delphi.prediction:size_error",
}


class Analysis(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An analysis as a file describes it: its name, its data set if it uses one, and its parameters."""

    analysis: str
    data: str = "traces/transfers.parquet"
    parameters: dict[str, Any] = {}


def is_analysis(file: Path) -> bool:
    """Return whether a TOML file describes an analysis; False also for one that cannot be read."""
    try:
        return "analysis" in toml_file.loads(file.read_text())
    except (OSError, ValueError, RecursionError):
        return False


def read(file: Path) -> Analysis:
    """Read an analysis; ConfigError names the file, the key, and what would be right."""
    try:
        found = msgspec.convert(toml_file.loads(file.read_text()), Analysis)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{file}: {error}") from error
    if found.analysis not in ANALYSES:
        raise ConfigError(
            f"{file}: there is no analysis {found.analysis!r}; there are {', '.join(ANALYSES)}"
        )
    beside = file.parent / found.data
    if beside.is_file():
        return msgspec.structs.replace(found, data=str(beside.resolve()))
    return found


def carry_out(
    analysis: Analysis, progress: Progress | None = None, directory: Path | None = None
) -> dict[str, Any]:
    """Return the figures of an analysis; a long one reports the share that is done to `progress`.

    `directory` is the collection of places; None: the default one.

    ConfigError: a parameter is unknown, missing or unusable; raised before anything is computed.
    DataSetError: the data cannot be read, or lack what the analysis needs. PlaceError: a place does not
    exist.
    """
    module, _, name = ANALYSES[analysis.analysis].partition(":")
    function = getattr(importlib.import_module(f"{_EXPERIMENTS}.{module}"), name)
    first, *known = inspect.signature(function).parameters
    check(analysis.analysis, function, analysis.parameters)
    reporting = {_PROGRESS: progress} if progress is not None and _PROGRESS in known else {}
    source: Any = (
        places.load(places.default_directory(directory))
        if first == "places"
        else datasets.read(ROOT / analysis.data)
    )
    figures: dict[str, Any] = function(source, **analysis.parameters, **reporting)
    return figures

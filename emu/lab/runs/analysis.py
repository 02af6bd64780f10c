"""Analyses: the numbers of a paper's table or figure, as an experiment that needs no network.

A file says which analysis, of which data, with which parameters:

    analysis = "correlations"
    data = "traces/transfers.parquet"
    [parameters]
    direction = "down"

`data` is looked for beside the file, then in the repository.

An analysis is a function in `ANALYSES`: of a data set, if its first parameter is called `data`, or of a
collection of places, if it is called `places`.

Its run folder holds `config.toml`, `environment.json` and `summary.json`, where `figures` are what the
analysis returned.
"""

import importlib
import inspect
import json
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import tomli_w

from cedos.errors import ConfigError
from emu.data import datasets
from emu.data.folds import Progress
from emu.lab.runs import environment, parameters, runs
from emu.lab.runs.claim import claimed
from emu.places import places
from emu.repository import ROOT

_EXPERIMENTS = "emu.experiments"
ANALYSES: Mapping[str, str] = {
    "adaptive": "delphi.adaptive:run",
    "choices": "delphi.choices:run",
    "correlations": "delphi.correlations:run",
    "exchanges": "meatballs.exchanges_analysis:run",
    "floor": "delphi.floor:run",
    "imp_email": "imp.grid:email",
    "imp_news": "imp.grid:news",
    "live_check": "meatballs.live_analysis:run",
    "offload": "meatballs.offload_analysis:run",
    "outages": "delphi.outages:run",
    "prediction": "delphi.prediction:prediction",
    "sessions_cedos": "sessions.cedos_tables:run",
    "sessions_dtp": "sessions.dtp:run",
    "sessions_intnw": "sessions.intnw:run",
    "size_error": "delphi.prediction:size_error",
}
"""Each analysis: its module below `emu.experiments`, and the function that computes it."""

_PROGRESS = "progress"


class Analysis(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An analysis, resolved: its name, and the data set of those that draw from one."""

    analysis: str
    data: str = "traces/transfers.parquet"
    parameters: dict[str, Any] = {}


def is_analysis(file: Path) -> bool:
    """Return whether a TOML file describes an analysis; the scenario's reader reports unreadable ones."""
    try:
        return "analysis" in tomllib.loads(file.read_text())
    except (OSError, ValueError):
        return False


def read(file: Path) -> Analysis:
    """Read an analysis; ConfigError names the file, the key, and what would be right."""
    try:
        found = msgspec.toml.decode(file.read_bytes(), type=Analysis)
    except (msgspec.ValidationError, msgspec.DecodeError) as error:
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
    """Return the figures of an analysis; those that take long tell `progress` the share done.

    `directory` is the collection of places, None the default one.

    Raises:
        ConfigError: a parameter that the analysis does not know, lacks, or cannot use; said before
            anything is computed.
        DataSetError: data that cannot be read or do not hold what it needs.
        PlaceError: a place that is not there.
    """
    module, _, name = ANALYSES[analysis.analysis].partition(":")
    function = getattr(importlib.import_module(f"{_EXPERIMENTS}.{module}"), name)
    first, *known = inspect.signature(function).parameters
    parameters.check(analysis.analysis, function, analysis.parameters)
    reporting = {_PROGRESS: progress} if progress is not None and _PROGRESS in known else {}
    source: Any = (
        places.load(places.default_directory(directory))
        if first == "places"
        else datasets.read(ROOT / analysis.data)
    )
    figures: dict[str, Any] = function(source, **analysis.parameters, **reporting)
    return figures


def run(
    analysis: Analysis,
    folder: Path,
    progress: Progress | None = None,
    directory: Path | None = None,
) -> Mapping[str, Any]:
    """Carry an analysis out and leave its run folder and return its figures. See `carry_out`.

    Raises:
        DataSetError: `folder` is none, and there is something in it, or another run writes to it; said
            before anything is done.
    """
    runs.refuse_foreign(folder)
    with claimed(folder):  # now, and not when all is computed
        figures = carry_out(analysis, progress, directory)
        runs.make_way(folder)
        described = json.dumps(environment.describe(0), indent=2)
        summary = {"analysis": analysis.analysis, "data": analysis.data, "figures": figures}
        (folder / "config.toml").write_text(tomli_w.dumps(msgspec.to_builtins(analysis)))
        (folder / "environment.json").write_text(described + "\n")
        (folder / "summary.json").write_text(json.dumps(summary, indent=2) + "\n")
    return figures

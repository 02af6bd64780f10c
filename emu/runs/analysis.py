"""Analyses: a paper's table or figure from a data set, as an experiment that needs no network.

A file says which analysis (a module of `emu.delphi`), of which data, with which parameters:

    analysis = "correlations"
    data = "traces/transfers.parquet"
    [parameters]
    direction = "down"

Its run folder holds `config.toml`, `environment.json` and `summary.json`, where `figures` are what the
analysis returned.
"""

import importlib
import inspect
import json
import pkgutil
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import tomli_w

from cedos.errors import ConfigError
from emu import delphi
from emu.data import datasets
from emu.data.folds import Progress
from emu.runs import environment

ROOT = Path(__file__).resolve().parents[2]
"""Paths in analyses are relative to the repository."""

_PROGRESS = "progress"


class Analysis(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One analysis, resolved: `name` is that of its module, `data` the transfer data set."""

    analysis: str
    data: str = "traces/transfers.parquet"
    parameters: dict[str, Any] = {}


def names() -> list[str]:
    """All analyses that there are."""
    return sorted(module.name for module in pkgutil.iter_modules(delphi.__path__))


def is_analysis(file: Path) -> bool:
    """Whether a TOML file describes an analysis; what cannot be read is left to the scenario's reader."""
    try:
        return "analysis" in tomllib.loads(file.read_text())
    except (OSError, ValueError):
        return False


def read(file: Path) -> Analysis:
    """Reads an analysis; ConfigError names the file, the key, and what would be right."""
    try:
        found = msgspec.toml.decode(file.read_bytes(), type=Analysis)
    except (msgspec.ValidationError, msgspec.DecodeError) as error:
        raise ConfigError(f"{file}: {error}") from error
    if found.analysis not in names():
        raise ConfigError(
            f"{file}: there is no analysis {found.analysis!r}; there are {', '.join(names())}"
        )
    return found


def carry_out(analysis: Analysis, progress: Progress | None = None) -> dict[str, Any]:
    """The figures of an analysis; those that take long tell `progress` the share done.

    Raises:
        ConfigError: a parameter that the analysis does not know.
        DataSetError: data that cannot be read or do not hold what it needs.
    """
    module = importlib.import_module(f"emu.delphi.{analysis.analysis}")
    data = datasets.read(ROOT / analysis.data)
    known = list(inspect.signature(module.run).parameters)[1:]
    if foreign := sorted(set(analysis.parameters) - set(known)):
        raise ConfigError(
            f"{analysis.analysis} has no parameter {foreign[0]!r}; it has {', '.join(known) or 'none'}"
        )
    told = {_PROGRESS: progress} if progress is not None and _PROGRESS in known else {}
    figures: dict[str, Any] = module.run(data, **analysis.parameters, **told)
    return figures


def run(analysis: Analysis, folder: Path, progress: Progress | None = None) -> Mapping[str, Any]:
    """Carries an analysis out and leaves its run folder; returns its figures. Errors: `carry_out`."""
    figures = carry_out(analysis, progress)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.toml").write_text(tomli_w.dumps(msgspec.to_builtins(analysis)))
    (folder / "environment.json").write_text(json.dumps(environment.describe(0), indent=2) + "\n")
    summary = {"analysis": analysis.analysis, "data": analysis.data, "figures": figures}
    (folder / "summary.json").write_text(json.dumps(summary, indent=2) + "\n")
    return figures

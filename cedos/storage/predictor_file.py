"""Models as files: JSON without pickle, so that a foreign file can be wrong but never run."""

import gc
import os
from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import Any

import msgspec

from cedos.errors import ModelError
from predictors.completion import CompletionModel
from predictors.inputs import NETWORKS

FORMAT = "cedos-completion-model"
VERSION = 2
_SHIPPED = "shipped.json"


def load(path: Path | None = None, *, partial: bool = False) -> CompletionModel:
    """Reads a model.

    `partial`: to judge it, not to decide with: it need not know each network alone.

    Raises:
        ModelError: there is none, or it is broken, of another version, for other features, or knows
            no times of a network alone; says which, and how to get a good one.
    """
    name = str(path) if path is not None else f"the shipped model ({_SHIPPED})"
    try:
        if path is not None:
            raw = path.read_bytes()
        else:
            raw = resources.files("predictors").joinpath(_SHIPPED).read_bytes()
    except OSError as error:
        raise ModelError(f"{name}: {error.strerror or error}; {_REMEDY}") from error
    try:
        data = msgspec.json.decode(raw)
    except (msgspec.DecodeError, RecursionError) as error:
        raise ModelError(f"{name} is not JSON: {error}; {_REMEDY}") from error
    if not isinstance(data, dict) or data.get("format") != FORMAT:
        raise ModelError(f"{name} is no completion model (no format {FORMAT!r}); {_REMEDY}")
    if data.get("version") != VERSION:
        raise ModelError(
            f"{name} is of version {data.get('version')!r}, version {VERSION} is needed; {_REMEDY}"
        )
    try:
        model = CompletionModel.from_dict(data)
    except ValueError as error:
        raise ModelError(f"{name}: {error}; {_REMEDY}") from error
    unknown = [name for name in NETWORKS if name not in model.strategies]
    if unknown and not partial:
        raise ModelError(
            f"{name} knows no times of {' and '.join(unknown)} alone and would never choose it; {_REMEDY}"
        )
    # What was decoded is thrice the model. Its memory goes once the interpreter's free lists are empty.
    del raw, data
    gc.collect()
    return model


def save(model: CompletionModel, path: Path, provenance: Mapping[str, Any] | None = None) -> None:
    """Writes a model, whole or not at all.

    `provenance`: added to the model's own: data set, host, date.
    Errors: ModelError, the file cannot be written.
    """
    data = {"format": FORMAT, "version": VERSION, **model.to_dict()}
    data["provenance"] = {**data["provenance"], **(provenance or {})}
    beside = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    try:
        beside.write_bytes(msgspec.json.encode(data) + b"\n")
        beside.replace(path)
    except OSError as error:
        beside.unlink(missing_ok=True)
        raise ModelError(f"{path} cannot be written: {error.strerror or error}") from error


_REMEDY = "train one with `cedos-emu train DATA --out MODEL.json`"

"""Files of models: predictors in JSON, and radios in TOML (`radios.toml`, which explains itself).

JSON without pickle: a foreign file can be wrong, but its content never runs.
"""

import gc
import secrets
from collections.abc import Mapping
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from cedos.config import toml_file
from cedos.errors import ConfigError, ModelError
from cedos.selector.energy import Radio, RadioState
from predictors.completion import CompletionModel
from predictors.inputs import NETWORKS

FORMAT = "cedos-completion-model"
VERSION = 2
_SHIPPED = "shipped.json"


def load(path: Path | None = None, *, partial: bool = False) -> CompletionModel:
    """Read a model.

    `partial`: to judge it, not to decide with: it need not know each network alone.

    ModelError: there is none, or it is broken, of another version, for other features, or knows no
    times of a network alone; says which, and how to get a good one.
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
    except (ValueError, RecursionError) as error:
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
    """Write a model, whole or not at all.

    `provenance`: added to the model's own: data set, host, date.
    Errors: ModelError, the file cannot be written.
    """
    data = {"format": FORMAT, "version": VERSION, **model.to_dict()}
    data["provenance"] = {**data["provenance"], **(provenance or {})}
    # (No name that others could have put a link at.)
    beside = path.with_name(f"{path.name}.{secrets.token_hex(4)}.tmp")
    try:
        with beside.open("xb") as file:
            file.write(msgspec.json.encode(data) + b"\n")
        beside.replace(path)
    except OSError as error:
        beside.unlink(missing_ok=True)
        raise ModelError(f"{path} cannot be written: {error.strerror or error}") from error


_REMEDY = "train one with `cedos-emu train DATA --out MODEL.json`"


SHIPPED_FILE = Path(__file__).with_name("radios.toml")
_Watts = Annotated[float, Meta(ge=0, le=1000)]
_Seconds = Annotated[float, Meta(ge=0, le=3600)]
_Bytes = Annotated[float, Meta(ge=0, le=1e9)]
_BYTES_PER_MBIT = 125_000.0


class _State(msgspec.Struct, frozen=True, kw_only=True):
    name: Annotated[str, Meta(min_length=1, max_length=30)]
    active_w: _Watts
    linger_w: _Watts
    linger_s: _Seconds
    w_per_mbps_up: _Watts = 0.0
    w_per_mbps_down: _Watts = 0.0
    from_bytes_up: _Bytes = 0.0
    from_bytes_down: _Bytes = 0.0
    send_w: _Watts | None = None


class _Radio(msgspec.Struct, frozen=True, kw_only=True):
    source: str
    states: list[_State]
    idle_w: _Watts = 0.0
    promotion_w: _Watts = 0.0
    promotion_s: _Seconds = 0.0

    def __post_init__(self) -> None:
        if not self.states:
            raise ValueError("a radio needs at least one state in which it carries data")
        names = [state.name for state in self.states]
        if len(set(names)) < len(names) or {"idle", "active"} & set(names):
            raise ValueError('states need names of their own, which are not "idle" or "active"')


def radios(path: Path | None = None) -> dict[str, dict[str, Radio]]:
    """Return all radios: device -> technology -> radio.

    Errors: ConfigError, with file, line and what would be right.

    Args:
        path: a file of the user's, whose devices are added to the shipped ones; None: none.
    """
    found = dict(_shipped_radios())
    if path is not None:
        for device, known in _read(path).items():
            found[device] = found.get(device, {}) | known
    return found


@cache
def _shipped_radios() -> dict[str, dict[str, Radio]]:
    return _read(SHIPPED_FILE)


def _read(path: Path) -> dict[str, dict[str, Radio]]:
    try:
        text = path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: {error}") from error
    # The file's sections are devices of any name: one key above them makes a struct of it.
    class_of = msgspec.defstruct("Radios", [("device", dict[str, dict[str, _Radio]])])
    read = toml_file.parse(_nest_sections(text), class_of, name=str(path))
    devices: dict[str, dict[str, _Radio]] = msgspec.structs.asdict(read)["device"]
    return {
        device: {technology: _radio(radio) for technology, radio in known.items()}
        for device, known in devices.items()
    }


def _nest_sections(text: str) -> str:
    """Return the same lines with their sections below `device`."""
    lines = text.splitlines()
    return "\n".join(f"[device.{line[1:]}" if line.startswith("[") else line for line in lines)


def _radio(radio: _Radio) -> Radio:
    return Radio(
        radio.source,
        radio.idle_w,
        radio.promotion_w,
        radio.promotion_s,
        tuple(
            RadioState(
                each.name,
                each.active_w,
                each.linger_w,
                each.linger_s,
                each.w_per_mbps_up / _BYTES_PER_MBIT,
                each.w_per_mbps_down / _BYTES_PER_MBIT,
                each.from_bytes_up,
                each.from_bytes_down,
                each.send_w,
            )
            for each in radio.states
        ),
    )

"""Radios from their TOML file (`radios.toml` beside this module explains it)."""

from functools import cache
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta

from cedos.config import toml_file
from cedos.errors import ConfigError
from cedos.selector.energy.radio import Radio, RadioState

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
    """All radios: device -> technology -> radio.

    Errors: ConfigError, with file, line and what would be right.

    Args:
        path: a file of the user's, whose devices are added to the shipped ones; None: none.
    """
    found = dict(_shipped())
    if path is not None:
        for device, known in _read(path).items():
            found[device] = found.get(device, {}) | known
    return found


@cache
def _shipped() -> dict[str, dict[str, Radio]]:
    return _read(SHIPPED_FILE)


def _read(path: Path) -> dict[str, dict[str, Radio]]:
    try:
        text = path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: {error}") from error
    # The file's sections are devices of any name: one key above them makes a struct of it.
    class_of = msgspec.defstruct("Radios", [("device", dict[str, dict[str, _Radio]])])
    read = toml_file.parse(_below(text), class_of, name=str(path))
    devices: dict[str, dict[str, _Radio]] = msgspec.structs.asdict(read)["device"]
    return {
        device: {technology: _radio(radio) for technology, radio in known.items()}
        for device, known in devices.items()
    }


def _below(text: str) -> str:
    """The same lines, their sections below `device`."""
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

"""Scenarios: an experiment as a TOML file that people write, and the resolved form a run keeps."""

from pathlib import Path
from typing import Any

import msgspec

from cedos.errors import ConfigError
from cedos.model import Direction
from emu.workloads.mixed import TransferClass


class Load(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One `[[load]]`: a class of transfers (see `TransferClass`)."""

    name: str
    host: str
    direction: Direction
    min_bytes: int
    max_bytes: int
    per_minute: float
    mptcp_share: float = 0.5

    def transfer_class(self) -> TransferClass:
        """The same as the workload wants it."""
        return TransferClass(**msgspec.structs.asdict(self))


class Scenario(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An experiment: which place, from when to when, which load, under which policies.

    `duration_s` 0 means to the end of the place's common time. `place` "" means the first one of
    the collection. `repeats` runs all policies again with the next seed.
    """

    load: tuple[Load, ...]
    name: str = "run"
    place: str = ""
    start_s: float = 0.0
    duration_s: float = 0.0
    warm_up_s: float = 4.0
    limit_s: float = 30.0
    repeats: int = 1
    seed: int = 1
    policies: tuple[str, ...] = (
        "wifi-first",
        "cellular-only",
        "mptcp-wifi",
        "mptcp-cellular",
        "cedos",
    )
    policy: dict[str, dict[str, Any]] = {}


def read(file: Path) -> Scenario:
    """Reads a scenario; ConfigError names the file, the key, and what would be right."""
    try:
        return msgspec.toml.decode(file.read_bytes(), type=Scenario)
    except FileNotFoundError as error:
        raise ConfigError(f"there is no scenario {file}") from error
    except (msgspec.ValidationError, msgspec.DecodeError) as error:
        raise ConfigError(f"{file}: {error}") from error

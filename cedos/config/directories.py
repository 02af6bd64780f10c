"""The directories of the daemon and of a user's programs."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from cedos.errors import ConfigError

PID_FILE: Final = "daemon.pid"
HISTORY_FILE: Final = "history.sqlite"


@dataclass(frozen=True, slots=True)
class Directories:
    """The daemon's directories: state, which survives a restart, and runtime, which does not."""

    state: Path
    runtime: Path

    @property
    def socket(self) -> Path:
        return self.runtime / "control.sock"

    @property
    def pid_file(self) -> Path:
        """Return the file that a living daemon has locked."""
        return self.runtime / PID_FILE

    @property
    def history(self) -> Path:
        return self.state / HISTORY_FILE


def directories(environment: Mapping[str, str] = os.environ) -> Directories:
    """Return the directories that `CEDOS_*_DIR` name, else the system's usual ones.

    systemd's `*_DIRECTORY` are ignored: a service that asks the daemon may have its own
    directories.

    ConfigError: a variable is not an absolute path.
    """
    return Directories(
        state=_directory(environment, "STATE", "/var/lib/cedos"),
        runtime=_directory(environment, "RUNTIME", "/run/cedos"),
    )


_USUAL: Final = {"config": ".config", "state": ".local/state", "cache": ".cache"}


def user_folder(
    kind: Literal["config", "state", "cache"], environment: Mapping[str, str] = os.environ
) -> Path:
    """Return a user's directory: below `CEDOS_USER_DIR`, else `cedos/` in that of `XDG_*_HOME`.

    ConfigError: `CEDOS_USER_DIR` is not an absolute path.
    """
    if value := environment.get("CEDOS_USER_DIR", ""):
        if not Path(value).is_absolute():
            raise ConfigError(f"CEDOS_USER_DIR must be an absolute path, not {value}")
        return Path(value) / kind
    base = environment.get(f"XDG_{kind.upper()}_HOME")
    return (Path(base).expanduser() if base else Path.home() / _USUAL[kind]) / "cedos"


def _directory(environment: Mapping[str, str], what: str, usual: str) -> Path:
    variable = f"CEDOS_{what}_DIR"
    path = Path(environment.get(variable) or usual)
    if not path.is_absolute():
        raise ConfigError(f"{variable} must be an absolute path, not {path}")
    return path

"""Where the daemon, and a user's own programs, keep their files (DESIGN, "Commands and files")."""

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
    """Where a daemon keeps its state (survives a restart) and its run-time files (does not)."""

    state: Path
    runtime: Path

    @property
    def socket(self) -> Path:
        return self.runtime / "control.sock"

    @property
    def pid_file(self) -> Path:
        """The file that the living daemon holds a lock on."""
        return self.runtime / PID_FILE

    @property
    def history(self) -> Path:
        return self.state / HISTORY_FILE


def directories(environment: Mapping[str, str] = os.environ) -> Directories:
    """The directories by `CEDOS_*_DIR`, else the system's usual ones.

    (Not by systemd's `*_DIRECTORY`: a service that asks the daemon may have folders of its own.)

    Errors: ConfigError, a variable holds a path that is not absolute.
    """
    return Directories(
        state=_directory(environment, "STATE", "/var/lib/cedos"),
        runtime=_directory(environment, "RUNTIME", "/run/cedos"),
    )


_USUAL: Final = {"config": ".config", "state": ".local/state", "cache": ".cache"}


def user_folder(
    kind: Literal["config", "state", "cache"], environment: Mapping[str, str] = os.environ
) -> Path:
    """A user's own: below `CEDOS_USER_DIR`, else cedos/ in the folder that `XDG_*_HOME` or usage says.

    Errors: ConfigError, `CEDOS_USER_DIR` is not absolute.
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

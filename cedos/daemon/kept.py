"""Small things in the state directory that survive a restart, as JSON files."""

from pathlib import Path
from typing import Any

import msgspec
import structlog

_log = structlog.get_logger(__name__)


def read(path: Path, what: str) -> Any:
    """What a file holds; None where there is none, or nothing that can be used (which is logged)."""
    try:
        return msgspec.json.decode(path.read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, msgspec.DecodeError) as error:
        unusable(path, what, error)
        return None


def unusable(path: Path, what: str, error: Exception) -> None:
    """Says that a file cannot be used; things begin anew."""
    _log.warning(f"{what} cannot be used", file=str(path), why=str(error))


def write(path: Path, state: Any, what: str) -> None:
    """Writes a file, whole or not at all; an error is logged."""
    try:
        new = path.with_suffix(".new")
        new.write_bytes(msgspec.json.encode(state))
        new.replace(path)
    except OSError as error:
        _log.warning(f"{what} cannot be kept", file=str(path), why=str(error))

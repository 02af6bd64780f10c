"""Small things in the state directory that survive a restart, as JSON files."""

from pathlib import Path
from typing import Any

import msgspec
import structlog

from cedos.kernel import own_file

_log = structlog.get_logger(__name__)


def read(path: Path, what: str) -> Any:
    """Return a file's content; None without a file, or if it cannot be used (which is logged)."""
    try:
        return msgspec.json.decode(own_file.read(path))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, RecursionError) as error:
        unusable(path, what, error)
        return None


def unusable(path: Path, what: str, error: Exception) -> None:
    """Says that a file cannot be used; it is put aside, as things begin anew and would replace it."""
    aside = own_file.aside(path)
    try:
        path.rename(aside)
    except OSError as failed:
        _log.warning(f"{what} cannot be used, nor put aside", file=str(path), why=str(failed))
        return
    _log.warning(f"{what} cannot be used", file=str(path), why=str(error), kept_as=str(aside))


def write(path: Path, state: Any, what: str) -> bool:
    """Write a file, whole or not at all; return whether it was: an error is logged."""
    try:
        own_file.write(path, msgspec.json.encode(state))
    except OSError as error:
        _log.warning(f"{what} cannot be kept", file=str(path), why=str(error))
        return False
    return True

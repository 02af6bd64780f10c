"""Files that a command is asked to write: made sure of before long work, whole or not at all."""

import os
from pathlib import Path

from cedos.errors import DataSetError


def make_room(file: Path, option: str) -> None:
    """Make the folder of a file that will be written; DataSetError where it could not be.

    `option`: by which the file was named.
    """
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DataSetError(f"{file}: {error.strerror}: choose another {option}") from error
    if file.is_dir() or not os.access(file.parent, os.W_OK | os.X_OK):
        raise DataSetError(f"{file} cannot be written: choose another {option}")


def write(file: Path, text: str, option: str = "--out") -> None:
    """Write a text, its folder made where it is missing; DataSetError where that fails."""
    make_room(file, option)
    beside = file.with_name(f"{file.name}.{os.getpid()}.tmp")
    try:
        beside.write_text(text)
        beside.replace(file)
    except OSError as error:
        beside.unlink(missing_ok=True)
        raise DataSetError(f"{file} cannot be written: {error.strerror}") from error

"""One run at a time writes into a folder."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from itertools import count
from pathlib import Path

from cedos.errors import DataSetError


@contextmanager
def claimed(directory: Path) -> Iterator[None]:
    """Make the folder where it is missing, and hold it until the block ends or the process dies.

    DataSetError: another run writes there, or it cannot be made.
    """
    try:
        directory.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except FileExistsError as error:
        raise DataSetError(f"{directory}: Not a directory: choose another --out") from error
    except OSError as error:
        raise DataSetError(f"{directory}: {error.strerror}: choose another --out") from error
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise DataSetError(
                f"another run is writing to {directory}: choose another --out, or wait for its end"
            ) from None
        yield
    finally:
        os.close(descriptor)


def fresh(name: str, within: Path = Path("runs")) -> Path:
    """Make a folder for a run that was given none, called by the second and by what is run.

    Of two that begin in the same second the later one is numbered. DataSetError: it cannot be made.
    """
    stamp = datetime.now(UTC).strftime("%Y%m%d-%H%M%S")
    for number in count(1):
        directory = within / f"{stamp}-{name}{f'-{number}' if number > 1 else ''}"
        try:
            directory.mkdir(parents=True)
        except FileExistsError as error:
            if not directory.is_dir():
                raise DataSetError(f"{within}: Not a directory: choose an --out") from error
        except OSError as error:
            raise DataSetError(f"{directory}: {error.strerror}: choose an --out") from error
        else:
            return directory
    raise AssertionError("numbers do not end")

"""Helpers that commands share: words of help pages, files of others or to write, missing extras."""

import os
import re
import resource
import secrets
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from importlib.metadata import requires
from pathlib import Path
from typing import Final

from cedos.errors import DataSetError


def block(title: str, *lines: str) -> str:
    # The backspace tells click to leave the lines as they are.
    return "\b\n" + "\n".join([f"{title}:", *(f"  {line}" for line in lines)])


def examples(*lines: str) -> str:
    return block("Example" if len(lines) == 1 else "Examples", *lines)


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


def write(file: Path, content: str | bytes, option: str = "--out") -> None:
    """Write a file, its folder made where it is missing; DataSetError where that fails.

    A symbolic link of that name is replaced, not followed: a run folder may come from a stranger.
    """
    make_room(file, option)
    beside = file.with_name(f"{file.name}.{secrets.token_hex(4)}.tmp")
    try:
        with beside.open("xb") as new:
            new.write(content.encode() if isinstance(content, str) else content)
        beside.replace(file)
    except OSError as error:
        beside.unlink(missing_ok=True)
        raise DataSetError(f"{file} cannot be written: {error.strerror}") from error


# The most memory (addresses) that files of others may take. Judging two data sets of ours takes 2 GB.
_MOST_BYTES: Final = 4 << 30


@contextmanager
def reading_others() -> Iterator[None]:
    """Read files that may come from a stranger. DataSetError: they hold too much, or odd figures.

    The memory of this process is bounded meanwhile. What a file declares tells nothing: 5 kB of Parquet
    may be a list of 100 million values, and a number may be the length of an axis.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    most = pages * resource.getpagesize() + _MOST_BYTES
    if soft != resource.RLIM_INFINITY:
        most = min(most, soft)
    resource.setrlimit(resource.RLIMIT_AS, (most, hard))
    try:
        yield
    except MemoryError as error:
        raise DataSetError(
            f"the files hold more than fits into {_MOST_BYTES >> 30} GB of memory; no run or data set"
            " has so much"
        ) from error
    except (
        ArithmeticError,
        AttributeError,
        LookupError,
        RecursionError,
        StopIteration,
        TypeError,
        ValueError,
    ) as error:
        raise DataSetError(
            f"the files hold figures that no run has written: {type(error).__name__}: {error}"
        ) from error
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


# Distributions whose module has another name.
_MODULES: Final = {"scikit-learn": "sklearn", "tomli-w": "tomli_w"}

# The extras of the testbed. A user of `cedos-emu` needs both.
_OF_THE_TESTBED: Final = {"emu", "train"}

_REQUIREMENT: Final = re.compile(r"([\w.-]+).*extra == ['\"]([\w-]+)['\"]")


def missing(error: ModuleNotFoundError, requirements: Iterable[str] | None = None) -> str | None:
    """Return what to install if the module belongs to an extra; None if its absence is our fault.

    `requirements` are those of the distribution; None: of this one, as it is installed.
    """
    module = (error.name or "").partition(".")[0]
    found = (requires("cedos") or []) if requirements is None else requirements
    extras = {
        match[2]
        for each in found
        if (match := _REQUIREMENT.match(each)) and _MODULES.get(match[1], match[1]) == module
    }
    if not extras:
        return None
    extra = "emu" if extras & _OF_THE_TESTBED else min(extras)
    return (
        f"the Python package {module} is missing: cedos was installed without its extra [{extra}]."
        f" In its source folder: pip install '.[{extra}]'"
    )

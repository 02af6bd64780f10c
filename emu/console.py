"""Helpers that commands share: words of help pages, files of others or to write, missing extras."""

import errno
import os
import re
import resource
import secrets
import stat
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from importlib.metadata import requires
from pathlib import Path
from typing import Final

from cedos.errors import DataSetError
from emu import ROOT


def block(title: str, *lines: str) -> str:
    # The backspace tells click to leave the lines as they are.
    return "\b\n" + "\n".join([f"{title}:", *(f"  {line}" for line in lines)])


def examples(*lines: str) -> str:
    return block("Example" if len(lines) == 1 else "Examples", *lines)


def make_folder(folder: Path, option: str) -> None:
    """Make a folder that will be written into, and those above it. DataSetError: it cannot be made.

    Or another user may change one of them, and so lead root to any file: with a link laid meanwhile.
    """
    whole = folder.absolute()
    try:
        for each in (*reversed(whole.parents), whole):
            each.mkdir(exist_ok=True)
            if each.is_symlink():
                make_folder(each.parent / each.readlink(), option)
            if os.geteuid() == 0 and (whose := _of_others(each)):
                raise DataSetError(
                    f"{each} {whose}, who could lead root to any file: choose another {option}, where all"
                    " folders are root's alone"
                )
    except OSError as error:
        why = "Not a directory" if isinstance(error, FileExistsError) else error.strerror
        raise DataSetError(f"{each}: {why}: choose another {option}") from error


def _of_others(path: Path) -> str:
    """Return which user beside root may change a folder or a link, in words; "": none may.

    Who called sudo, owns `/`, or may change or replace the code that root runs, has root anyway. A sticky
    folder keeps what root made in it.
    """
    if path in (ROOT, *ROOT.parents):
        return ""
    found, code = path.lstat(), ROOT.stat()
    changed_by = 0 if code.st_mode & stat.S_ISVTX else code.st_mode
    if changed_by & stat.S_IWOTH:
        return ""
    owners = {0, Path("/").stat().st_uid, code.st_uid}
    if found.st_uid not in owners and str(found.st_uid) != os.environ.get("SUDO_UID"):
        return f"belongs to user {found.st_uid}"
    if stat.S_ISLNK(found.st_mode) or found.st_mode & stat.S_ISVTX:
        return ""
    # (Many users have a group of their own; with an access list its bits stand for others, too.)
    codes = found.st_gid == code.st_gid and changed_by & stat.S_IWGRP and not _has_list(ROOT)
    own = (found.st_gid == found.st_uid or codes) and not _has_list(path)
    shared = found.st_mode & (stat.S_IWOTH if own else stat.S_IWOTH | stat.S_IWGRP)
    return "may be changed by users beside root" if shared else ""


def _has_list(path: Path) -> bool:
    """Return whether a folder has an access list."""
    try:
        return "system.posix_acl_access" in os.listxattr(path)
    except OSError as error:
        if error.errno != errno.EOPNOTSUPP:
            raise
        return False  # its file system has none


def make_room(file: Path, option: str) -> None:
    """Make the folder of a file that will be written; DataSetError where it could not be.

    `option`: by which the file was named.
    """
    make_folder(file.parent, option)
    # (Renaming would put a file in the place of a device, or of `/dev/stdout`.)
    odd = (file.exists() and not file.is_file()) or file.parent == Path("/dev")
    if odd or not os.access(file.parent, os.W_OK | os.X_OK):
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

"""The cgroups whose programs are redirected, by what people call them, as they come and go."""

from collections.abc import Collection, Iterator
from contextlib import suppress
from fnmatch import fnmatchcase
from os import scandir
from pathlib import Path
from stat import S_ISDIR
from typing import Final

_EMPTY: Final = 2
"""Links to a folder without folders: its name, and its own `.`."""


def chosen_cgroups(root: Path, words: Collection[str]) -> dict[int, Path]:
    """The cgroups that there are now, by number.

    A word with a slash is a path, below `root` (the mounted hierarchy) or absolute; one without is the
    name of any cgroup, of a systemd unit or scope say, and may have `*`.
    """
    names = [word for word in words if "/" not in word]
    paths = (_below(root, word) for word in words if "/" in word)
    found = dict(filter(None, map(_numbered, filter(None, paths))))
    if names:
        for folder in _all(root):
            if any(fnmatchcase(folder.name, name) for name in names) and (one := _numbered(folder)):
                found[one[0]] = one[1]
    return found


def _below(root: Path, word: str) -> Path | None:
    path = Path(word)
    if not path.is_relative_to(root):
        path = root / word.lstrip("/")
    return None if ".." in path.parts or path == root else path


def _numbered(folder: Path) -> tuple[int, Path] | None:
    """The kernel's number of a cgroup is its folder's."""
    try:
        status = folder.stat()
    except OSError:  # it is not there, or just went
        return None
    return (status.st_ino, folder) if S_ISDIR(status.st_mode) else None


def _all(folder: Path) -> Iterator[Path]:
    # Of each folder the kernel counts those in it: most have none, and some sixty files.
    with suppress(OSError):
        if folder.stat().st_nlink == _EMPTY:
            return
        with scandir(folder) as entries:
            inside = [Path(each) for each in entries if each.is_dir(follow_symlinks=False)]
        for each in inside:
            yield each
            yield from _all(each)

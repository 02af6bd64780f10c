"""A copy of a server's folder with all that is in it: complete, or what is missing is reported."""

import unicodedata
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

from cedos.apps.files.getting import entries
from cedos.apps.files.messages import Entry
from cedos.apps.files.partial import PART_NAME, OpenFolder, disk_words
from cedos.apps.files.server_link import ServerLink
from cedos.errors import TransferError

_DEEPEST: Final = 1_000
_MOST_ENTRIES: Final = 1_000_000
# The most known folders that are not listed yet. Each path may have 4 kB.
_MOST_WAITING: Final = 20_000


class TreeCopy:
    """A walk through a folder of a server, which makes the same folders below `here`.

    `top`: `here`, open; the caller closes it. TransferError: it cannot be made.
    """

    def __init__(
        self,
        link: ServerLink,
        path: str,  # the server's folder, with a slash at its end, or empty
        here: Path,
        patience_s: float,
        *,
        # Take names with a dot at the top. What lies there can change what programs do.
        dot_files: bool,
        # Receives the server's path, the path here, and why it is left out.
        missing: Callable[[str, Path, TransferError], None],
    ) -> None:
        self._link, self._path, self._here = link, path, here
        self._patience_s, self._dot_files = patience_s, dot_files
        self._report = missing
        self._waiting = [""]  # folders below `path`
        try:
            parent = here.parent if here.name else here
            parent.mkdir(parents=True, exist_ok=True)
            above = OpenFolder.of(parent)
        except OSError as error:
            raise _error(here, error) from error
        with above:
            self.top = _make_folder(above, here)

    async def files(self) -> AsyncIterator[tuple[str, Path, int]]:
        """Yield the server's path, the path here and the size of each file.

        SessionError: no server for too long.
        """
        seen = 0
        while self._waiting:
            below = self._waiting.pop()
            try:
                found = await entries(self._link, self._path + below, self._patience_s)
            except TransferError as error:
                self._missing(below, str(error))
                continue
            seen += len(found)
            if seen > _MOST_ENTRIES:
                self._missing(
                    below,
                    f"the copy ends here: more than {_MOST_ENTRIES} files and folders. Other folders can "
                    "be fetched by themselves",
                )
                return
            for entry in self._files(below, found):
                path = below + entry.name
                yield self._path + path, self._here / path, entry.size

    def _files(self, below: str, found: list[Entry]) -> Iterator[Entry]:
        """Make the folders that are in a folder, and yield its files; report what is left out."""
        folders, names, left_out = list[str](), dict[str, str](), 0
        for entry in found:
            path = below + entry.name
            if why := self._why_not(below, entry) or self._twin(below, names, entry.name):
                self._missing(path, why)
            elif entry.kind == "file":
                yield entry
            elif len(self._waiting) + len(folders) >= _MOST_WAITING:
                left_out += 1
            else:
                try:
                    with _make_folder(self.top, self._here / path):
                        folders.append(f"{path}/")
                except TransferError as error:
                    self._missing(path, str(error))
        self._waiting += reversed(folders)  # the first one is listed next
        if left_out:
            self._missing(
                below,
                f"{left_out} of its folders are left out: {_MOST_WAITING} are waiting. They can be "
                "fetched by themselves",
            )

    def _why_not(self, below: str, entry: Entry) -> str:
        if entry.kind in ("link", "other"):
            what = "a symbolic link" if entry.kind == "link" else "neither a file nor a folder"
            return f"is {what} at the server, which is not sent"
        if entry.name.startswith(".") and not below and not self._dot_files:
            return (
                "a name with a dot at the top can change what programs do here; with --dot-files it is "
                "fetched, too"
            )
        if PART_NAME.fullmatch(entry.name):
            return "has the name of a file that is not whole"
        if entry.kind == "folder" and below.count("/") >= _DEEPEST:
            return f"more than {_DEEPEST} folders deep"
        return ""

    def _twin(self, below: str, names: dict[str, str], name: str) -> str:
        """Say so if another name in the same folder is this very file here; empty: none is."""
        letters = unicodedata.normalize("NFKC", name).casefold().rstrip(" .")
        twin = names.setdefault(letters, name)
        folder = self._here / below
        with suppress(OSError):
            if twin != name and (folder / twin).samefile(folder / name):
                return f"is {twin} here: this file system does not tell the two names apart"
        return ""

    def _missing(self, below: str, why: str) -> None:
        self._report(self._path + below, self._here / below, TransferError(why))


def _make_folder(above: OpenFolder, folder: Path) -> OpenFolder:
    """Open a folder, made if it is not there, by no link of another user. Errors: TransferError."""
    try:
        return OpenFolder(folder, above.open_below(folder / "file", make=True, links=True))
    except OSError as error:
        raise _error(folder, error) from error


def _error(folder: Path, error: OSError) -> TransferError:
    if isinstance(error, NotADirectoryError):
        return TransferError(f"{folder} is a file here, and a folder at the server")
    return TransferError(f"{folder}: {disk_words(error)}")

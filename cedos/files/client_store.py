"""The files that a gateway keeps for its clients: a folder for each client, one limit of bytes for all.

A kept body lies beside its record, ID.json. One process uses the folder at a time.
"""

import fcntl
import os
import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, Generic, Protocol, TypeVar

import msgspec
import structlog

from cedos.errors import TransferError
from cedos.files.partial import files_of
from cedos.kernel import own_file

_LONGEST_RECORD: Final = 1 << 18
_CLIENT: Final = re.compile(r"[0-9a-f]{32}")

_log: Final[structlog.stdlib.BoundLogger] = structlog.get_logger()


class KeptBody(Protocol):
    """A body with its record.

    Attributes:
        path: of the body; its record is beside it.
        record: a struct with `id`, which is the body's name.
    """

    path: Path
    record: Any

    @property
    def held_bytes(self) -> int:
        """Bytes of the disk that it takes, or will take."""

    @property
    def used_unix_s(self) -> float:
        """When its client last used it."""

    @property
    def may_make_room(self) -> bool:
        """True if the body may be removed to make room for others."""

    def expired(self, now_unix_s: float) -> bool:
        """Tell whether it has waited for its client for too long."""


Kept = TypeVar("Kept", bound=KeptBody)


class ClientStore(Generic[Kept]):
    """Kept bodies by client, within `most_bytes`; one client has half of that at most.

    Args:
        restore: returns what an earlier process kept at a path, by its record; None: it is of no use.
        ours: matches names of files of ours; its group 1 is the body's name.
        durable: records survive a crash of the host.
    """

    def __init__(
        self,
        folder: Path,
        most_bytes: int,
        restore: Callable[[Path, bytes], Kept | None],
        ours: re.Pattern[str],
        *,
        durable: bool,
    ) -> None:
        self._folder, self._most = folder, most_bytes
        self._restore, self._ours, self._durable = restore, ours, durable
        self._kept: dict[str, dict[str, Kept]] = {}
        self._lock = -1

    @property
    def used_before(self) -> bool:
        """Tell whether an earlier process may have kept something."""
        return self._folder.is_dir()

    @property
    def most_per_client(self) -> int:
        return self._most // 2

    def open(self) -> None:
        """Lock the folder and read it, if that was not done. TransferError: it cannot be used."""
        if self._lock >= 0:
            return
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            lock = os.open(self._folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                self._read()
            except BaseException:
                os.close(lock)
                raise
        except OSError as error:
            _log.warning("nothing can be kept", folder=str(self._folder), why=str(error))
            raise TransferError(
                "this gateway cannot keep anything now; its owner's log says why"
            ) from None
        self._lock = lock

    def close(self) -> None:
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    def of(self, client: str) -> list[Kept]:
        return list(self._kept.get(client, {}).values())

    def all(self) -> list[tuple[str, Kept]]:
        return [(client, each) for client in self._kept for each in self.of(client)]

    def remove(self, client: str, kept: Kept) -> None:
        self._kept.get(client, {}).pop(kept.record.id, None)
        for path in (kept.path, *files_of(kept.path), kept.path.with_suffix(".json")):
            path.unlink(missing_ok=True)

    def tidy(self, now_unix_s: float) -> None:
        """Remove what has expired."""
        for client, each in self.all():
            if each.expired(now_unix_s):
                self.remove(client, each)

    def write(self, client: str, kept: Kept) -> None:
        """Write the record, so that the body survives a restart. TransferError."""
        draft, folder = kept.path.with_suffix(".new"), self._folder_of(client)
        try:
            draft.unlink(missing_ok=True)
            with os.fdopen(own_file.create(draft), "wb") as written:
                written.write(msgspec.json.encode(kept.record))
                written.flush()
                if self._durable:
                    os.fdatasync(written.fileno())
            draft.replace(kept.path.with_suffix(".json"))
            if self._durable:
                _sync(folder)
        except OSError as error:
            raise TransferError(f"the gateway cannot keep it: {error.strerror}") from error
        self._kept.setdefault(client, {})[kept.record.id] = kept

    def make_room(self, client: str, more_bytes: int, now_unix_s: float) -> None:
        """Make room for so many more bytes of a client. TransferError: there is none."""
        if more_bytes > self.most_per_client:
            raise TransferError(
                f"it is larger than the {self.most_per_client} bytes that this gateway keeps for a client"
            )
        self.tidy(now_unix_s)
        for owner, most in ((client, self.most_per_client), (None, self._most)):
            spare = sorted(
                (each for each in self._owned(owner) if each[1].may_make_room),
                key=lambda each: each[1].used_unix_s,
            )
            while sum(each.held_bytes for _, each in self._owned(owner)) + more_bytes > most:
                if not spare:
                    raise TransferError(
                        "the gateway has no room for it now: others are on their way"
                    )
                self._drop(*spare.pop(0))

    def _owned(self, client: str | None) -> list[tuple[str, Kept]]:
        """Return all bodies of a client; None: of all."""
        return [each for each in self.all() if client in (None, each[0])]

    def _drop(self, client: str, kept: Kept) -> None:
        """Remove a body that may make room."""
        self.remove(client, kept)

    def _folder_of(self, client: str) -> Path:
        """Return a client's folder, which is made. TransferError."""
        folder = self._folder / client
        try:
            folder.mkdir(mode=0o700, exist_ok=True)
        except OSError as error:
            raise TransferError(f"the gateway cannot keep it: {error.strerror}") from error
        return folder

    def _read(self) -> None:
        for folder in self._clients():
            found = self._kept[folder.name] = {}
            for path in folder.glob("*.json"):
                with suppress(OSError, msgspec.MsgspecError):
                    record = own_file.read(path, _LONGEST_RECORD)
                    kept = self._restore(path.with_suffix(""), record)
                    if kept is not None and kept.record.id == path.stem:
                        found[path.stem] = kept
            for path in folder.iterdir():
                # Remove what an earlier process began, and no file of others.
                ours = self._ours.fullmatch(path.name)
                if ours is not None and ours[1] not in found:
                    path.unlink()

    def _clients(self) -> Iterator[Path]:
        for each in self._folder.iterdir():
            if not each.is_symlink() and each.is_dir() and _CLIENT.fullmatch(each.name):
                yield each


def _sync(folder: Path) -> None:
    number = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(number)
    finally:
        os.close(number)

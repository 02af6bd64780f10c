"""An object of the web on the gateway's disk: its bytes, and its record beside them, ID.json."""

import asyncio
import hashlib
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Final

import msgspec

from cedos.errors import TransferError
from cedos.kernel import own_file
from cedos.kernel.own_file import to_its_end

# The store removes an object that no client requested for this time.
KEPT_S: Final = 7 * 86_400.0
FOR_ONE_S: Final = 3600.0  # if it may answer no other request
LONGEST_URL: Final = 1 << 13
# It holds a URL, and the fields that are kept.
LONGEST_RECORD: Final = 1 << 14

# One that comes so slowly that it would take longer makes room for others after the first seconds.
_SLOW_S: Final = 3600.0
_FIRST_S: Final = 60.0

_ENOUGH: Final = 1 << 18
_BLOCK: Final = 4_096
# The disk of 1 GB is free after 0.3 s on ext4, 0.6 s on tmpfs.
_LARGE: Final = 16 << 20
_freeing: Final = ThreadPoolExecutor(1, "freeing")
_not_freed: Final[dict[object, int]] = {}  # bytes of the disk, of each file that was removed

HeaderLists = dict[str, list[str]]


class ObjectRecord(msgspec.Struct, forbid_unknown_fields=True):
    """An object's origin and state, as they lie on the disk beside its bytes."""

    id: str
    url: str
    version: str  # of one state of the object; equal for equal strong validators
    headers: HeaderLists  # those by which it is fresh, and is confirmed
    reusable: bool  # HTTP lets the object answer other requests, too
    received_unix_s: float
    size: int | None = None
    sha256: str = ""
    used_unix_s: float = 0.0
    modified_unix_s: float = 0.0


class StoredObject:
    """An object on the disk, written by the fetcher while clients already read it.

    Attributes:
        have: bytes that are here.
        whole: all bytes are here.
        failed: why the rest will never be here.
        users: readers, and questions to its origin; while there are any it is not removed, unless
            others need the room.
        readers: those of its users that have it open.
        counted_bytes: of the disk, as the store counts them.
    """

    def __init__(self, path: Path, record: ObjectRecord, *, whole: bool = False) -> None:
        self.path, self.record = path, record
        self.whole, self.failed = whole, ""
        self.have = record.size or 0 if whole else 0
        self.users = self.counted_bytes = 0
        self.readers: set[OpenObject] = set()
        self._digest = hashlib.sha256()
        self._number = -1 if whole else own_file.create(path)
        self._grown = asyncio.Event()

    @property
    def held_bytes(self) -> int:
        return self.have if self.failed else max(self.have, self.record.size or 0)

    @property
    def may_make_room(self) -> bool:
        return not self.users and (self.whole or bool(self.failed))

    def is_slow(self, now_unix_s: float) -> bool:
        """Return whether its origin sends it so slowly that it takes an hour or longer."""
        age_s = now_unix_s - self.record.received_unix_s
        takes_s = age_s * self.held_bytes / max(self.have, 1)
        return not (self.whole or self.failed) and age_s > _FIRST_S and takes_s > _SLOW_S

    def is_expired(self, now_unix_s: float) -> bool:
        kept_s = KEPT_S if self.record.reusable else FOR_ONE_S
        return self.record.used_unix_s < now_unix_s - kept_s and self.may_make_room

    def write(self, data: bytes) -> None:
        """Write the next bytes. OSError: the disk is full, say."""
        self._digest.update(data)
        view = memoryview(data)
        while view:
            count = os.write(self._number, view)
            view = view[count:]
            self.have += count
        self._tell()

    async def finish(self) -> None:
        """Note that the object is whole. OSError: it is not on the disk. TransferError: it failed."""
        number = os.dup(self._number)  # `fail` closes the other one
        try:
            await to_its_end(asyncio.to_thread(os.fdatasync, number))
        finally:
            os.close(number)
        self.check()
        self.record.size, self.record.sha256 = self.have, self._digest.hexdigest()
        self.whole = True
        self._close()

    def fail(self, why: str) -> None:
        if not self.whole:
            self.failed = why
            self._close()

    async def known_size(self) -> int:
        """Return its size, once that is known. TransferError: it failed."""
        while self.record.size is None:
            self.check()
            await self._grown.wait()
        self.check()
        return self.record.size

    async def wait_beyond(self, offset: int) -> int:
        """Return `have` once enough bytes beyond `offset` are here, or all. TransferError."""
        while not self.whole and self.have < offset + _ENOUGH:
            self.check()
            await self._grown.wait()
        return self.have

    def check(self) -> None:
        """Refuse an object that failed. Errors: TransferError."""
        if self.failed:
            raise TransferError(self.failed)

    def _tell(self) -> None:
        self._grown.set()
        self._grown = asyncio.Event()

    def _close(self) -> None:
        if self._number >= 0:
            os.close(self._number)
            self._number = -1
        self._tell()


class OpenObject:
    """An object that is open for reading: until `close` it stays, unless others need its room.

    Args:
        give_up: called then, to end what reads it.
        closed: called once it is closed.
    """

    def __init__(
        self, found: StoredObject, give_up: Callable[[], object], closed: Callable[[], object]
    ) -> None:
        self.found, self._give_up, self._closed = found, give_up, closed
        self.number = os.open(found.path, os.O_RDONLY | os.O_CLOEXEC)
        found.users += 1
        found.readers.add(self)

    def end(self) -> None:
        """End what reads it, and close it."""
        self._give_up()
        self.close()

    def close(self) -> None:
        """Close it, if that was not done."""
        if self.number < 0:
            return
        os.close(self.number)
        self.number = -1
        self.found.users -= 1
        self.found.readers.discard(self)
        self._closed()


def cost_of(body_bytes: int) -> int:
    """Return the bytes of the disk for an object: of its body in whole blocks, and of its record."""
    return -(-body_bytes // _BLOCK) * _BLOCK + LONGEST_RECORD


def write_record(path: Path, record: ObjectRecord) -> None:
    """Write a record beside its body, so that it survives a restart. TransferError: the disk fails."""
    draft = path.with_suffix(".new")
    try:
        draft.unlink(missing_ok=True)
        with os.fdopen(own_file.create(draft), "wb") as written:
            written.write(msgspec.json.encode(record))
        draft.replace(path.with_suffix(".json"))
    except OSError as error:
        with suppress(OSError):
            draft.unlink(missing_ok=True)
        raise TransferError(f"the gateway cannot store it: {error.strerror}") from error


def unlink(path: Path) -> None:
    """Remove a file, if it is there; a thread frees the disk of a large one. Errors: OSError."""
    number = size = -1
    with suppress(OSError):  # it is not there, or no more files can be opened
        if (size := path.lstat().st_size) >= _LARGE:
            number = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        path.unlink(missing_ok=True)
    finally:
        if number >= 0:
            removed = object()
            _not_freed[removed] = size
            _freeing.submit(_give_back, number, removed)


def _give_back(number: int, removed: object) -> None:
    try:
        os.close(number)
    finally:
        del _not_freed[removed]


def freed_soon() -> int:
    """Return the bytes of the disk that a thread frees now."""
    return sum(list(_not_freed.values()))

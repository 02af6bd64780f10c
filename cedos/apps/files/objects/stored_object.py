"""An object of the web on the gateway's disk: its bytes, and its record beside them, ID.json."""

import asyncio
import hashlib
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from cedos.errors import TransferError
from cedos.kernel import own_file
from cedos.kernel.own_file import to_its_end

# The store removes an object that no client requested for this time.
KEPT_S: Final = 7 * 86_400.0
LONGEST_RECORD: Final = 1 << 17

# One that comes so slowly that it would take longer makes room for others after the first seconds.
_SLOW_S: Final = 3600.0
_FIRST_S: Final = 60.0

_ENOUGH: Final = 1 << 18
_EACH_BYTES: Final = 4_096  # of memory, beside its record
_LATER_BYTES: Final = 1_024  # of a record: its body's digest, say
_BLOCK: Final = 4_096
# The disk of 1 GB is free after 0.3 s on ext4, 0.6 s on tmpfs.
_LARGE: Final = 16 << 20
_freeing: Final = ThreadPoolExecutor(1, "freeing")
_not_freed: Final[dict[object, int]] = {}  # bytes of the disk, of each file that was removed

HeaderLists = dict[str, list[str]]


class ObjectRecord(msgspec.Struct, forbid_unknown_fields=True):
    """An object's origin and headers, as they lie on the disk beside its bytes."""

    id: str
    url: str
    version: str  # of one state of the object; equal for equal strong validators
    asked: HeaderLists
    headers: HeaderLists
    reusable: bool  # HTTP lets the object answer other requests, too
    received_unix_s: float
    size: int | None = None
    sha256: str = ""
    used_unix_s: float = 0.0
    modified_unix_s: float = 0.0


class Cost(NamedTuple):
    """Bytes on the disk, in whole blocks, and in memory."""

    disk: int = 0
    memory: int = 0

    def plus(self, more: "Cost") -> "Cost":
        return Cost(self.disk + more.disk, self.memory + more.memory)

    def beside(self, old: "Cost") -> "Cost":
        """Return what this costs more than an older one."""
        return Cost(self.disk - old.disk, self.memory - old.memory)


class StoredObject:
    """An object on the disk, written by the fetcher while clients already read it.

    Attributes:
        have: bytes that are here.
        whole: all bytes are here.
        failed: why the rest will never be here.
        users: readers, and questions to its origin; while there are any it is not removed, unless
            others need the room.
        readers: those of its users that have it open.
    """

    def __init__(self, path: Path, record: ObjectRecord, *, whole: bool = False) -> None:
        self.path, self.record = path, record
        self.whole, self.failed = whole, ""
        self.have = record.size or 0 if whole else 0
        self.users = 0
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

    def expired(self, now_unix_s: float) -> bool:
        return self.record.used_unix_s < now_unix_s - KEPT_S and self.may_make_room

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

    async def beyond(self, offset: int, least: int = _ENOUGH) -> int:
        """Return `have` once `least` bytes beyond `offset` are here, or all. TransferError."""
        while not self.whole and self.have < offset + least:
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


def encoded(record: ObjectRecord) -> bytes:
    """Return a record as it lies on the disk. TransferError: it is too long to be kept."""
    found = msgspec.json.encode(record)
    if len(found) > LONGEST_RECORD:
        raise TransferError(f"its head is longer than the {LONGEST_RECORD} bytes that are kept")
    return found


def cost_of(body_bytes: int, record_bytes: int) -> Cost:
    """Return the cost of a body and its first record, with room for what is added to that later."""
    record_bytes += _LATER_BYTES
    return Cost(_whole(body_bytes) + _whole(record_bytes), _EACH_BYTES + record_bytes)


def record_bytes(old: Cost, now_bytes: int) -> int:
    """Return the bytes to count for a record that had the `old` cost and has grown within its room."""
    return max(old.memory - _EACH_BYTES - _LATER_BYTES, now_bytes - _LATER_BYTES)


def _whole(n_bytes: int) -> int:
    """Return the bytes of the blocks that hold so many."""
    return -(-n_bytes // _BLOCK) * _BLOCK


def write_record(path: Path, record: bytes) -> None:
    """Write a record beside its body, so that it survives a restart. TransferError: the disk fails."""
    draft = path.with_suffix(".new")
    try:
        draft.unlink(missing_ok=True)
        with os.fdopen(own_file.create(draft), "wb") as written:
            written.write(record)
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
            _freeing.submit(_free, number, removed)


def _free(number: int, removed: object) -> None:
    try:
        os.close(number)
    finally:
        del _not_freed[removed]


def freed_soon() -> int:
    """Return the bytes of the disk that a thread frees now."""
    return sum(list(_not_freed.values()))

"""Objects of the web that a gateway keeps for its clients (D2Prox)."""

import asyncio
import fcntl
import hashlib
import os
import re
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Final
from uuid import uuid4

import msgspec

from cedos.apps.files.client_store import (
    NO_ROOM,
    ClientStore,
    cost_of,
    encoded,
    freed,
    write_record,
)
from cedos.errors import TransferError
from cedos.kernel import own_file
from cedos.kernel.own_file import to_its_end

# The store removes an object that no client requested for this time.
KEPT_S: Final = 7 * 86_400.0

# The most objects that one client has open.
MOST_OPEN: Final = 64

# One that comes so slowly that it would take longer makes room for others after the first seconds.
_SLOW_S: Final = 3600.0
_FIRST_S: Final = 60.0

_ENOUGH: Final = 1 << 18
_AT_ONCE: Final = 1 << 20  # of the disk: larger room is reserved in a thread
_OURS: Final = re.compile(r"([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})(?:\.json|\.new)?")

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
        return 0 if self.failed else max(self.have, self.record.size or 0)

    @property
    def coming_bytes(self) -> int:
        return 0  # its room is reserved on the disk

    @property
    def used_unix_s(self) -> float:
        return self.record.used_unix_s

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

    def reserve(self) -> None:
        """Take its room on the disk now, if its size is known. OSError: there is none."""
        if self.record.size:
            number = os.dup(self._number)  # `fail` closes the other one
            try:
                # O_APPEND would write behind the reserved room.
                flags = fcntl.fcntl(number, fcntl.F_GETFL)
                fcntl.fcntl(number, fcntl.F_SETFL, flags & ~os.O_APPEND)
                os.posix_fallocate(number, 0, self.record.size)
            finally:
                os.close(number)

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

    `give_up`: called then, to end what reads it.
    """

    def __init__(
        self, store: "ObjectStore", client: str, found: StoredObject, give_up: Callable[[], object]
    ) -> None:
        self.found, self.give_up = found, give_up
        self._store, self._client = store, client
        self.number = os.open(found.path, os.O_RDONLY | os.O_CLOEXEC)
        found.users += 1
        found.readers.add(self)

    def close(self) -> None:
        os.close(self.number)
        self.found.users -= 1
        self.found.readers.discard(self)
        self._store.closed(self._client)


class ObjectStore(ClientStore[StoredObject]):
    """The objects of all clients: those used longest ago make room first, whosever they are."""

    def __init__(self, folder: Path, most_bytes: int) -> None:
        super().__init__(folder, most_bytes, _restored, _OURS, lasting=False)
        self._open: Counter[str] = Counter()
        self._reserving = 0  # bytes of the disk that new objects are about to take
        self._by_url: dict[tuple[str, str], dict[str, StoredObject]] = {}
        self._coming: dict[StoredObject, str] = {}  # by whom they are waited for

    def find(self, client: str, version: str) -> StoredObject | None:
        """Return that state of an object, if it is here or on its way."""
        for each in self.of(client):
            if each.record.version == version and not each.failed:
                return each
        return None

    def of_url(self, client: str, url: str) -> list[StoredObject]:
        return list(self._by_url.get((client, url), {}).values())

    async def create(
        self,
        client: str,
        url: str,
        version: str,
        asked: HeaderLists,
        headers: HeaderLists,
        *,
        reusable: bool,
        size: int | None,
    ) -> StoredObject:
        """Return a new object, to be written. TransferError: there is no room, or no disk."""
        name, now_s = str(uuid4()), time.time()
        record = ObjectRecord(
            name, url, version or name, asked, headers, reusable, now_s, size, used_unix_s=now_s
        )
        head = encoded(record)
        await self.make_room(client, cost_of(size or 0, len(head)), now_s)
        self._leave_room(client, size or 0)
        path = self._folder_of(client) / name
        try:
            made = StoredObject(path, record)
        except OSError as error:
            raise TransferError(f"the gateway cannot store it: {error.strerror}") from error
        self.add(client, made, head)
        self._coming[made] = client
        try:
            await self._reserve(client, made, size or 0)
            made.check()
        except BaseException as error:
            made.fail("the gateway has no room for it")
            self.remove(client, made)
            if isinstance(error, OSError):
                raise TransferError(f"the gateway cannot store it: {error.strerror}") from error
            raise
        return made

    def _leave_room(self, client: str, size: int) -> None:
        """Refuse what comes if its client had more on the way than is left to another. TransferError."""
        self._coming = {
            each: by for each, by in self._coming.items() if not (each.whole or each.failed)
        }
        taken = sum(each.held_bytes * (1 + (by == client)) for each, by in self._coming.items())
        if taken + 2 * size > self._most_disk():
            raise TransferError(NO_ROOM)

    async def _reserve(self, client: str, made: StoredObject, size: int) -> None:
        """Take the room of a new object on the disk. OSError: there is none."""
        if size <= _AT_ONCE:  # who asks for a page waits for no other object's disk
            made.reserve()
            return
        self._reserving += size
        try:
            async with self.threads[client]:
                await freed()
                await to_its_end(asyncio.to_thread(made.reserve))
        finally:
            self._reserving -= size

    def _free_bytes(self) -> int:
        return super()._free_bytes() - self._reserving

    async def write(self, client: str, found: StoredObject) -> None:
        """Write the record, so that the object survives a restart. TransferError."""
        write_record(found.path, await self.counted(client, found))

    def open_object(
        self, client: str, found: StoredObject, give_up: Callable[[], object]
    ) -> OpenObject:
        """Open an object for reading. TransferError: its file is gone, or the client has too many."""
        if self._open[client] >= MOST_OPEN:
            raise TransferError(f"{MOST_OPEN} objects are open for this client: try again later")
        try:
            opened = OpenObject(self, client, found, give_up)
        except OSError as error:
            raise TransferError(f"the gateway has lost it: {error.strerror}") from error
        self._open[client] += 1
        self.mark_used(client, found)
        return opened

    def closed(self, client: str) -> None:
        self._open[client] -= 1

    async def grow(self, client: str, found: StoredObject, data: bytes) -> None:
        """Write the next bytes of an object. TransferError: there is no room. OSError: no disk."""
        if found.record.size is None:
            await self.make_room(client, cost_of(len(data), 0), time.time())
            found.check()
            self._leave_room(client, len(data))
        found.write(data)
        if found.record.size is None:
            self.account(client, found)

    def mark_used(self, client: str, kept: StoredObject) -> None:
        kept.record.used_unix_s = time.time()
        super().used(client, kept)

    def add(self, client: str, kept: StoredObject, record: bytes) -> None:
        super().add(client, kept, record)
        self._by_url.setdefault((client, kept.record.url), {})[kept.record.id] = kept

    def _drop_oldest(self, clients: list[str], but: StoredObject | None) -> None:
        """Drop what was used longest ago of what may go, else what is on its way and comes slowly.

        Where all is in use, the client that has most of it loses what it has read for longest.
        """
        try:
            super()._drop_oldest(clients, but)
        except TransferError:
            now_s = time.time()
            every = ((client, each) for client in clients for each in self.of(client))
            slow = ((client, each) for client, each in every if each.is_slow(now_s))
            client, found = next(slow, ("", None))
            if found is None and len(clients) > 1:
                most = max(clients, key=lambda each: self._accounts[each].here)
                if self._give_up(most, but):
                    return
            if found is None or found is but:
                raise
            found.fail("its origin sends it too slowly, and others need the room")
            self.remove(client, found)

    def _give_up(self, client: str, but: StoredObject | None) -> bool:
        """End what reads one of a client's objects, and remove that; return whether there was one."""
        for found in self.of(client):
            if found.whole and found is not but and found.users == len(found.readers):
                for each in list(found.readers):
                    each.give_up()
                self.remove(client, found)
                return True
        return False

    def remove(self, client: str, kept: StoredObject) -> None:
        super().remove(client, kept)
        self._coming.pop(kept, None)
        same = self._by_url.get((client, kept.record.url), {})
        same.pop(kept.record.id, None)
        if not same:
            self._by_url.pop((client, kept.record.url), None)


def _restored(path: Path, record: bytes) -> StoredObject | None:
    found = msgspec.json.decode(record, type=ObjectRecord)
    whole = path.lstat().st_size == found.size
    return StoredObject(path, found, whole=True) if whole else None

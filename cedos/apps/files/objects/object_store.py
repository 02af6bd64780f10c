"""The objects of the web that a gateway keeps for its clients (D2Prox): a folder for each client.

One process uses the folder at a time. Two accounts are kept, of which one client has half at most: the
disk's (bodies and records, in whole blocks) and the memory's (records, and what each costs beside).
Objects used longest ago make room first, whosever they are.
"""

import asyncio
import fcntl
import os
import re
import time
from collections import Counter, OrderedDict, defaultdict
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from shutil import disk_usage
from typing import Final
from uuid import uuid4

import msgspec

from cedos.apps.files.objects.stored_object import (
    LONGEST_RECORD,
    Cost,
    HeaderLists,
    ObjectRecord,
    OpenObject,
    StoredObject,
    cost_of,
    encoded,
    freed_soon,
    record_bytes,
    unlink,
    write_record,
)
from cedos.errors import TransferError
from cedos.kernel import own_file
from cedos.logs import BoundLogger, get_logger
from cedos.session.io.driver import current

# The most objects that one client has open; as many are on their way to it.
MOST_OPEN: Final = 64
THREADS: Final = 2
# The memory for the records of all clients.
MEMORY_BYTES: Final = 32 << 20

# Bytes of the disk that stay free for the host: its services, and the list of invited clients.
_KEEP_FREE: Final = 100_000_000
_TIDIED_EVERY_S: Final = 60.0
_CLIENT: Final = re.compile(r"[0-9a-f]{32}")
# Names of files of ours; the first group is the body's name.
_OURS: Final = re.compile(r"([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})(?:\.json|\.new)?")
_NO_ROOM: Final = "the gateway has no room for it while it fetches others"
_NOTHING: Final = Cost()

_log: Final[BoundLogger] = get_logger()


class ObjectStore:
    """The objects of all clients, in the order of their last use, within `most_bytes` of the disk."""

    def __init__(self, folder: Path, most_bytes: int) -> None:
        self._folder, self._most = folder, Cost(most_bytes, MEMORY_BYTES)
        # Of the few threads that hash files and wait for the disk, so many work for one client.
        self.threads = defaultdict[str, asyncio.Semaphore](lambda: asyncio.Semaphore(THREADS))
        self._kept: dict[str, OrderedDict[str, StoredObject]] = {}
        self._by_url: dict[tuple[str, str], dict[str, StoredObject]] = {}
        self._coming: dict[StoredObject, str] = {}  # by whom they are waited for
        self._leaving: dict[StoredObject, str] = {}  # what was removed, and is still read
        self._costs: dict[tuple[str, str], Cost] = {}  # by client and name
        self._accounts: defaultdict[str, Cost] = defaultdict(Cost)
        self._total = Cost()
        self._open: Counter[str] = Counter()
        self._tidied_unix_s = 0.0
        self._lock = -1

    @property
    def used_before(self) -> bool:
        """Tell whether an earlier process may have kept something."""
        return self._folder.is_dir()

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
            raise TransferError("the gateway cannot store files now; its log says why") from None
        self._lock = lock

    def close(self) -> None:
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    def of(self, client: str) -> list[StoredObject]:
        return list(self._kept.get(client, {}).values())

    def all(self) -> list[tuple[str, StoredObject]]:
        return [(client, each) for client in self._kept for each in self.of(client)]

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
        await self.make_room(client, cost_of(size or 0, len(head)))
        self._leave_room(client, size or 0)
        # Each is an open file, also while it waits to ask its origin again.
        if sum(by == client for by in self._coming.values()) >= MOST_OPEN:
            raise TransferError(f"{MOST_OPEN} objects are on their way for this client")
        path = self._folder_of(client) / name
        try:
            made = StoredObject(path, record)
        except OSError as error:
            raise TransferError(f"the gateway cannot store it: {error.strerror}") from error
        self._add(client, made, head)
        self._coming[made] = client
        return made

    def _leave_room(self, client: str, size: int) -> None:
        """Refuse what comes if its client had more on the way than is left to another. TransferError."""
        self._coming = {
            each: by for each, by in self._coming.items() if not (each.whole or each.failed)
        }
        taken = sum(each.held_bytes * (1 + (by == client)) for each, by in self._coming.items())
        if taken + 2 * size > self._most_disk():
            raise TransferError(_NO_ROOM)

    async def write(self, client: str, found: StoredObject) -> None:
        """Write the record, so that the object survives a restart.

        TransferError: there is no room for what was added to it, or no disk.
        """
        record = encoded(found.record)
        if (old := self._costs.get((client, found.record.id))) is not None:
            cost = self._cost(client, found, record)
            if cost.memory > old.memory:
                await self.make_room(client, cost.beside(old), but=found)
        self._folder_of(client)
        self._account(client, found, record)
        write_record(found.path, record)

    async def grow(self, client: str, found: StoredObject, data: bytes) -> None:
        """Write the next bytes of an object. TransferError: there is no room. OSError: no disk."""
        known = found.record.size is not None
        await self.make_room(client, _NOTHING if known else cost_of(len(data), 0))
        found.check()
        if not known:
            self._leave_room(client, len(data))
        found.write(data)
        if not known:
            self._account(client, found)

    def open_object(
        self, client: str, found: StoredObject, give_up: Callable[[], object]
    ) -> OpenObject:
        """Open an object for reading. TransferError: its file is gone, or the client has too many."""
        if self._open[client] >= MOST_OPEN:
            raise TransferError(f"{MOST_OPEN} objects are open for this client: try again later")
        try:
            opened = OpenObject(found, give_up, lambda: self._on_closed(client, found))
        except OSError as error:
            raise TransferError(f"the gateway has lost it: {error.strerror}") from error
        self._open[client] += 1
        self.mark_used(client, found)
        return opened

    def _on_closed(self, client: str, found: StoredObject) -> None:
        self._open[client] -= 1
        if found in self._leaving and not found.readers:
            self.remove(client, found)

    def mark_used(self, client: str, kept: StoredObject) -> None:
        """Note that a client uses an object now: others make room before it."""
        kept.record.used_unix_s = time.time()
        if self._has(client, kept):
            self._kept[client].move_to_end(kept.record.id)

    def remove(self, client: str, kept: StoredObject) -> None:
        """Remove an object, whose disk stays its client's until what reads it has closed it."""
        name, where = kept.record.id, (client, kept.record.url)
        if self._has(client, kept):
            del self._kept[client][name]
        same = self._by_url.get(where, {})
        same.pop(name, None)
        if not same:
            self._by_url.pop(where, None)
        self._coming.pop(kept, None)
        _unlink(kept.path.with_suffix(".json"))
        if kept.readers:
            self._leaving[kept] = client
            self._settle(client, name, self._cost(client, kept, b""))
            return
        self._leaving.pop(kept, None)
        _unlink(kept.path)
        self._settle(client, name, _NOTHING)

    async def tidy(self, now_unix_s: float) -> None:
        """Remove what has expired, in turns of its clients."""
        self._tidied_unix_s = now_unix_s
        for client, each in self.all():
            if each.expired(now_unix_s):
                await current().turns.turn(client)
                if self._has(client, each) and each.expired(now_unix_s):
                    self.remove(client, each)

    def _has(self, client: str, kept: StoredObject) -> bool:
        return client in self._kept and self._kept[client].get(kept.record.id) is kept

    def _add(self, client: str, kept: StoredObject, record: bytes) -> None:
        """Count a new object with its record."""
        self._kept.setdefault(client, OrderedDict())[kept.record.id] = kept
        self._by_url.setdefault((client, kept.record.url), {})[kept.record.id] = kept
        self._account(client, kept, record)

    def _account(self, client: str, kept: StoredObject, record: bytes = b"") -> None:
        """Count an object that has changed, with its record. TransferError: it was removed meanwhile."""
        if not self._has(client, kept):
            raise TransferError("the gateway has removed it meanwhile; run the same command again")
        self._settle(client, kept.record.id, self._cost(client, kept, record))

    def _cost(self, client: str, kept: StoredObject, record: bytes) -> Cost:
        """Return the cost of an object with its record; what a record took stays its own."""
        old = self._costs.get((client, kept.record.id))
        first = len(record) if old is None else record_bytes(old, len(record))
        return cost_of(kept.held_bytes, first)

    def _settle(self, client: str, name: str, cost: Cost) -> None:
        more = cost.beside(self._costs.pop((client, name), _NOTHING))
        if cost != _NOTHING:
            self._costs[client, name] = cost
        self._accounts[client] = self._accounts[client].plus(more)
        self._total = self._total.plus(more)

    async def make_room(self, client: str, more: Cost, *, but: StoredObject | None = None) -> None:
        """Make room for one more object of a client, or for more of one. TransferError: there is none.

        Thousands may have to go, in turns of the client: others may come and go meanwhile. `but`: stays.
        """
        if (now_s := time.time()) > self._tidied_unix_s + _TIDIED_EVERY_S:
            await self.tidy(now_s)
        most = Cost(self._most_disk(), self._most.memory)
        half = Cost(most.disk // 2, most.memory // 2)
        if more.disk > half.disk:
            raise TransferError(
                f"the file is larger than the {half.disk} bytes that this gateway stores for a client"
            )

        def own_fits() -> bool:
            before = self._accounts[client]
            after = before.plus(more)
            return after.memory <= half.memory and after.disk <= max(half.disk, before.disk)

        def all_fit() -> bool:
            after = self._total.plus(more)
            return after.disk <= most.disk and after.memory <= most.memory

        while not (own := own_fits()) or not all_fit():
            await current().turns.turn(client)
            self._drop_oldest(list(self._kept) if own else [client], but)

    def _most_disk(self) -> int:
        """Return the most bytes of the disk for all: what is given, as far as it is there."""
        try:
            free = disk_usage(self._folder).free
        except OSError as error:
            raise TransferError(f"the gateway cannot store it: {error.strerror}") from error
        still_to_come = sum(each.held_bytes - each.have for each in self._coming)
        there = self._total.disk - still_to_come + free - _KEEP_FREE + freed_soon()
        return max(0, min(self._most.disk, there))

    def _drop_oldest(self, clients: list[str], but: StoredObject | None) -> None:
        """Drop what was used longest ago of what may go, else what is on its way and comes slowly.

        Where all is in use, the client that has most of it loses what it has read for longest.
        TransferError: nothing may go.
        """
        oldest = []
        for client in clients:
            may = (each for each in self.of(client) if each.may_make_room and each is not but)
            if (first := next(may, None)) is not None:
                oldest.append((first.record.used_unix_s, client, first))
        if oldest:
            _, client, kept = min(oldest, key=lambda each: each[0])
            self.remove(client, kept)
            return
        now_s = time.time()
        every = ((client, each) for client in clients for each in self.of(client))
        slow = ((client, each) for client, each in every if each.is_slow(now_s))
        client, found = next(slow, ("", None))
        if found is None and len(clients) > 1:
            most = max(clients, key=lambda each: self._accounts[each].disk)
            if self._give_up(most, but):
                return
        if found is None or found is but:
            raise TransferError(_NO_ROOM)
        found.fail("its origin sends it too slowly, and others need the room")
        self.remove(client, found)

    def _give_up(self, client: str, but: StoredObject | None) -> bool:
        """End what reads one of a client's objects, and remove that; return whether there was one."""
        leaving = [each for each, by in self._leaving.items() if by == client]
        for found in (*leaving, *self.of(client)):
            if (found.whole or found.failed) and found is not but:
                for each in list(found.readers):
                    each.end()
                self.remove(client, found)
                return True
        return False

    def _folder_of(self, client: str) -> Path:
        """Return a client's folder, which is made. TransferError."""
        folder = self._folder / client
        try:
            folder.mkdir(mode=0o700, exist_ok=True)
        except OSError as error:
            raise TransferError(f"the gateway cannot store it: {error.strerror}") from error
        return folder

    def _read(self) -> None:
        for folder in self._clients():
            found: dict[str, tuple[StoredObject, bytes]] = {}
            for path in folder.glob("*.json"):
                with suppress(OSError, ValueError, RecursionError):
                    record = own_file.read(path, LONGEST_RECORD)
                    kept = _restored(path.with_suffix(""), record)
                    if kept is not None and kept.record.id == path.stem:
                        found[path.stem] = kept, record
            for kept, record in sorted(found.values(), key=lambda each: each[0].record.used_unix_s):
                self._add(folder.name, kept, record)
            for path in folder.iterdir():
                # Remove what an earlier process began, and no file of others.
                ours = _OURS.fullmatch(path.name)
                if ours is not None and ours[1] not in found:
                    path.unlink()

    def _clients(self) -> Iterator[Path]:
        for each in self._folder.iterdir():
            if not each.is_symlink() and each.is_dir() and _CLIENT.fullmatch(each.name):
                yield each


def _unlink(path: Path) -> None:
    with suppress(OSError):  # a disk that is read-only now, say
        unlink(path)


def _restored(path: Path, record: bytes) -> StoredObject | None:
    found = msgspec.json.decode(record, type=ObjectRecord)
    whole = path.lstat().st_size == found.size
    return StoredObject(path, found, whole=True) if whole else None

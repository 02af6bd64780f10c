"""The objects of the web that a gateway keeps for its clients (D2Prox): a folder for each client.

One process uses the folder at a time. One client has half at most of the disk (bodies and records, in
whole blocks), and of the objects, whose records are in memory. Those used longest ago make room first,
whosever they are.
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
    FOR_ONE_S,
    LONGEST_RECORD,
    HeaderLists,
    ObjectRecord,
    OpenObject,
    StoredObject,
    cost_of,
    freed_soon,
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
MOST_OBJECTS: Final = 2_000

# Bytes of the disk that stay free for the host: its services, and the list of invited clients.
_KEEP_FREE: Final = 100_000_000
_TIDIED_EVERY_S: Final = 60.0
_CLIENT: Final = re.compile(r"[0-9a-f]{32}")
# Names of files of ours; the first group is the body's name.
_OURS: Final = re.compile(r"([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})(?:\.json|\.new)?")
_NO_ROOM: Final = "the gateway has no room for it while it fetches others"

_log: Final[BoundLogger] = get_logger()


class ObjectStore:
    """The objects of all clients, in the order of their last use, within `most_bytes` of the disk."""

    def __init__(self, folder: Path, most_bytes: int) -> None:
        self._folder, self._most_bytes = folder, most_bytes
        # Of the few threads that hash files and wait for the disk, so many work for one client.
        self.threads = defaultdict[str, asyncio.Semaphore](lambda: asyncio.Semaphore(THREADS))
        self._kept: dict[str, OrderedDict[str, StoredObject]] = {}
        self._coming: dict[StoredObject, str] = {}  # by whom they are waited for
        self._leaving: dict[StoredObject, str] = {}  # what was removed, and is still read
        self._used: Counter[str] = Counter()  # bytes of the disk, by client
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
        return [each for each in self.of(client) if each.record.url == url]

    async def create(
        self,
        client: str,
        url: str,
        version: str,
        headers: HeaderLists,
        *,
        reusable: bool,
        size: int | None,
    ) -> StoredObject:
        """Return a new object, to be written. TransferError: there is no room, or no disk."""
        name, now_s = str(uuid4()), time.time()
        record = ObjectRecord(
            name, url, version or name, headers, reusable, now_s, size, used_unix_s=now_s
        )
        await self.make_room(client, cost_of(size or 0), objects=1)
        self._leave_room(client, size or 0)
        # Each is an open file, also while it waits to ask its origin again.
        if sum(by == client for by in self._coming.values()) >= MOST_OPEN:
            raise TransferError(f"{MOST_OPEN} objects are on their way for this client")
        path = self._folder_of(client) / name
        try:
            made = StoredObject(path, record)
        except OSError as error:
            raise TransferError(f"the gateway cannot store it: {error.strerror}") from error
        self._add(client, made)
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

    def write(self, client: str, found: StoredObject) -> None:
        """Write the record, so that the object survives a restart. TransferError: it was removed, say."""
        self._folder_of(client)
        self._account(client, found)
        write_record(found.path, found.record)
        if not found.record.reusable:  # else it waits for others that need room
            later = asyncio.get_running_loop().call_later
            later(FOR_ONE_S, lambda: self._remove_expired(client, found, time.time()))

    async def grow(self, client: str, found: StoredObject, data: bytes) -> None:
        """Write the next bytes of an object. TransferError: there is no room. OSError: no disk."""
        known = found.record.size is not None
        await self.make_room(client, 0 if known else cost_of(len(data)))
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
        self.mark_used(client, found)
        if found in self._leaving and not found.readers:
            self.remove(client, found)

    def mark_used(self, client: str, kept: StoredObject) -> None:
        """Note that a client uses an object now: others make room before it."""
        kept.record.used_unix_s = time.time()
        if self._is_kept(client, kept):
            self._kept[client].move_to_end(kept.record.id)

    def remove(self, client: str, kept: StoredObject) -> None:
        """Remove an object, whose disk stays its client's until what reads it has closed it."""
        if self._is_kept(client, kept):
            del self._kept[client][kept.record.id]
        self._coming.pop(kept, None)
        _unlink(kept.path.with_suffix(".json"))
        if kept.readers:
            self._leaving[kept] = client
            self._settle(client, kept, cost_of(kept.held_bytes))
            return
        self._leaving.pop(kept, None)
        _unlink(kept.path)
        self._settle(client, kept, 0)

    async def tidy(self, now_unix_s: float) -> None:
        """Remove what has expired, in turns of its clients."""
        self._tidied_unix_s = now_unix_s
        for client, each in self.all():
            if each.is_expired(now_unix_s):
                await current().turns.turn(client)
                self._remove_expired(client, each, now_unix_s)

    def _remove_expired(self, client: str, each: StoredObject, now_unix_s: float) -> None:
        if self._is_kept(client, each) and each.is_expired(now_unix_s):
            self.remove(client, each)

    def _is_kept(self, client: str, kept: StoredObject) -> bool:
        return client in self._kept and self._kept[client].get(kept.record.id) is kept

    def _add(self, client: str, kept: StoredObject) -> None:
        self._kept.setdefault(client, OrderedDict())[kept.record.id] = kept
        self._account(client, kept)

    def _account(self, client: str, kept: StoredObject) -> None:
        """Count an object that has changed. TransferError: it was removed meanwhile."""
        if not self._is_kept(client, kept):
            raise TransferError("the gateway has removed it meanwhile; run the same command again")
        self._settle(client, kept, cost_of(kept.held_bytes))

    def _settle(self, client: str, kept: StoredObject, cost: int) -> None:
        self._used[client] += cost - kept.counted_bytes
        kept.counted_bytes = cost
        if not self._used[client]:
            del self._used[client]

    async def make_room(self, client: str, more_bytes: int, *, objects: int = 0) -> None:
        """Make room for more bytes, and objects, of a client. TransferError: there is none.

        Thousands may have to go, in turns of the client: others may come and go meanwhile.
        """
        if (now_s := time.time()) > self._tidied_unix_s + _TIDIED_EVERY_S:
            await self.tidy(now_s)
        most = self._most_disk()
        if more_bytes > most // 2:
            raise TransferError(
                f"the file is larger than the {most // 2} bytes that this gateway stores for a client"
            )

        def own_fits() -> bool:
            before = self._used[client]
            few = len(self._kept.get(client, ())) + objects <= MOST_OBJECTS // 2
            return few and before + more_bytes <= max(most // 2, before)

        def all_fit() -> bool:
            few = sum(map(len, self._kept.values())) + objects <= MOST_OBJECTS
            return few and self._used.total() + more_bytes <= most

        while not (own := own_fits()) or not all_fit():
            await current().turns.turn(client)
            self._drop_oldest(list(self._kept) if own else [client])

    def _most_disk(self) -> int:
        """Return the most bytes of the disk for all: what is given, as far as it is there."""
        try:
            free = disk_usage(self._folder).free
        except OSError as error:
            raise TransferError(f"the gateway cannot store it: {error.strerror}") from error
        still_to_come = sum(each.held_bytes - each.have for each in self._coming)
        there = self._used.total() - still_to_come + free - _KEEP_FREE + freed_soon()
        return max(0, min(self._most_bytes, there))

    def _drop_oldest(self, clients: list[str]) -> None:
        """Drop what was used longest ago of what may go, else what is on its way and comes slowly.

        Where all is in use, the client that has most of it loses what it has read for longest.
        TransferError: nothing may go.
        """
        oldest = []
        for client in clients:
            may = (each for each in self.of(client) if each.may_make_room)
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
            most = max(clients, key=self._used.__getitem__)
            if self._give_up(most):
                return
        if found is None:
            raise TransferError(_NO_ROOM)
        found.fail("its origin sends it too slowly, and others need the room")
        self.remove(client, found)

    def _give_up(self, client: str) -> bool:
        """End what reads one of a client's objects, and remove that; return whether there was one."""
        leaving = [each for each, by in self._leaving.items() if by == client]
        for found in (*leaving, *self.of(client)):
            if found.whole or found.failed:
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
            found: dict[str, StoredObject] = {}
            for path in folder.glob("*.json"):
                with suppress(OSError, ValueError, RecursionError):
                    kept = _restore(path)
                    if kept is not None and kept.record.id == path.stem:
                        found[path.stem] = kept
            for kept in sorted(found.values(), key=lambda each: each.record.used_unix_s):
                self._add(folder.name, kept)
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


def _restore(path: Path) -> StoredObject | None:
    record = msgspec.json.decode(own_file.read(path, LONGEST_RECORD), type=ObjectRecord)
    body = path.with_suffix("")
    whole = body.lstat().st_size == record.size
    return StoredObject(body, record, whole=True) if whole else None

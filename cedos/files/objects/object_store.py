"""The gateway's store of web objects on disk, each handed on while it still grows.

An object is a file of bytes and a record beside it. The least recently used go when the store is full.
"""

import asyncio
import fcntl
import hashlib
import os
import re
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final
from uuid import uuid4

import msgspec
import structlog

from cedos.errors import TransferError
from cedos.files.clients_folder import ClientsFolder, StorePart
from cedos.kernel import own_file
from cedos.storage import whole_file

HeaderLists = dict[str, list[str]]


class ObjectRecord(msgspec.Struct, forbid_unknown_fields=True):
    """The record of an object, in a file beside its bytes.

    `version` tells one state of the object from another; of equal strong validators it is equal.
    `reusable`: HTTP lets it answer other requests, too; else it is kept for those that began with it.
    """

    id: str
    url: str
    version: str
    asked: HeaderLists
    headers: HeaderLists
    reusable: bool
    received_unix_s: float
    size: int | None = None
    sha256: str = ""
    used_unix_s: float = 0.0
    modified_unix_s: float = 0.0


_ENOUGH: Final = 1 << 18


class StoredObject:
    """An object on the disk: `have` bytes of it, `whole` or `failed` with a reason.

    Attributes:
        users: who hand it on now: it is not removed.
    """

    def __init__(self, path: Path, record: ObjectRecord, *, whole: bool = False) -> None:
        self.path, self.record = path, record
        self.whole, self.failed = whole, ""
        self.have = record.size or 0 if whole else 0
        self.users = 0
        self._digest = hashlib.sha256()
        self._number = -1 if whole else own_file.create(path)
        self._grown = asyncio.Event()

    def reserve(self) -> None:
        """Reserve the disk space of an object of known size. OSError: the disk is full."""
        if self.record.size:
            # Else written bytes would be appended behind the reserved room.
            flags = fcntl.fcntl(self._number, fcntl.F_GETFL)
            fcntl.fcntl(self._number, fcntl.F_SETFL, flags & ~os.O_APPEND)
            os.posix_fallocate(self._number, 0, self.record.size)

    def write(self, data: bytes) -> None:
        """Append the next bytes. OSError: the disk fails."""
        self._digest.update(data)
        view = memoryview(data)
        while view:
            count = os.write(self._number, view)
            view = view[count:]
            self.have += count
        self._tell()

    async def finish(self) -> None:
        """Mark the object whole. OSError: the disk fails."""
        await asyncio.to_thread(os.fdatasync, self._number)
        self.record.size, self.record.sha256 = self.have, self._digest.hexdigest()
        self.whole = True
        self._close()

    def fail(self, why: str) -> None:
        if not self.whole:
            self.failed = why
            self._close()

    async def known_size(self) -> int:
        """Wait for the size. TransferError: the object failed."""
        while self.record.size is None:
            self._check()
            await self._grown.wait()
        self._check()
        return self.record.size

    async def beyond(self, offset: int, least: int = _ENOUGH) -> int:
        """Wait for enough bytes behind `offset`, or for all; return how many are here. TransferError."""
        while not self.whole and self.have < offset + least:
            self._check()
            await self._grown.wait()
        return self.have

    def _check(self) -> None:
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


KEPT_S: Final = 7 * 86_400.0
"""An object without a request for so long is removed."""

_LONGEST_RECORD: Final = 1 << 18
_OURS: Final = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}(\.json|\.new)?")

_log: Final[structlog.stdlib.BoundLogger] = structlog.get_logger()


class ObjectStore:
    """The objects of all clients in one folder, or in a share of one; read at the first use.

    Those used longest ago go first, whosever they are; one client has half of it at most.
    """

    def __init__(self, folder: Path, most_bytes: int, part: StorePart | None = None) -> None:
        self._folder, self._most = folder, most_bytes
        self._clients = ClientsFolder(folder, part)
        self._objects: dict[str, dict[str, StoredObject]] = {}

    @property
    def most_per_client(self) -> int:
        return self._most // 2

    def open(self) -> None:
        """Lock and read the folder. TransferError: it cannot be used."""
        if self._clients.is_open:
            return
        try:
            self._clients.open(self._read)
        except OSError as error:
            _log.warning("keeps no objects", folder=str(self._folder), why=str(error))
            raise TransferError(
                "this gateway cannot keep anything now; its owner's log says why"
            ) from None

    def close(self) -> None:
        self._clients.close()

    def of(self, client: str) -> list[StoredObject]:
        """Return a client's objects, also those that still grow."""
        return list(self._objects.get(client, {}).values())

    def find(self, client: str, version: str) -> StoredObject | None:
        """Return that version of an object, if it is here or on its way."""
        for each in self.of(client):
            if each.record.version == version and not each.failed:
                return each
        return None

    def create(
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
        """Create an object to be written. TransferError: there is no room, or the disk fails."""
        self.room(client, size or 0)
        name, now_s = str(uuid4()), time.time()
        record = ObjectRecord(
            name, url, version or name, asked, headers, reusable, now_s, size, used_unix_s=now_s
        )
        try:
            (self._folder / client).mkdir(mode=0o700, exist_ok=True)
            made = StoredObject(self._folder / client / name, record)
        except OSError as error:
            raise TransferError(f"the gateway cannot keep it: {error.strerror}") from error
        try:
            made.reserve()
        except OSError as error:
            made.fail("the disk is full")
            made.path.unlink(missing_ok=True)
            raise TransferError(f"the gateway cannot keep it: {error.strerror}") from error
        self._objects.setdefault(client, {})[name] = made
        return made

    def room(self, client: str, more_bytes: int) -> None:
        """Make room for so many bytes. TransferError: there is none."""
        if more_bytes > self.most_per_client:
            raise TransferError(
                f"it is larger than the {self.most_per_client} bytes that this gateway keeps for a client"
            )
        now_s = time.time()
        for owner, each in list(self._all()):
            if each.record.used_unix_s < now_s - KEPT_S and _may_go(each):
                self.remove(owner, each)
        mine = self._oldest(client)
        while self._bytes(client) + more_bytes > self.most_per_client:
            self._remove_next(mine)
        everybody = self._oldest(None)
        while self._bytes(None) + more_bytes > self._most:
            self._remove_next(everybody)

    def keep(self, client: str, found: StoredObject) -> None:
        """Write the record, so that the object survives a restart. OSError."""
        whole_file.write(found.path.with_suffix(".json"), msgspec.json.encode(found.record))
        self._objects.setdefault(client, {})[found.record.id] = found

    def used(self, found: StoredObject) -> None:
        found.record.used_unix_s = time.time()

    def remove(self, client: str, found: StoredObject) -> None:
        """Remove an object for new requests; current users have its file open."""
        self._objects.get(client, {}).pop(found.record.id, None)
        for path in (found.path, found.path.with_suffix(".json")):
            path.unlink(missing_ok=True)

    def _all(self) -> Iterator[tuple[str, StoredObject]]:
        for client, objects in self._objects.items():
            for each in objects.values():
                yield client, each

    def _bytes(self, client: str | None) -> int:
        return sum(
            # An object that still grows counts with its whole size.
            max(each.have, each.record.size or 0)
            for owner, each in self._all()
            if client in (None, owner) and not each.failed
        )

    def _oldest(self, client: str | None) -> "list[tuple[str, StoredObject]]":
        """Return the removable objects, the least recently used last."""
        found = [(owner, each) for owner, each in self._all() if client in (None, owner)]
        found = [(owner, each) for owner, each in found if _may_go(each)]
        return sorted(found, key=lambda one: one[1].record.used_unix_s, reverse=True)

    def _remove_next(self, oldest: "list[tuple[str, StoredObject]]") -> None:
        if not oldest:
            raise TransferError("the gateway has no room for it now: others are on their way")
        self.remove(*oldest.pop())

    def _read(self) -> None:
        for folder in self._clients.of_clients():
            for path in folder.glob("*.json"):
                with suppress(OSError, msgspec.MsgspecError):
                    record = msgspec.json.decode(
                        own_file.read(path, _LONGEST_RECORD), type=ObjectRecord
                    )
                    body = path.with_suffix("")
                    if record.id == body.name and body.lstat().st_size == record.size:
                        found = StoredObject(body, record, whole=True)
                        self._objects.setdefault(folder.name, {})[record.id] = found
            known = self._objects.get(folder.name, {})
            for path in folder.iterdir():
                # What a process before this one began; nothing that is not ours.
                if _OURS.fullmatch(path.name) and path.with_suffix("").name not in known:
                    path.unlink()


def _may_go(each: StoredObject) -> bool:
    return not each.users and (each.whole or bool(each.failed))

"""The objects of all clients on the disk: each client's are its own, together they have a limit."""

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
from cedos.files.objects.object_record import HeaderLists, ObjectRecord
from cedos.files.objects.stored_object import StoredObject
from cedos.kernel import own_file
from cedos.storage import whole_file

KEPT_S: Final = 7 * 86_400.0
"""What nobody asked for in so long goes."""

_LONGEST_RECORD: Final = 1 << 18
_OURS: Final = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}(\.json|\.new)?")

_log: Final[structlog.stdlib.BoundLogger] = structlog.get_logger()


class ObjectStore:
    """A folder of its own, made and read when it is first wanted; or a part of one.

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
        """TransferError: the folder cannot be used."""
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
        """A client's objects, those under way among them."""
        return list(self._objects.get(client, {}).values())

    def find(self, client: str, version: str) -> StoredObject | None:
        """That state of an object, if it is here or on its way."""
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
        """To be written. TransferError: there is no room, or no disk."""
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
        """Makes room for so many bytes. TransferError: there is none."""
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
        """Writes down what is known of it: from now on it survives a restart. OSError."""
        whole_file.write(found.path.with_suffix(".json"), msgspec.json.encode(found.record))
        self._objects.setdefault(client, {})[found.record.id] = found

    def used(self, found: StoredObject) -> None:
        found.record.used_unix_s = time.time()

    def remove(self, client: str, found: StoredObject) -> None:
        """It is gone for new requests; who hands it on has it open."""
        self._objects.get(client, {}).pop(found.record.id, None)
        for path in (found.path, found.path.with_suffix(".json")):
            path.unlink(missing_ok=True)

    def _all(self) -> Iterator[tuple[str, StoredObject]]:
        for client, objects in self._objects.items():
            for each in objects.values():
                yield client, each

    def _bytes(self, client: str | None) -> int:
        return sum(
            # (What is under way counts with all that will be.)
            max(each.have, each.record.size or 0)
            for owner, each in self._all()
            if client in (None, owner) and not each.failed
        )

    def _oldest(self, client: str | None) -> "list[tuple[str, StoredObject]]":
        """Those that may go, the one used longest ago last."""
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

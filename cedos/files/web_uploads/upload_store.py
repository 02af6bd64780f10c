"""The uploads of all clients on the disk: each client's are its own, together they have a limit."""

import os
import re
import time
from contextlib import suppress
from pathlib import Path
from typing import Final

import msgspec
import structlog

from cedos.errors import TransferError
from cedos.files.clients_folder import CLIENT, ClientsFolder, StorePart
from cedos.files.web_uploads.kept_upload import KeptUpload
from cedos.files.web_uploads.upload_record import UploadRecord
from cedos.kernel import own_file

_LONGEST_RECORD: Final = 1 << 18
_MOST_OF_CLIENT: Final = 1_000
_KEEP_FREE: Final = 100_000_000
_OURS: Final = re.compile(r"[0-9a-f]{32}(\.part(\.json(\.new)?)?|\.json|\.new)?")

_log: Final[structlog.stdlib.BoundLogger] = structlog.get_logger()


class UploadStore:
    """A folder of its own, or a part of one that several processes use. One client has half at most.

    Unlike what was fetched nothing here can be had again, so it is not thrown away for others.
    """

    def __init__(self, folder: Path, most_bytes: int, part: StorePart | None = None) -> None:
        self._folder, self._most = folder, most_bytes
        self._clients = ClientsFolder(folder, part)
        self._uploads: dict[str, dict[str, KeptUpload]] = {}

    @property
    def used_before(self) -> bool:
        """Whether there may be anything of an earlier process."""
        return self._folder.is_dir()

    @property
    def most_per_client(self) -> int:
        return self._most // 2

    def open(self) -> None:
        """Reads what there is. TransferError: the folder cannot be used."""
        if self._clients.is_open:
            return
        try:
            self._clients.open(self._read)
        except OSError as error:
            _log.warning("takes no uploads", folder=str(self._folder), why=str(error))
            raise TransferError(
                "this gateway cannot keep anything now; its owner's log says why"
            ) from None

    def close(self) -> None:
        self._clients.close()

    def find(self, client: str, name: str) -> KeptUpload | None:
        return self._uploads.get(client, {}).get(name)

    def all(self) -> list[tuple[str, KeptUpload]]:
        return [
            (client, each) for client, of in self._uploads.items() for each in list(of.values())
        ]

    def create(self, client: str, record: UploadRecord) -> KeptUpload:
        """TransferError: there is no room, or no disk."""
        self._room(client, record.size)
        of = self._uploads.setdefault(client, {})
        if len(of) >= _MOST_OF_CLIENT:
            told = [each for each in of.values() if each.record.told]
            if not told:
                raise TransferError(f"{_MOST_OF_CLIENT} uploads are here for this client already")
            self.remove(client, min(told, key=lambda each: each.record.heard_unix_s))
        made = KeptUpload(self._folder / client / record.id, record)
        of[record.id] = made
        try:
            self.write(client, made)
        except TransferError:
            del of[record.id]
            raise
        return made

    def write(self, client: str, upload: KeptUpload) -> None:
        """Its record, to the disk before this returns. TransferError."""
        draft = upload.path.with_suffix(".new")
        try:
            (self._folder / client).mkdir(mode=0o700, exist_ok=True)
            draft.unlink(missing_ok=True)
            with os.fdopen(own_file.create(draft), "wb") as written:
                written.write(msgspec.json.encode(upload.record))
                written.flush()
                os.fdatasync(written.fileno())
            draft.replace(upload.path.with_suffix(".json"))
            folder = os.open(self._folder / client, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                os.fsync(folder)
            finally:
                os.close(folder)
        except OSError as error:
            raise TransferError(f"the gateway cannot keep it: {error.strerror}") from error

    def forget_body(self, upload: KeptUpload) -> None:
        for path in upload.files:
            path.unlink(missing_ok=True)

    def remove(self, client: str, upload: KeptUpload) -> None:
        self._uploads.get(client, {}).pop(upload.record.id, None)
        self.forget_body(upload)
        upload.path.with_suffix(".json").unlink(missing_ok=True)

    def tidy(self, now_unix_s: float) -> None:
        """What was waited for too long goes."""
        for client, each in self.all():
            if each.expired(now_unix_s):
                self.remove(client, each)

    def _room(self, client: str, more_bytes: int) -> None:
        if more_bytes > self.most_per_client:
            raise TransferError(
                f"it is larger than the {self.most_per_client} bytes that this gateway takes of a client"
            )
        self.tidy(time.time())
        spare = sorted(
            (each for each in self.all() if each[1].may_make_room),
            key=lambda each: each[1].record.heard_unix_s,
        )
        while self._lacks(client, more_bytes):
            if not spare:
                raise TransferError("the gateway has no room for it now: others are on their way")
            self.forget_body(spare.pop(0)[1])
        disk = os.statvfs(self._folder)
        if disk.f_bavail * disk.f_frsize < more_bytes + _KEEP_FREE:
            raise TransferError("the gateway's disk has no room for it")

    def _lacks(self, client: str, more_bytes: int) -> bool:
        of = {
            each: sum(upload.held_bytes for upload in uploads.values())
            for each, uploads in self._uploads.items()
        }
        mine, everybody = of.get(client, 0), sum(of.values())
        return mine + more_bytes > self.most_per_client or everybody + more_bytes > self._most

    def _read(self) -> None:
        for folder in self._clients.of_clients():
            if not CLIENT.fullmatch(folder.name):
                continue
            found: dict[str, KeptUpload] = {}
            for path in folder.glob("*.json"):
                with suppress(OSError, msgspec.MsgspecError):
                    record = msgspec.json.decode(
                        own_file.read(path, _LONGEST_RECORD), type=UploadRecord
                    )
                    if path.name == f"{record.id}.json":
                        found[record.id] = KeptUpload(path.with_suffix(""), record)
            self._uploads[folder.name] = found
            for path in folder.iterdir():
                # What a process before this one began; nothing that is not ours.
                if _OURS.fullmatch(path.name) and path.name[:32] not in found:
                    path.unlink()

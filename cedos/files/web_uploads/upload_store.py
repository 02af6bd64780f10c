"""The gateway's store of uploads on disk: bodies on their way to web servers, and what became of them.

Unlike a fetched object an upload cannot be had again, so it is never dropped to make room for others.
"""

import asyncio
import os
import re
import time
from contextlib import suppress
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec
import structlog

from cedos.errors import TransferError
from cedos.files.clients_folder import CLIENT, ClientsFolder, StorePart
from cedos.files.messages import WebAnswer
from cedos.kernel import own_file

if TYPE_CHECKING:
    from cedos.session.sockets.connection import Connection


class UploadState(StrEnum):
    """The state of an upload: `COMING` from the client, `WHOLE`, `SENDING` to the origin, `ANSWERED`."""

    COMING = "coming"
    WHOLE = "whole"
    SENDING = "sending"
    ANSWERED = "answered"


class UploadRecord(msgspec.Struct, forbid_unknown_fields=True):
    """The record of an upload, in a file beside its bytes.

    `headers` may name a user: they are forgotten once the origin has answered. `told`: the client has the
    answer. `heard_unix_s`: the client was last here then; it is waited for `keep_s`.
    """

    id: str
    url: str
    method: str
    headers: list[tuple[str, str]]
    size: int
    version: str
    keep_s: float
    heard_unix_s: float
    state: UploadState = UploadState.COMING
    sha256: str = ""
    answer: WebAnswer | None = None
    told: bool = False


ANSWERS_KEPT_S: Final = 7 * 86_400.0


class KeptUpload:
    """An upload: `path` has the whole body; before that, a `Partial` beside it has the received part.

    Attributes:
        bringer: the session that brings it now.
    """

    def __init__(self, path: Path, record: UploadRecord) -> None:
        self.path, self.record = path, record
        self.bringer: Connection | None = None
        self.answered = asyncio.Event()
        if record.state is UploadState.ANSWERED:
            self.answered.set()

    @property
    def files(self) -> list[Path]:
        """Return the paths of its body and part, without its record."""
        names = ("", ".part", ".part.json", ".part.json.new")
        return [self.path.with_name(self.path.name + each) for each in names]

    @property
    def held_bytes(self) -> int:
        """Return the bytes that it takes of the disk, or will take."""
        record = self.record
        over = record.state is UploadState.ANSWERED
        return 0 if over and not self.path.exists() else record.size

    @property
    def may_make_room(self) -> bool:
        """Return True if the body is kept only in case it must be sent once more."""
        return self.record.state is UploadState.ANSWERED and self.path.exists()

    def expired(self, now_unix_s: float) -> bool:
        """Return True if its client was away for too long; an answer is kept for a while in any case."""
        record = self.record
        if record.state is UploadState.ANSWERED and record.answer is not None:
            return now_unix_s > max(
                record.answer.at_unix_s + ANSWERS_KEPT_S, record.heard_unix_s + record.keep_s
            )
        waits = record.state is UploadState.COMING and self.bringer is None
        return waits and now_unix_s > record.heard_unix_s + record.keep_s


_LONGEST_RECORD: Final = 1 << 18
_MOST_OF_CLIENT: Final = 1_000
_KEEP_FREE: Final = 100_000_000
_OURS: Final = re.compile(r"[0-9a-f]{32}(\.part(\.json(\.new)?)?|\.json|\.new)?")

_log: Final[structlog.stdlib.BoundLogger] = structlog.get_logger()


class UploadStore:
    """The uploads of all clients in one folder, or in a share of one. One client has half at most.

    Unlike what was fetched nothing here can be had again, so it is not thrown away for others.
    """

    def __init__(self, folder: Path, most_bytes: int, part: StorePart | None = None) -> None:
        self._folder, self._most = folder, most_bytes
        self._clients = ClientsFolder(folder, part)
        self._uploads: dict[str, dict[str, KeptUpload]] = {}

    @property
    def used_before(self) -> bool:
        """Return True if there may be uploads of an earlier process."""
        return self._folder.is_dir()

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
        """Create an upload. TransferError: there is no room, or the disk fails."""
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
        """Write its record to the disk before returning. TransferError: the disk fails."""
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
        """Remove expired uploads."""
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

"""Uploads to web servers that a gateway puts together for its clients (D2Prox, uplink)."""

import asyncio
import os
import re
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from cedos.apps.files.client_store import ClientStore, cost_of, encoded
from cedos.apps.files.messages import WebAnswer
from cedos.apps.files.partial import files_of
from cedos.errors import TransferError

if TYPE_CHECKING:
    from cedos.session.sockets.connection import Connection

ANSWERS_KEPT_S: Final = 7 * 86_400.0
_MOST_OF_CLIENT: Final = 1_000
_KEEP_FREE: Final = 100_000_000
_OURS: Final = re.compile(
    r"([0-9a-f]{32})(?:\.[0-9a-f]{16}\.part(?:\.json(?:\.new)?)?|\.json|\.new)?"
)


class UploadState(StrEnum):
    """`COMING` from the client, `WHOLE` here, `ANSWERED` by the origin."""

    COMING = "coming"
    WHOLE = "whole"
    ANSWERED = "answered"


class UploadRecord(msgspec.Struct, forbid_unknown_fields=True):
    """An upload's destination, state and answer, as they lie on the disk beside the bytes."""

    id: str
    url: str
    headers: list[tuple[str, str]]  # may name a user; they are deleted once the origin has answered
    size: int
    version: str
    keep_s: float
    heard_unix_s: float  # when the client was last here; it is waited for `keep_s`
    state: UploadState = UploadState.COMING
    sha256: str = ""
    answer: WebAnswer | None = None
    told: bool = False  # the client has the answer


class KeptUpload:
    """An upload at the gateway, from its first byte to the origin's answer.

    `path` has the body once it is whole; before that its bytes lie in a `Partial` beside it.
    """

    def __init__(self, path: Path, record: UploadRecord) -> None:
        self.path, self.record = path, record
        self.bringer: Connection | None = None  # the session that brings it now
        self.answered = asyncio.Event()
        if record.state is UploadState.ANSWERED:
            self.answered.set()

    @property
    def held_bytes(self) -> int:
        answered = self.record.state is UploadState.ANSWERED
        return 0 if answered and not self.path.exists() else self.record.size

    @property
    def used_unix_s(self) -> float:
        return self.record.heard_unix_s

    @property
    def may_make_room(self) -> bool:
        """True if the origin has answered: a body waits for a repetition alone, or its client knows."""
        answered = self.record.state is UploadState.ANSWERED
        return answered and (self.record.told or self.path.exists())

    def expired(self, now_unix_s: float) -> bool:
        """Tell whether its client was away for too long; an answer is kept for a week at least."""
        record = self.record
        if record.state is UploadState.ANSWERED and record.answer is not None:
            return now_unix_s > max(
                record.answer.at_unix_s + ANSWERS_KEPT_S, record.heard_unix_s + record.keep_s
            )
        waits = record.state is UploadState.COMING and self.bringer is None
        return waits and now_unix_s > record.heard_unix_s + record.keep_s


class UploadStore(ClientStore[KeptUpload]):
    """The uploads of all clients. Only bodies whose origin has answered make room for others."""

    def __init__(self, folder: Path, most_bytes: int) -> None:
        super().__init__(folder, most_bytes, _restored, _OURS, durable=True)

    def find(self, client: str, name: str) -> KeptUpload | None:
        return self._kept[client].get(name) if client in self._kept else None

    def create(self, client: str, record: UploadRecord) -> KeptUpload:
        """Return a new upload. TransferError: there is no room, or no disk."""
        self.make_room(client, cost_of(record.size, len(encoded(record))), self.clock.now_s())
        disk = os.statvfs(self._folder)
        if disk.f_bavail * disk.f_frsize < record.size + _KEEP_FREE:
            raise TransferError("the gateway's disk has no room for it")
        of = self.of(client)
        if len(of) >= _MOST_OF_CLIENT:
            told = [each for each in of if each.record.told]
            if not told:
                raise TransferError(f"{_MOST_OF_CLIENT} uploads are here for this client already")
            self.remove(client, min(told, key=lambda each: each.used_unix_s))
        made = KeptUpload(self._folder / client / record.id, record)
        self.write(client, made)
        return made

    def forget_body(self, upload: KeptUpload) -> None:
        for path in (upload.path, *files_of(upload.path)):
            path.unlink(missing_ok=True)

    def _drop(self, client: str, kept: KeptUpload) -> None:
        if kept.path.exists():
            self.forget_body(kept)
            self.account(client, kept)
        else:
            self.remove(client, kept)


def _restored(path: Path, record: bytes) -> KeptUpload:
    return KeptUpload(path, msgspec.json.decode(record, type=UploadRecord))

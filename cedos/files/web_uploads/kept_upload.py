"""One upload at the gateway, from its first byte to the origin's answer."""

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Final

from cedos.files.web_uploads.upload_record import UploadRecord, UploadState

if TYPE_CHECKING:
    from cedos.session.sockets.connection import Connection

ANSWERS_KEPT_S: Final = 7 * 86_400.0


class KeptUpload:
    """`path` has the body once it is whole; what has come of it before lies in a `Partial` beside it.

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
        """All that there may be of it, but for its record."""
        names = ("", ".part", ".part.json", ".part.json.new")
        return [self.path.with_name(self.path.name + each) for each in names]

    @property
    def held_bytes(self) -> int:
        """What it takes of the disk, or will."""
        record = self.record
        over = record.state is UploadState.ANSWERED
        return 0 if over and not self.path.exists() else record.size

    @property
    def may_make_room(self) -> bool:
        """Whether its body was wanted only in case it is to be sent once more."""
        return self.record.state is UploadState.ANSWERED and self.path.exists()

    def expired(self, now_unix_s: float) -> bool:
        """Whether its client was away for too long; an answer is kept for a while in any case."""
        record = self.record
        if record.state is UploadState.ANSWERED and record.answer is not None:
            return now_unix_s > max(
                record.answer.at_unix_s + ANSWERS_KEPT_S, record.heard_unix_s + record.keep_s
            )
        waits = record.state is UploadState.COMING and self.bringer is None
        return waits and now_unix_s > record.heard_unix_s + record.keep_s

"""Messages of the control socket about the event log."""

from typing import Annotated, Final

import msgspec
from msgspec import Meta

from cedos.api.messages import ControlMessage

FILE_NAME: Final = r"\A[A-Za-z0-9][A-Za-z0-9._-]{0,99}\Z"


class RecordingRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A wish to begin an event log, or to end it."""

    on: bool  # begin; else: end
    # Its name in the daemon's folder of logs; None: the time.
    file: Annotated[str, Meta(pattern=FILE_NAME)] | None = None
    names: bool = False  # with the names of hosts as they are, which only root may wish


class RecordingMessage(ControlMessage, frozen=True, kw_only=True):
    """The event log that is being written, or was ended just now."""

    on: bool  # it is being written
    files: tuple[str, ...] = ()  # the oldest first; none: there is no log
    since_unix_s: float | None = None
    size_bytes: int = 0
    events: int = 0  # since it began; the oldest files may be gone
    names: bool = False  # it has the names of hosts as they are
    problem: str = ""  # why it is not written any more, in words

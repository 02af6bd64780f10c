"""What is known of an upload: where it goes, how far it is, and what its origin answered."""

from enum import StrEnum

import msgspec

from cedos.files.messages import WebAnswer


class UploadState(StrEnum):
    """`COMING` from the client, `WHOLE` here, `SENDING` to the origin, `ANSWERED`: it is over."""

    COMING = "coming"
    WHOLE = "whole"
    SENDING = "sending"
    ANSWERED = "answered"


class UploadRecord(msgspec.Struct, forbid_unknown_fields=True):
    """As it lies on the disk beside the bytes.

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

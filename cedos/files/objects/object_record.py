"""What is known of an object that is kept: where it is from, and what HTTP says of it."""

import msgspec

HeaderLists = dict[str, list[str]]


class ObjectRecord(msgspec.Struct, forbid_unknown_fields=True):
    """As it lies on the disk beside the bytes.

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

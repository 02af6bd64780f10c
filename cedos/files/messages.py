"""What the two ends say on a session's stream: a request, an answer, the file's bytes, a digest.

Request and answer are JSON behind their length (32 bits, big-endian); then come `size - start` bytes
and the 32 bytes of the whole file's SHA-256. Any number of requests may follow each other.
"""

import struct
from collections.abc import Awaitable, Callable
from typing import Annotated, Final, TypeVar

import msgspec

from cedos.errors import TransferError

VERSION: Final = 1
DIGEST_BYTES: Final = 32
_LENGTH: Final = struct.Struct(">I")
_LONGEST: Final = 65_536
_LARGEST: Final = 1 << 62

Offset = Annotated[int, msgspec.Meta(ge=0, le=_LARGEST)]
# The years 1 to 9999: what file systems and people can tell.
UnixTime = Annotated[float, msgspec.Meta(ge=-62_135_596_800, le=253_402_300_799)]
Message = TypeVar("Message", bound=msgspec.Struct)


class Request(msgspec.Struct, frozen=True):
    """A file, or what follows `have` bytes of a version of it."""

    path: Annotated[str, msgspec.Meta(max_length=4096)]
    have: Offset = 0
    version: Annotated[str, msgspec.Meta(max_length=100)] = ""
    protocol: int = VERSION


class Answer(msgspec.Struct, frozen=True):
    """The file from `start` on: as asked, or 0 if the version is another one; or why not."""

    size: Offset = 0
    start: Offset = 0
    version: Annotated[str, msgspec.Meta(max_length=100)] = ""
    modified_unix_s: UnixTime = 0.0
    refused: Annotated[str, msgspec.Meta(max_length=1000)] = ""


def pack(message: msgspec.Struct) -> bytes:
    body = msgspec.json.encode(message)
    assert len(body) <= _LONGEST
    return _LENGTH.pack(len(body)) + body


async def read(kind: type[Message], exactly: Callable[[int], Awaitable[bytes]]) -> Message:
    """The next message.

    Raises:
        TransferError: it is not one; says what is wrong with it.
    """
    (length,) = _LENGTH.unpack(await exactly(_LENGTH.size))
    if length > _LONGEST:
        raise TransferError(f"the peer sent a message of {length} bytes; {_LONGEST} are possible")
    try:
        return msgspec.json.decode(await exactly(length), type=kind)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
        raise TransferError(f"the peer sent what is no {kind.__name__.lower()}: {error}") from error

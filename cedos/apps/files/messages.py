"""The messages on a session's stream of files: requests and answers, bytes of files, digests.

A message is JSON behind its length (32 bits, big-endian). The client asks for one thing after another:

- `FileRequest`: the server's `Answer`, then `size - start` bytes of the file and the 32 bytes of the
  whole file's SHA-256; with `head` the `Answer` alone.
- `ListRequest`: `Listing`, then `size` bytes of JSON: a list of `Entry`.
- `PutRequest`: `PutAnswer` with where to begin; the client sends the bytes from there and the digest of
  the whole file, and gets another `PutAnswer` once the file has its name. With `folder` one `PutAnswer`
  says that the folder is there.

Names are text. A byte of a name that is not UTF-8 is NUL and two hex digits, for no name has a NUL.
"""

import os
import re
import struct
from collections.abc import Awaitable, Callable
from typing import Annotated, Any, Final, Literal

import msgspec

from cedos.errors import TransferError

VERSION: Final = 4
DIGEST_BYTES: Final = 32
LONGEST_LISTING: Final = 1 << 24
MOST_ENTRIES: Final = 50_000
_LENGTH: Final = struct.Struct(">I")
_LONGEST: Final = 65_536
_LARGEST: Final = 1 << 62

_LONGEST_PATH_LETTERS: Final = 4096
_BEFORE, _AFTER = -62_135_596_800, 253_402_300_799  # the years 1 to 9999: what people can tell
_NO_TEXT: Final = re.compile("[\udc80-\udcff]")  # what Python makes of bytes that are not UTF-8
_ESCAPED: Final = re.compile("\0([89a-f][0-9a-f])")

Offset = Annotated[int, msgspec.Meta(ge=0, le=_LARGEST)]
UnixTime = Annotated[float, msgspec.Meta(ge=_BEFORE, le=_AFTER)]
PathText = Annotated[str, msgspec.Meta(max_length=_LONGEST_PATH_LETTERS)]
VersionText = Annotated[str, msgspec.Meta(max_length=100)]
WhyText = Annotated[str, msgspec.Meta(max_length=1000)]


def text_of(path: str) -> str:
    """Return a path, or a name, of a file system as text."""
    return _NO_TEXT.sub(lambda found: f"\0{ord(found[0]) - 0xDC00:02x}", path)


def path_text(path: str) -> str:
    """Return a path for a message. TransferError: it is too long."""
    text = text_of(path)
    if len(text) > _LONGEST_PATH_LETTERS:
        raise TransferError(f"the path is longer than {_LONGEST_PATH_LETTERS} letters")
    return text


def path_of(text: str) -> str:
    """Return the path that a text stands for. ValueError: none."""
    path = _ESCAPED.sub(lambda found: chr(0xDC00 + int(found[1], 16)), text)
    if "\0" in path:
        raise ValueError("a name that is none")
    return os.fsdecode(os.fsencode(path))  # one name, however its bytes were written


def unix_time(seconds: float) -> float:
    """Return the nearest time that a message can have."""
    return min(max(seconds, _BEFORE), _AFTER)


class FileRequest(msgspec.Struct, frozen=True, tag_field="ask", tag="file"):
    """A request for a file, or for what follows `have` bytes of a version of it.

    `head`: only the answer: to know the size of what can wait costs few metered bytes.
    """

    path: PathText
    have: Offset = 0
    version: VersionText = ""
    protocol: int = VERSION
    head: bool = False


class ListRequest(msgspec.Struct, frozen=True, tag_field="ask", tag="list"):
    """A request for the list of a folder; the empty path is the served folder."""

    path: PathText
    protocol: int = VERSION


class PutRequest(msgspec.Struct, frozen=True, tag_field="ask", tag="put"):
    """A request to keep a file under `path`; `version` is the client's own name of its version.

    `folder`: of a folder, to be made; `size` is 0.
    """

    path: PathText
    size: Offset
    version: VersionText
    modified_unix_s: UnixTime = 0.0
    protocol: int = VERSION
    folder: bool = False


AnyRequest = FileRequest | ListRequest | PutRequest


class Answer(msgspec.Struct, frozen=True):
    """The answer with a file from `start` on, 0 if the version is another one; or a refusal."""

    size: Offset = 0
    start: Offset = 0
    version: VersionText = ""
    modified_unix_s: UnixTime = 0.0
    refused: WhyText = ""


class Listing(msgspec.Struct, frozen=True):
    """The answer with the size of the list that follows; or a refusal."""

    size: Annotated[int, msgspec.Meta(ge=0, le=LONGEST_LISTING)] = 0
    refused: WhyText = ""


class Entry(msgspec.Struct, frozen=True):
    """An entry of a folder: a file, a folder, or something that is not sent, such as a pipe."""

    name: Annotated[str, msgspec.Meta(min_length=1, max_length=765)]
    kind: Literal["file", "folder", "link", "other"] = "file"
    size: Offset = 0
    modified_unix_s: UnixTime = 0.0

    def __post_init__(self) -> None:
        """Refuse a name that leads out of the folder."""
        if path_of(self.name) in {".", ".."} or "/" in self.name:
            raise ValueError("a name that is none")


Entries = Annotated[list[Entry], msgspec.Meta(max_length=MOST_ENTRIES)]


class PutAnswer(msgspec.Struct, frozen=True):
    """The answer to an upload: from where on the server wants it, then that it has it; or a refusal."""

    start: Offset = 0
    refused: WhyText = ""


def pack(message: msgspec.Struct) -> bytes:
    body = msgspec.json.encode(message)
    assert len(body) <= _LONGEST
    return _LENGTH.pack(len(body)) + body


async def read(kind: Any, exactly: Callable[[int], Awaitable[bytes]], begun: bytes = b"") -> Any:
    """Read the next message of a `kind`; `begun` are its first bytes, if they have been read.

    TransferError: it is not one; says what is wrong with it.
    """
    (length,) = _LENGTH.unpack(begun + await exactly(_LENGTH.size - len(begun)))
    if length > _LONGEST:
        raise TransferError(f"the peer sent a message of {length} bytes; {_LONGEST} are possible")
    return decode(await exactly(length), kind)


def decode(data: bytes, kind: Any) -> Any:
    """Decode the body of a message or of a list.

    TransferError: it is not one; says what is wrong with it.
    """
    try:
        return msgspec.json.decode(data, type=kind)
    except (ValueError, RecursionError) as error:
        name = getattr(kind, "__name__", "request").lower()
        raise TransferError(f"the peer sent an invalid {name}: {error}") from error

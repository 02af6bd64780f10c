"""NAME.part.json: what NAME.part is a part of, and over which networks it came."""

import os
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Final

import msgspec

from cedos.kernel import own_file

_LONGEST: Final = 1 << 20
_FLAGS: Final = os.O_WRONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC

_Bytes = Annotated[int, msgspec.Meta(ge=0)]


class PartOf(msgspec.Struct, frozen=True):
    """Which version of what, and its whole size."""

    source: str
    version: str
    size: int


class NotedBytes(msgspec.Struct, frozen=True):
    """Bytes that came, by interface; so many `metered_bytes` of them while their network was metered."""

    by_network: dict[str, _Bytes] = {}
    metered_bytes: _Bytes = 0


class PartNote:
    """A line that is written whole or not at all, and one that is written over with each piece.

    Nothing depends on the second one: where it cannot be read or written, nobody knows any more.
    """

    def __init__(self, target: Path) -> None:
        self._path = target.with_name(target.name + ".part.json")
        self._first_length = self._length = 0

    def read(self) -> tuple[PartOf, NotedBytes] | None:
        """None: there is no note, or it is something else."""
        try:
            first, _, second = own_file.read(self._path, _LONGEST).partition(b"\n")
            part_of = msgspec.json.decode(first, type=PartOf)
        except (OSError, msgspec.MsgspecError):
            return None
        noted = NotedBytes()
        with suppress(msgspec.MsgspecError):
            noted = msgspec.json.decode(second, type=NotedBytes)
        return part_of, noted

    def write(self, part_of: PartOf, noted: NotedBytes) -> None:
        """Anew. Errors: OSError, it is as it was."""
        draft = self._path.with_name(self._path.name + ".new")
        draft.unlink(missing_ok=True)
        first, second = msgspec.json.encode(part_of) + b"\n", msgspec.json.encode(noted)
        with os.fdopen(own_file.create(draft), "wb") as written:
            written.write(first + second)
        draft.replace(self._path)
        self._first_length, self._length = len(first), len(second)

    def write_bytes(self, noted: NotedBytes) -> None:
        """The second line alone, in place: no file is made for each piece. Errors: OSError."""
        number = os.open(self._path, _FLAGS)
        try:
            own_file.check(number, self._path)
            # Nothing of a longer one is left behind it.
            second = msgspec.json.encode(noted).ljust(self._length)
            os.pwrite(number, second, self._first_length)
        finally:
            os.close(number)
        self._length = len(second)

    def remove(self) -> None:
        """Errors: OSError."""
        self._path.unlink(missing_ok=True)

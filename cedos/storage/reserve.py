"""A small file that takes its newest content also on a full disk: its room is taken beforehand.

It is written in place, in one of two halves by turns. Of a write that is cut off the one before stays.
"""

import os
import struct
from contextlib import suppress
from pathlib import Path
from typing import Final
from zlib import crc32

from cedos.kernel import own_file

_HALF_BYTES: Final = 64 << 10
# The sum of what follows; the number of the write, and how long its content is.
_SUM, _HEAD = struct.Struct("<I"), struct.Struct("<QI")
_BEFORE_BYTES: Final = _SUM.size + _HEAD.size


class ReservedFile:
    """The file. Make it while the disk has room. Errors: OSError.

    One thread writes. `read_only`: it is only looked at, and not made.
    """

    def __init__(self, path: Path, *, read_only: bool = False) -> None:
        self.path = path
        if not read_only:
            own_file.ensure(path)
        self._file = own_file.open_own(path, os.O_RDONLY if read_only else os.O_RDWR)
        self._number, self.content = max(map(self._read_half, range(2)))
        missing = 2 * _HALF_BYTES - os.fstat(self._file).st_size
        if missing > 0 and not read_only:
            with suppress(OSError):  # what it has of it is of use, too
                os.pwrite(self._file, bytes(missing), 2 * _HALF_BYTES - missing)

    def write(self, content: bytes) -> None:
        """Return when it is on the disk."""
        if len(content) > _HALF_BYTES - _BEFORE_BYTES:
            raise OSError(f"{len(content)} bytes do not fit in")
        number = self._number + 1
        body = _HEAD.pack(number, len(content)) + content
        data = _SUM.pack(crc32(body)) + body
        if os.pwrite(self._file, data, number % 2 * _HALF_BYTES) != len(data):
            raise OSError("the disk took a part only")
        os.fsync(self._file)
        self._number, self.content = number, content

    def close(self) -> None:
        os.close(self._file)

    def _read_half(self, which: int) -> tuple[int, bytes]:
        """Return the number and the content of a half; 0 of one that is not whole."""
        data = os.pread(self._file, _HALF_BYTES, which * _HALF_BYTES)
        if len(data) < _BEFORE_BYTES:
            return 0, b""
        number, length = _HEAD.unpack_from(data, _SUM.size)
        body = data[_SUM.size : _BEFORE_BYTES + length]
        whole = len(body) == _HEAD.size + length and data[: _SUM.size] == _SUM.pack(crc32(body))
        return (number, body[_HEAD.size :]) if whole else (0, b"")

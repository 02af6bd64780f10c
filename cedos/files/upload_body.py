"""What is sent of a file: its bytes, and for a form what stands around them."""

import hashlib
import os
import stat
from collections.abc import Callable
from pathlib import Path

from cedos.errors import TransferError
from cedos.files.tree import Version, digest_of, reader


class UploadBody:
    """`before`, the file, `after`; the file is open until `close`.

    Raises:
        TransferError: the file cannot be read.
    """

    def __init__(self, source: Path, before: bytes = b"", after: bytes = b"") -> None:
        self._before, self._after = before, after
        try:
            self._number = os.open(source, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError as error:
            raise TransferError(str(error.strerror)) from error
        status = os.fstat(self._number)
        if not stat.S_ISREG(status.st_mode):
            os.close(self._number)
            raise TransferError("is no plain file")
        self.version = Version.of(status)
        self.size = len(before) + self.version.size + len(after)

    def close(self) -> None:
        os.close(self._number)

    def reader(self, start: int) -> Callable[[int, int], bytes]:
        """As `tree.reader`."""
        before, behind = len(self._before), len(self._before) + self.version.size
        if not (self._before or self._after):
            return reader(self._number, start)
        of_file = reader(self._number, 0)

        def fetch(offset: int, count: int) -> bytes:
            first, end = start + offset, start + offset + count
            data = self._before[first:end]
            if (inside := max(first, before)) < min(end, behind):
                data += of_file(inside - before, min(end, behind) - inside)
            return data + self._after[max(first - behind, 0) : max(end - behind, 0)]

        return fetch

    def digest(self) -> bytes:
        """SHA-256 of all of it. TransferError: the file is another one by now."""
        if not (self._before or self._after):
            digest = digest_of(self._number, self.size)
        else:
            whole, fetch, at = hashlib.sha256(), self.reader(0), 0
            while at < self.size:
                piece = fetch(at, min(1 << 20, self.size - at))
                whole.update(piece)
                at += len(piece)
            digest = whole.digest()
        if Version.of(os.fstat(self._number)) != self.version:
            raise TransferError("changed while it was sent; the same command tries anew")
        return digest

"""A file that is handed on as it comes: to a player, say."""

import hashlib
from collections.abc import Awaitable, Callable
from typing import Any

from cedos.errors import TransferError


class PipeTarget:
    """Bytes in order to `write`; nothing of them is kept, so that there is one attempt only."""

    def __init__(self, write: Callable[[Any], Awaitable[None]]) -> None:
        self._write = write
        self.have = 0
        self.version = ""
        self._digest = hashlib.sha256()

    def begin(self, start: int, version: str, size: int) -> None:
        if start != self.have or (self.have and version != self.version):
            raise TransferError(
                f"the file changed on the server; {self.have} bytes of the older one were written"
            )
        self.version = version

    def write(self, data: Any) -> Awaitable[None]:
        self._digest.update(data)
        self.have += len(data)
        return self._write(data)

    def is_right(self, digest: bytes) -> bool:
        return self._digest.digest() == digest

    def discard(self) -> None:
        raise TransferError("what was written is not what the server has: its SHA-256 differs")

    def finish(self, modified_unix_s: float) -> None: ...

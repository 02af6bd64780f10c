"""Where a file that is fetched goes to."""

from collections.abc import Awaitable
from typing import Any, Protocol


class Target(Protocol):
    """A part on the disk, or a pipe: bytes in order, and at the end whether they were right.

    `have` bytes of `version` are here; the errors of all are TransferErrors.
    """

    @property
    def have(self) -> int: ...

    @property
    def version(self) -> str: ...

    def begin(self, start: int, version: str, size: int) -> None: ...

    def write(self, data: Any) -> Awaitable[None] | None:
        """The next bytes; what it returns is to be waited for."""

    def is_right(self, digest: bytes) -> bool: ...

    def discard(self) -> None:
        """What is here is not what the server has: all of it again."""

    def finish(self, modified_unix_s: float) -> None: ...

"""Files that clients send: new ones only, below the served folder, within limits."""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from cedos.errors import TransferError
from cedos.files.messages import PutRequest
from cedos.files.partial import Partial, when_free
from cedos.files.tree import Tree
from cedos.session import keys

_AT_ONCE: Final = 8  # of one host
_OURS: Final = (".part", ".part.json", ".part.json.new")


@dataclass(frozen=True, slots=True)
class UploadLimits:
    """The largest file, and what must be left of the disk."""

    largest_bytes: int = 10 * 10**9
    keep_free_bytes: int = 10**9


class Uploads:
    """Takes files for a tree. What has come of one lies beside its name until it is whole."""

    def __init__(self, tree: Tree, limits: UploadLimits) -> None:
        self._tree, self._limits = tree, limits
        self._of_host: dict[bytes, int] = {}
        self._reserved = 0

    @asynccontextmanager
    async def begun(self, peer_key: bytes, request: PutRequest) -> AsyncIterator[Partial]:
        """The part of a file that this host sends; what an earlier session brought is in it.

        Raises:
            TransferError: the name cannot be, there is such a file, or it does not fit.
        """
        parts = self._tree.parts(request.path)
        if (
            parts is None
            or any(part.startswith(".") for part in parts)
            or parts[-1].endswith(_OURS)
        ):
            raise TransferError(
                f"{request.path!r} cannot be kept; a name without .., a leading dot and .part would be "
                "right"
            )
        if request.size > self._limits.largest_bytes:
            raise TransferError(
                f"{request.size} bytes; {self._limits.largest_bytes} are the most for one file here"
            )
        running = self._of_host.get(peer_key, 0)
        if running >= _AT_ONCE:
            raise TransferError(f"{_AT_ONCE} files at once are the most here; try again later")
        folder = self._tree.folder(parts[:-1], make=True)
        self._of_host[peer_key] = running + 1
        partial, reserved = None, 0
        inside = f"/proc/self/fd/{folder}/"  # this very folder, whatever its path leads to by now
        try:
            source = f"{keys.to_text(peer_key)}/{request.version}"
            partial = await when_free(Path(inside) / parts[-1], source)
            missing = request.size - (partial.have if partial.version == request.version else 0)
            disk = os.fstatvfs(folder)
            free = disk.f_bavail * disk.f_frsize - self._reserved - missing
            if free < self._limits.keep_free_bytes:
                raise TransferError("not enough room on the server's disk")
            reserved = missing
            self._reserved += reserved
            yield partial
        except TransferError as error:
            why = str(error).replace(inside, "")
            raise TransferError(why.replace(inside[:-1], "/".join(parts[:-1]))) from error
        finally:
            self._reserved -= reserved
            if partial is not None:
                partial.close()
            os.close(folder)
            self._of_host[peer_key] -= 1
            if not self._of_host[peer_key]:
                del self._of_host[peer_key]

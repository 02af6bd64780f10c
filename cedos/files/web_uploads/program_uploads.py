"""Programs' plain uploads, put together on the disk before their origin sees them.

Only what tells its length, and is large enough to be worth two ways through the disk. Nothing of it has a
name there: it is gone with its program, or with this process.
"""

import os
from collections.abc import Callable
from contextlib import ExitStack
from typing import Final

import aiohttp
from yarl import URL

from cedos.errors import TransferError
from cedos.files.objects.origin_client import words
from cedos.files.objects.program_requests import PassedAnswer, program_url
from cedos.files.web_uploads.upload_sender import REPEATABLE, UploadSender, not_known
from cedos.files.web_uploads.upload_store import UploadStore
from cedos.session.protocol.crypto import host_id

LEAST_BYTES: Final = 1 << 16
_NOT_OURS: Final = frozenset(
    (b"transfer-encoding", b"upgrade", b"trailer", b"te", b"content-range")
)
_OF_THE_WAY: Final = frozenset((b"connection", b"expect", b"host", b"content-length"))


class ProgramUploads:
    """What `cedos.proxy.gateway.gathered_upload.UploadGatherer` asks for."""

    def __init__(
        self, store: UploadStore, sender: UploadSender, changed: Callable[[str, URL], None]
    ) -> None:
        self._store, self._sender, self._changed = store, sender, changed

    def gather(
        self,
        client: bytes,
        host: str,
        port: int,
        method: bytes,
        target: bytes,
        fields: list[tuple[bytes, bytes]],
        file: int | None = None,
    ) -> "SpooledUpload | None":
        length, expects, headers = 0, False, []
        for name, value in fields:
            lower = name.lower()
            if lower in _NOT_OURS:
                return None
            if lower == b"content-length":
                length = int(value) if value.isdigit() and len(value) < 19 else 0
            elif lower == b"expect":
                expects = value.lower() == b"100-continue"
                if not expects:
                    return None
            if lower not in _OF_THE_WAY:
                headers.append((name.decode(), value.decode("latin-1")))
        if length < LEAST_BYTES:
            return None
        hosts = [value for name, value in fields if name.lower() == b"host"]
        try:
            url = program_url(host, port, target, hosts)
            self._store.open()
            return SpooledUpload(
                self._store, _named(client), self._sender, method.decode(), url, headers, length,
                expects, file,
            )  # fmt: skip
        except (TransferError, ValueError):
            return None  # as it would go without us

    def changed(self, client: bytes, host: str, port: int, target: bytes) -> None:
        try:
            url = program_url(host, port, target, [])
        except ValueError:
            return
        self._changed(_named(client), url)


class SpooledUpload:
    """What `cedos.proxy.gateway.gathered_upload.ProgramBody` asks for. Raises: TransferError, no room."""

    def __init__(
        self,
        store: UploadStore,
        client: str,
        sender: UploadSender,
        method: str,
        url: URL,
        headers: list[tuple[str, str]],
        length: int,
        expects: bool,
        file: int | None,
    ) -> None:
        self._sender, self._method, self._url, self._headers = sender, method, url, headers
        self.length, self.expects = length, expects
        self._held = ExitStack()
        self._number = self._held.enter_context(store.spool(client, length, file))
        self.written = os.lseek(self._number, 0, os.SEEK_END)

    def write(self, data: bytes | memoryview) -> None:
        view = memoryview(data)
        while view:
            try:
                count = os.write(self._number, view)
            except OSError as error:
                raise TransferError(f"the gateway cannot keep it: {error.strerror}") from error
            self.written += count
            view = view[count:]

    async def sent(self) -> PassedAnswer:
        body = os.fdopen(os.dup(self._number), "rb")
        body.seek(0)
        host = self._url.host
        try:
            with body:
                return PassedAnswer(
                    await self._sender.ask(
                        self._method, self._url, self._headers, body, self.length
                    )
                )
        except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError) as error:
            raise TransferError(f"{host} cannot be asked: {words(error)}") from None
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            why = f"{host} broke off before it answered ({words(error)})"
            raise TransferError(not_known(why).problem) from None

    def doubtful(self) -> str:
        """What to say where the origin was asked and nobody heard its answer; empty: ask it again."""
        if self._method in REPEATABLE:
            return ""
        return not_known("the gateway began anew before the answer came").problem

    def detach(self) -> int:
        """The file with what has come, for another process: here it is over."""
        number = os.dup(self._number)
        self._held.close()
        return number

    def close(self) -> None:
        self._held.close()


def _named(client: bytes) -> str:
    return host_id(client).hex()[:32]

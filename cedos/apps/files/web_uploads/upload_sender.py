"""Sends a whole upload to its origin: a PUT, repeated until the origin has answered."""

import asyncio
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

import aiohttp
from aiohttp import hdrs
from yarl import URL

from cedos.apps.files.messages import HEADER_NAME, MOST_ANSWER_BYTES, WebAnswer
from cedos.apps.files.objects.object_fetcher import object_url
from cedos.apps.files.objects.origin_client import OriginClient, words
from cedos.apps.files.web_uploads.upload_store import UploadRecord
from cedos.errors import TransferError
from cedos.web import AGENT, AnswerHead

_ANSWER_S: Final = 600.0
_AGAIN_S: Final = (1.0, 2.0, 5.0, 10.0, 30.0)
_MOST_REDIRECTS: Final = 5
_MOST_HEADERS: Final = 8_192
_MOST_REASON: Final = 200


class UploadSender:
    """A sender of whole uploads to their origins."""

    def __init__(self, origins: OriginClient, pauses_s: tuple[float, ...] = _AGAIN_S) -> None:
        self._origins, self._pauses_s = origins, pauses_s

    async def close(self) -> None:
        await self._origins.close()

    async def ask(
        self,
        url: URL,
        headers: list[tuple[str, str]],
        body: Any,
        size: int,
        client: str = "",
    ) -> aiohttp.ClientResponse:
        """Return the origin's answer. Errors: aiohttp.ClientError, OSError, TimeoutError."""
        taken = [each for each in headers if each[0].lower() not in ("content-length", "host")]
        length = (hdrs.CONTENT_LENGTH, str(size))
        return await self._origins.ask(
            hdrs.METH_PUT, url, [*taken, length], silence_s=_ANSWER_S, data=body, asker=client
        )

    async def send(self, record: UploadRecord, path: Path, client: str = "") -> WebAnswer:
        """Send an upload, return its result. TransferError."""
        url, failures, redirects = object_url(record.url), 0, 0
        headers = [*record.headers, (hdrs.VIA, "1.1 cedos")]
        if not any(name.lower() == "user-agent" for name, _ in headers):
            headers.append((hdrs.USER_AGENT, AGENT))
        while True:
            try:
                body = path.open("rb")  # aiohttp closes a body that it has sent
            except OSError as error:
                return failed(f"the gateway has lost it: {error.strerror}")
            try:
                with body:
                    async with await self.ask(url, headers, body, record.size, client) as answer:
                        if (to := _further(url, answer)) is None or redirects >= _MOST_REDIRECTS:
                            return await _as_told(answer)
                        url, redirects = to, redirects + 1
                        continue
            except (aiohttp.ClientError, OSError, TimeoutError) as error:
                why = words(error)
            if failures >= len(self._pauses_s):
                return failed(f"{url.host} cannot be asked: {why}")
            await asyncio.sleep(self._pauses_s[failures])
            failures += 1


def failed(why: str) -> WebAnswer:
    return WebAnswer(problem=why[:1000], at_unix_s=time.time())


def _further(url: URL, answer: aiohttp.ClientResponse) -> URL | None:
    """Return the place of a redirect, if it is the same origin, or the same host by TLS."""
    try:
        there = AnswerHead.of(url, answer).redirect() if answer.status in (307, 308) else None
        there = None if there is None else object_url(str(there))
    except TransferError:
        return None
    if there is None:
        return None
    safer = (url.scheme, there.scheme) == ("http", "https") and there.host == url.host
    return there if safer or there.origin() == url.origin() else None


async def _as_told(answer: aiohttp.ClientResponse) -> WebAnswer:
    body, whole = b"", True
    try:
        while len(body) <= MOST_ANSWER_BYTES and (block := await answer.content.readany()):
            body += block
    except (aiohttp.ClientError, OSError, TimeoutError):
        whole = False  # its head says what became of the upload
    return WebAnswer(
        answer.status, _text((answer.reason or "").encode("utf-8", "replace"))[:_MOST_REASON],
        _some(answer.raw_headers), body[:MOST_ANSWER_BYTES],
        not whole or len(body) > MOST_ANSWER_BYTES, at_unix_s=time.time(),
    )  # fmt: skip


def _some(raw: Iterable[tuple[bytes, bytes]]) -> list[tuple[str, str]]:
    """Return as many fields as a message has room for."""
    found: list[tuple[str, str]] = []
    room = _MOST_HEADERS
    for name, value in raw:
        room -= len(name) + len(value)
        if room < 0 or len(found) >= 256:
            break
        if HEADER_NAME.fullmatch(name.decode("latin-1")):
            found.append((_text(name), _text(value)))
    return found


def _text(raw: bytes) -> str:
    return "".join(
        each if each >= " " and each != "\x7f" else "?" for each in raw.decode("latin-1")
    )

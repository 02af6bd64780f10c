"""A program's GET that goes on over the next session if its own is lost.

If a session is lost, so are its streams. But the proxy knows the GET, and how much of the answer the
program has. With `Range` and `If-Range` (RFC 9110, 13.1.5) the origin sends the rest of the very same
bytes, or says that they have changed.
"""

import asyncio
import re
import socket
from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import timedelta
from email.utils import parsedate_to_datetime
from typing import Final

import structlog

from cedos.proxy.http import LONGEST_HEAD, forwarded
from cedos.proxy.splice import TunnelBytes
from cedos.proxy.streams.carry import Carry, waiting_head
from cedos.proxy.streams.stream import Chunk, ProxiedStream, SessionLostError

_PAUSES_S: Final = (0.0, 0.5, 2.0, 5.0)
_ANSWER_S: Final = 30.0
_HEAD_END: Final = b"\r\n\r\n"
_STATUS: Final = re.compile(rb"HTTP/1\.[01] ([1-5][0-9]{2})(?: [^\r\n]*)?")
_RANGE: Final = re.compile(r"bytes ([0-9]{1,15})-([0-9]{1,15})/([0-9]{1,15})")
_STRONG_TAG: Final = re.compile(r'"[\x21\x23-\x7e\x80-\xff]*"')
_CONDITIONS: Final = frozenset(
    (
        b"range",
        b"if-range",
        b"if-match",
        b"if-none-match",
        b"if-modified-since",
        b"if-unmodified-since",
    )
)
# A date of modification is a strong validator only if it lies so long before the answer (RFC 9110,
# 8.8.2.2).
_APART: Final = timedelta(seconds=60)

_log = structlog.get_logger(__name__)

_Fields = dict[str, str]


async def carry_get(
    program: socket.socket,
    stream: ProxiedStream,
    *,
    request: bytes,  # the whole head of the request
    first: bytes,  # the part of it that has not been sent yet
    # Opens another stream to the same origin; None: that failed.
    open_again: Callable[[], Awaitable[ProxiedStream | None]],
) -> TunnelBytes:
    """Carry one GET. If its session is lost, ask for the rest of the answer over the next one."""
    partial = PartialAnswer(request)
    pauses_s = iter(_PAUSES_S)
    while True:
        # Carry until the end; after progress, the pauses between attempts begin again with the shortest.
        had = partial.body_bytes
        ended = await Carry(program, stream, first=first, limit=0, on_taken=partial.on_taken).run()
        if partial.body_bytes > had:
            pauses_s = iter(_PAUSES_S)
        lost = isinstance(stream.broken, SessionLostError)
        if lost and partial.complete:
            return replace(ended, ended="complete")
        # Try until a stream brings the rest, with longer and longer pauses.
        rest: ProxiedStream | None = None
        while rest is None:
            again = partial.rest_request() if lost else None
            pause_s = next(pauses_s, None)
            if again is None or pause_s is None:
                return ended
            await asyncio.sleep(pause_s)
            rest = await _rest(partial, again, open_again)
        stream, first = rest, b""
        _log.debug("goes on over another session", at=partial.body_bytes)


async def _rest(
    partial: "PartialAnswer",
    request: bytes,
    open_again: Callable[[], Awaitable[ProxiedStream | None]],
) -> ProxiedStream | None:
    stream = await open_again()
    if stream is None:
        return None
    if stream.write(request) == len(request) and await partial.is_rest(stream):
        return stream
    stream.drop()
    return None


class PartialAnswer:
    """The answer to one GET, as far as the program has got it.

    Args:
        request: the whole head that was sent for the program.
    """

    def __init__(self, request: bytes) -> None:
        self._request = request
        self._head: bytearray | None = bytearray()
        self._fields: _Fields = {}
        self._size = -1
        self._validator = ""
        self.body_bytes = 0

    def on_taken(self, data: Chunk) -> None:
        """Note bytes that the program has taken: first the head, then the body."""
        if self._head is None:
            self.body_bytes += len(data)
            return
        self._head += data
        end = self._head.find(_HEAD_END)
        if end >= 0:
            self.body_bytes = len(self._head) - end - len(_HEAD_END)
            self._read(bytes(self._head[:end]))
            self._head = None
        elif len(self._head) > LONGEST_HEAD:
            self._head = None

    @property
    def complete(self) -> bool:
        """Tell whether the program has the whole body."""
        return self.body_bytes == self._size

    def rest_request(self) -> bytes | None:
        """Return the request for the rest; None: it could get the rest of other bytes."""
        if not self._validator or self.body_bytes > self._size:
            return None
        asked = f"Range: bytes={self.body_bytes}-\r\nIf-Range: {self._validator}"
        return self._request.removesuffix(_HEAD_END) + b"\r\n" + asked.encode("latin-1") + _HEAD_END

    async def is_rest(self, stream: ProxiedStream) -> bool:
        """Tell whether a stream brings the very rest that was asked for; remove the answer's head."""
        come = await waiting_head(stream, LONGEST_HEAD, _ANSWER_S)
        if come is None:
            return False
        head = come.partition(_HEAD_END)[0]
        status, fields = _parsed(head)
        there = _RANGE.fullmatch(fields.get("content-range", ""))
        if status != 206 or there is None or "transfer-encoding" in fields:
            return False
        first, last, size = map(int, there.groups())
        same = all(
            fields.get(each) == self._fields.get(each) for each in ("etag", "content-encoding")
        )
        if not same or (first, last, size) != (self.body_bytes, self._size - 1, self._size):
            return False
        stream.on_read(len(head) + len(_HEAD_END))
        return True

    def _read(self, head: bytes) -> None:
        # Only a complete answer (200) with a known length to a request without conditions can be resumed.
        status, self._fields = _parsed(head)
        request = forwarded(self._request.removesuffix(_HEAD_END))
        length = self._fields.get("content-length", "")
        whole = status == 200 and "transfer-encoding" not in self._fields and length.isdecimal()
        if request is None or not whole or len(length) > 15:
            return
        if request[0] == b"GET" and not any(name.lower() in _CONDITIONS for name, _ in request[2]):
            self._size, self._validator = int(length), _validator(self._fields)


def _validator(fields: _Fields) -> str:
    """Return a strong validator (RFC 9110, 8.8): a strong tag, or a date long past; "": there is none."""
    tag = fields.get("etag", "")
    if tag:
        return tag if _STRONG_TAG.fullmatch(tag) else ""
    try:
        modified, date = fields["last-modified"], fields["date"]
        apart = parsedate_to_datetime(date) - parsedate_to_datetime(modified) >= _APART
    except (KeyError, ValueError, TypeError, OverflowError):
        return ""
    return modified if apart else ""


def _parsed(head: bytes) -> tuple[int, _Fields]:
    """Return status and fields; (0, {}) if they are not clear, as with a field that comes twice."""
    first, *lines = head.split(b"\r\n")
    match = _STATUS.fullmatch(first)
    fields: _Fields = {}
    for line in lines:
        name, colon, value = line.decode("latin-1").partition(":")
        lower = name.lower()
        if not colon or (lower in fields and lower not in {"set-cookie", "via", "vary"}):
            return 0, {}
        fields[lower] = value.strip(" \t")
    return (0, {}) if match is None else (int(match[1]), fields)

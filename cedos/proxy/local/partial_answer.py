"""The answer to a program's GET as far as it has come, and how the rest of it is asked for elsewhere.

A session that is lost takes its streams along. What was asked over one of them is known here: with
`Range` and `If-Range` (RFC 9110, 13.1.5) the origin sends the rest of the very same bytes, or says that
they are others now.
"""

import asyncio
import re
from datetime import timedelta
from email.utils import parsedate_to_datetime
from typing import Final

from cedos.proxy.http import LONGEST_HEAD, forwarded
from cedos.proxy.streams.stream import Chunk, ProxiedStream

_HEAD_END: Final = b"\r\n\r\n"
_STATUS: Final = re.compile(rb"HTTP/1\.[01] ([1-5][0-9]{2})(?: [^\r\n]*)?")
_RANGE: Final = re.compile(r"bytes ([0-9]{1,15})-([0-9]{1,15})/([0-9]{1,15})")
_STRONG_TAG: Final = re.compile(r'"[\x21\x23-\x7e\x80-\xff]*"')
_OF_A_PART: Final = frozenset(
    (
        b"range",
        b"if-range",
        b"if-match",
        b"if-none-match",
        b"if-modified-since",
        b"if-unmodified-since",
    )
)
_APART: Final = timedelta(seconds=60)
_ANSWER_S: Final = 30.0

_Fields = dict[str, str]


class PartialAnswer:
    """An observer of a `Carry` of one GET.

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

    # What a carry tells

    def said(self) -> None:
        self._head, self._validator = None, ""  # it is no single GET

    def answered(self, data: Chunk) -> None:
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

    # What comes of it

    @property
    def complete(self) -> bool:
        """The program has all of it."""
        return self.body_bytes == self._size

    def rest_request(self) -> bytes | None:
        """What asks for the rest; None: nobody could tell that it is of the same."""
        if not self._validator or self.body_bytes > self._size:
            return None
        asked = f"Range: bytes={self.body_bytes}-\r\nIf-Range: {self._validator}"
        return self._request.removesuffix(_HEAD_END) + b"\r\n" + asked.encode("latin-1") + _HEAD_END

    async def is_rest(self, stream: ProxiedStream) -> bool:
        """Whether a stream, which was asked for it, brings the rest; takes its head away."""
        head = await _head(stream)
        if head is None:
            return False
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
        stream.taken(len(head) + len(_HEAD_END))
        return True

    def _read(self, head: bytes) -> None:
        status, self._fields = _parsed(head)
        request = forwarded(self._request.removesuffix(_HEAD_END))
        length = self._fields.get("content-length", "")
        whole = status == 200 and "transfer-encoding" not in self._fields and length.isdecimal()
        if request is None or not whole or len(length) > 15:
            return
        if request[0] == b"GET" and not any(name.lower() in _OF_A_PART for name, _ in request[2]):
            self._size, self._validator = int(length), _validator(self._fields)


def _validator(fields: _Fields) -> str:
    """What tells every byte (RFC 9110, 8.8): a strong tag, or a date that was past when it was told."""
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
    """Status and fields; (0, {}) where it is not clear, as where a field is there twice."""
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


async def _head(stream: ProxiedStream) -> bytes | None:
    """The head of the answer, which stays in the stream; None: there is none in time."""
    changed = asyncio.Event()
    stream.watch(changed.set)
    try:
        async with asyncio.timeout(_ANSWER_S):
            while (end := (come := b"".join(stream.waiting)).find(_HEAD_END)) < 0:
                if stream.broken is not None or stream.peer_ended or len(come) > LONGEST_HEAD:
                    return None
                changed.clear()
                await changed.wait()
            return come[:end]
    except TimeoutError:
        return None
    finally:
        stream.watch(lambda: None)

"""Where the answers on a connection of HTTP/1.1 begin and end, as they pass by. No I/O."""

import re
from collections.abc import Set as AbstractSet
from typing import Final

from cedos.proxy.local.players.chunked_body import ChunkedBody
from cedos.proxy.local.players.content_coding import unpacked
from cedos.proxy.request import LONGEST_HEAD

_STATUS = re.compile(rb"HTTP/1\.[01] ([1-5][0-9]{2})(?: [^\r\n]*)?")
_LENGTH = re.compile(rb"(?i)content-length:[ \t]*([0-9]{1,15})[ \t]*")
_HEAD_END: Final = b"\r\n\r\n"
_BODILESS: Final = frozenset((204, 304))
_SWITCHED: Final = 101
_LAST_INFORMATIVE: Final = 199


class PassingAnswer:
    """The answer to one request; `feed` all that comes after it was sent.

    `keep_bytes`: so much of the body is kept, for `body`; `keep_types`: of such content alone.
    `strange`: it is no answer of HTTP.
    """

    def __init__(
        self,
        *,
        bodiless: bool = False,
        keep_bytes: int = 0,
        keep_types: AbstractSet[bytes] | None = None,
    ) -> None:
        self._bodiless = bodiless
        self._keep_bytes = keep_bytes
        self._keep_types = keep_types
        self._head = bytearray()
        self._kept = bytearray()
        self._fields: list[bytes] | None = None
        self._left: int | None = None
        self._chunked: ChunkedBody | None = None
        self._carried_bytes = 0
        self.status = 0
        self.body_bytes = 0
        self.strange = False

    @property
    def complete(self) -> bool:
        """All of it has come, for certain."""
        if self._chunked is not None:
            return self._chunked.complete
        return self._fields is not None and self._left == 0

    @property
    def begun(self) -> bool:
        """Its head has come."""
        return self._fields is not None

    @property
    def left_bytes(self) -> int:
        """How much of its body has still to come, where it says so."""
        return self._left or 0

    def head_bytes(self, data: bytes) -> int:
        """How much of what comes next belongs to the head that it has not got to the end of."""
        before = len(self._head)
        end = (bytes(self._head) + data).find(_HEAD_END)
        return len(data) if end < 0 else end + len(_HEAD_END) - before

    @property
    def open_ended(self) -> bool:
        """It does not say how long it is."""
        if self._chunked is not None:
            return self._chunked.wrong and not self._chunked.complete
        return self._fields is not None and self._left is None

    @property
    def content_type(self) -> bytes:
        """In small letters, without parameters; empty: it does not say."""
        told = self._all(b"content-type")
        return told[-1].partition(b";")[0].strip().lower() if told else b""

    def body(self) -> bytes | None:
        """As the origin meant it, once all has come; None: it is not understood, or too long."""
        if self._fields is None or self._carried_bytes > self._keep_bytes:
            return None
        if self._chunked is not None:
            if not self._chunked.complete:
                return None
        elif self._all(b"transfer-encoding"):
            return None
        codings = self._all(b"content-encoding")
        if len(codings) > 1:
            return None
        return unpacked(b"".join(codings), bytes(self._kept), self._keep_bytes)

    def feed(self, data: bytes | memoryview) -> None:
        if self.strange or self.complete:
            self.strange = True  # nobody had asked for it
            return
        if self._fields is not None:
            self._take(data)
            return
        self._head += data
        while (end := self._head.find(_HEAD_END)) >= 0:
            rest = bytes(self._head[end + len(_HEAD_END) :])
            if self._read(bytes(self._head[:end])):
                self._head.clear()
                if rest:
                    self._take(rest)
                return
            self._head[:] = rest
        self.strange = self.strange or len(self._head) > LONGEST_HEAD

    def _all(self, name: bytes) -> list[bytes]:
        """The values of all fields with that name."""
        split = (each.partition(b":") for each in self._fields or ())
        return [value.strip() for own, _, value in split if own.strip().lower() == name]

    def _read(self, head: bytes) -> bool:
        """Whether the body follows, and not another head."""
        first, *fields = head.split(b"\r\n")
        match = _STATUS.fullmatch(first)
        status = 0 if match is None else int(match[1])
        if status in (0, _SWITCHED):
            self.strange = True
            return True
        if status <= _LAST_INFORMATIVE:
            return False
        self.status, self._fields = status, fields
        if self._keep_types is not None and self.content_type not in self._keep_types:
            self._keep_bytes = 0
        if self._bodiless or status in _BODILESS:
            self._left = 0
            return True
        lengths = {found[1] for each in fields if (found := _LENGTH.fullmatch(each))}
        codings = self._all(b"transfer-encoding")
        if len(lengths) == 1 and not codings:
            self._left = int(lengths.pop())
        # With a length beside it, or of HTTP/1.0, each reader would take it in its own way.
        clear = first.startswith(b"HTTP/1.1") and not self._all(b"content-length")
        if clear and [each.lower() for each in codings] == [b"chunked"]:
            self._chunked = ChunkedBody()
        return True

    def _take(self, data: bytes | memoryview) -> None:
        count = len(data)
        self.body_bytes += count
        if self.strange:
            return
        if self._chunked is not None:
            for part in self._chunked.payload(data):
                self._keep(part)
            self.strange = self._chunked.complete and self._chunked.wrong
            return
        if self._left is not None:
            if count > self._left:
                self.strange = True
                return
            self._left -= count
        self._keep(data)

    def _keep(self, data: bytes | memoryview) -> None:
        self._carried_bytes += len(data)
        if self._carried_bytes <= self._keep_bytes:
            self._kept += data
        else:
            self._kept.clear()

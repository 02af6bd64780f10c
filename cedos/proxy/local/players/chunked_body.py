"""A body in chunks (RFC 9112, 7.1) as it passes by: what it carries, and where it ends. No I/O."""

import re
from collections.abc import Iterator
from typing import Final

from cedos.proxy.request import LONGEST_HEAD

_SIZE: Final = re.compile(rb"([0-9A-Fa-f]{1,15})[ \t]*(?:;[^\r\n]*)?")
_TRAILER: Final = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+:[^\r\n]*")
_LONGEST_LINE: Final = 4_096
_MOST_SMALL: Final = 1 << 14
_SMALL_BYTES: Final = 1 << 10
_LINE_END: Final = b"\r\n"


class ChunkedBody:
    """`payload` takes what passes by, all of it in order.

    Attributes:
        complete: the last of it has come.
        wrong: it is none, or more came behind its end, or it is in so many small chunks that to listen
            costs more than it is worth; where it ends is not known then.
    """

    def __init__(self) -> None:
        self.complete = False
        self.wrong = False
        self._line = b""
        self._left = 0
        self._ends_chunk = False
        self._in_trailers = False
        self._trailer_bytes = 0
        self._chunks = 0
        self._carried_bytes = 0

    def payload(self, data: bytes | memoryview) -> Iterator[bytes]:
        """The parts of what is carried; it has to be read to its end."""
        data = self._line + bytes(data)
        self._line = b""
        at = 0
        while at < len(data) and not self.wrong:
            if self._left:
                part = data[at : at + self._left]
                at += len(part)
                self._left -= len(part)
                self._ends_chunk = not self._left
                yield part
                continue
            end = data.find(_LINE_END, at, at + _LONGEST_LINE)
            if end < 0:
                self._line = data[at:]
                self.wrong = self.complete or len(self._line) >= _LONGEST_LINE
                return
            self._read(data[at:end])
            at = end + len(_LINE_END)

    def _read(self, line: bytes) -> None:
        if self.complete:
            self.wrong = True
        elif self._ends_chunk:
            self.wrong, self._ends_chunk = line != b"", False
        elif not self._in_trailers:
            self._begin(line)
        elif line:
            self._trailer_bytes += len(line)
            self.wrong = not _TRAILER.fullmatch(line) or self._trailer_bytes > LONGEST_HEAD
        else:
            self.complete = True

    def _begin(self, line: bytes) -> None:
        """A chunk; without a size it is the last."""
        match = _SIZE.fullmatch(line)
        if match is None:
            self.wrong = True
            return
        self._left = int(match[1], 16)
        self._in_trailers = not self._left
        self._chunks += 1
        self._carried_bytes += self._left
        self.wrong = self._chunks > _MOST_SMALL + self._carried_bytes // _SMALL_BYTES

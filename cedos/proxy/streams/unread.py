"""What waits in a process for programs or servers that do not read, bounded in all and for each client.

A stream's window bounds what waits of that stream; who opens thousands of them, towards servers that
never read, would have the process hold thousands of windows. Beyond a limit the fullest stream of whoever
holds too much breaks; those of others do not notice.
"""

from collections.abc import Hashable
from typing import Final, Protocol, Self
from weakref import WeakValueDictionary

import structlog

CHUNK_BYTES: Final = 384
"""What each piece costs beside its bytes: thousands of one byte each count for what they take."""

MOST_BYTES: Final = 1 << 30
MOST_OF_ONE_BYTES: Final = 1 << 28

_log = structlog.get_logger(__name__)


class Fillable(Protocol):
    """Something for which bytes wait."""

    def drop(self) -> None:
        """Breaks, and gives up what waits (`Share.waits`)."""


class Unread:
    """`most_bytes` of all, `most_of_one_bytes` of each client."""

    def __init__(
        self, most_bytes: int = MOST_BYTES, most_of_one_bytes: int = MOST_OF_ONE_BYTES
    ) -> None:
        self.total_bytes = 0
        self._most_bytes = most_bytes
        self._most_of_one_bytes = most_of_one_bytes
        self._shares: WeakValueDictionary[Hashable, Share] = WeakValueDictionary()

    @classmethod
    def within(cls, bytes_: int) -> Self:
        """Of a process that has no more than this for it."""
        return cls(min(bytes_, MOST_BYTES), min(bytes_ // 2, MOST_OF_ONE_BYTES))

    def share(self, whose: Hashable) -> "Share":
        """A client's: all its sessions have the same one."""
        found = self._shares.get(whose)
        if found is None:
            found = self._shares[whose] = Share(self)
        return found

    def grew(self, share: "Share", more_bytes: int) -> None:
        self.total_bytes += more_bytes
        if share.total_bytes > self._most_of_one_bytes:
            share.drop_fullest()
        elif self.total_bytes > self._most_bytes:
            max(self._shares.values(), key=lambda each: each.total_bytes).drop_fullest()


class Share:
    """One client's streams."""

    def __init__(self, all_: Unread) -> None:
        self.total_bytes = 0
        self._all = all_
        self._bytes: dict[Fillable, int] = {}

    def waits(self, stream: Fillable, bytes_: int) -> None:
        """So much waits of a stream from now on."""
        more = bytes_ - self._bytes.get(stream, 0)
        if not more:
            return
        if bytes_:
            self._bytes[stream] = bytes_
        else:
            del self._bytes[stream]
        self.total_bytes += more
        self._all.grew(self, more)

    def drop_fullest(self) -> None:
        stream = max(self._bytes, key=self._bytes.__getitem__)
        _log.warning(
            "a client holds too much of what nobody reads: its fullest connection breaks",
            unread_bytes=self.total_bytes,
        )
        stream.drop()

"""Bytes that wait for programs or servers which do not read: their limits, and how long they last.

A stream's window bounds what waits of that stream. A client that opens thousands of streams to servers
that never read would have the process hold thousands of windows. Beyond a limit the fullest stream breaks
of those of the client, and of its users the one, that holds most; streams of others do not notice.
"""

from collections import Counter, deque
from collections.abc import Hashable
from typing import Final, Protocol, Self
from weakref import WeakValueDictionary

import structlog

# The memory of each piece beside its bytes. Without it thousands of one-byte pieces would count
# for nothing.
CHUNK_BYTES: Final = 384

MOST_BYTES: Final = 1 << 30
MOST_OF_ONE_BYTES: Final = 1 << 28

_log = structlog.get_logger(__name__)


class Fillable(Protocol):
    """A stream, or a session, for which bytes wait; `user`: whose it is, of the client's users."""

    user: int

    def drop(self) -> None:
        """Break, and give up the bytes that wait (`Share.waits`)."""


class Unread:
    """The limits: `most_bytes` of all clients, `most_of_one_bytes` of each."""

    def __init__(
        self, most_bytes: int = MOST_BYTES, most_of_one_bytes: int = MOST_OF_ONE_BYTES
    ) -> None:
        self.total_bytes = 0
        self._breaking = False
        self._most_bytes = most_bytes
        self._most_of_one_bytes = most_of_one_bytes
        self._shares: WeakValueDictionary[Hashable, Share] = WeakValueDictionary()

    @classmethod
    def within(cls, bytes_: int) -> Self:
        """Return limits for a process that has no more memory than this for unread bytes."""
        return cls(min(bytes_, MOST_BYTES), min(bytes_ // 2, MOST_OF_ONE_BYTES))

    def share(self, whose: Hashable) -> "Share":
        """Return a client's share; all its sessions have the same one."""
        found = self._shares.get(whose)
        if found is None:
            found = self._shares[whose] = Share(self)
        return found

    def grew(self, share: "Share", more_bytes: int) -> None:
        self.total_bytes += more_bytes
        if self._breaking:
            return  # this is what a stream says as it breaks
        self._breaking = True
        try:
            while (fullest := self._beyond(share)) is not None:
                before = self.total_bytes
                fullest.drop_fullest()
                if self.total_bytes >= before:
                    break
        finally:
            self._breaking = False

    def _beyond(self, share: "Share") -> "Share | None":
        """Return the share that has to give something up; None: all is within the limits."""
        if share.total_bytes > self._most_of_one_bytes:
            return share
        if self.total_bytes > self._most_bytes:
            return max(self._shares.values(), key=lambda each: each.total_bytes)
        return None


class Share:
    """The bytes that wait of one client's streams."""

    def __init__(self, all_: Unread) -> None:
        self.total_bytes = 0
        self._all = all_
        self._bytes: dict[Fillable, int] = {}

    def __del__(self) -> None:
        self._all.total_bytes -= self.total_bytes  # what has gone with its client holds nothing

    def waits(self, stream: Fillable, bytes_: int) -> None:
        """Note how many bytes of a stream wait now."""
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
        of_users: Counter[int] = Counter()
        for each, bytes_ in self._bytes.items():
            of_users[each.user] += bytes_
        stream = max(self._bytes, key=lambda each: (of_users[each.user], self._bytes[each]))
        _log.warning(
            "too many bytes are unread: the fullest connection breaks",
            unread_bytes=self.total_bytes,
        )
        stream.drop()


# The most bytes that wait for a program that reads at once.
ENOUGH_BYTES: Final = 256_000

# A stream with fewer bytes in this time (a conversation) does not keep large data waiting.
_COMES_BYTES, _COMES_S = 32_000, 2.0

_EVERY_S: Final = 0.5
_OVER_S: Final = 10.0
_LEAST_S: Final = 1.0
_MOST_S: Final = 60.0
# After a gap of this length between looks the pace is measured anew.
_FORGOTTEN_S: Final = 5.0


class Reading:
    """The pace of one stream's program over the last ten seconds, from a look now and then."""

    def __init__(self) -> None:
        self._looks: deque[tuple[float, int, int]] = deque()

    def lasts_s(self, now_s: float, received: int, read: int) -> float | None:
        """Return how long the unread bytes last, s; None: hardly anything comes or waits.

        Args:
            received, read: bytes so far, of which the program took those read.
        """
        looks = self._looks
        if looks and now_s - looks[-1][0] > _FORGOTTEN_S:
            looks.clear()
        if not looks or now_s - looks[-1][0] >= _EVERY_S:
            looks.append((now_s, received, read))
        while len(looks) > 1 and looks[1][0] <= now_s - _OVER_S:
            looks.popleft()
        # Little waits: the program reads at once, or hardly anything comes.
        waits = received - read
        if waits < ENOUGH_BYTES:
            before = next((came for at_s, came, _ in looks if at_s >= now_s - _COMES_S), received)
            return 0.0 if received - before >= _COMES_BYTES else None
        # Much waits: it lasts by the pace since the first look.
        first_s, _, before = looks[0]
        if now_s - first_s < _LEAST_S:
            return 0.0
        if read <= before:
            return _MOST_S
        return min(waits * (now_s - first_s) / (read - before), _MOST_S)

"""Bytes that wait for programs or servers which do not read: their limits, and how long they last.

A stream's window bounds what waits of that stream. A client that opens thousands of streams to servers
that never read would have the process hold thousands of windows. Beyond a limit the fullest stream
breaks, of the user who holds most, of the client whose streams hold most; streams of others do not
notice. What sessions hold themselves has half of each limit, and a session ends for that alone.
"""

from collections import deque
from collections.abc import Callable, Hashable
from typing import Final, Protocol, Self
from weakref import WeakValueDictionary

from cedos.logs import get_logger

# The memory of each piece beside its bytes. Without it thousands of one-byte pieces would count
# for nothing.
CHUNK_BYTES: Final = 384

MOST_BYTES: Final = 1 << 30
MOST_OF_ONE_BYTES: Final = 1 << 28

_log = get_logger(__name__)


class Fillable(Protocol):
    """A stream, or a session, for which bytes wait."""

    def drop(self) -> None:
        """Break, and give up the bytes that wait (`Share.waits`)."""


class Unread:
    """The limits: `most_bytes` of all clients, `most_of_one_bytes` of each."""

    def __init__(
        self, most_bytes: int = MOST_BYTES, most_of_one_bytes: int = MOST_OF_ONE_BYTES
    ) -> None:
        self.total_bytes = self.sessions_bytes = 0
        self._most_bytes = most_bytes
        self._most_of_one_bytes = most_of_one_bytes
        self._breaking = False
        self._clients: WeakValueDictionary[Hashable, UnreadOfClient] = WeakValueDictionary()

    @classmethod
    def within_memory(cls, bytes_: int) -> Self:
        """Return limits for a process that has no more memory than this for unread bytes."""
        return cls(min(bytes_, MOST_BYTES), min(bytes_ // 2, MOST_OF_ONE_BYTES))

    def client(self, whose: Hashable) -> "UnreadOfClient":
        """Return what waits of a client; all its sessions have the same."""
        found = self._clients.get(whose)
        if found is None:
            found = self._clients[whose] = UnreadOfClient(self)
        return found

    def keep_limits(self, client: "UnreadOfClient") -> None:
        """Break what is too much, after more of a client waits."""
        if self._breaking:
            return  # what tells of a break waits, too: the call that broke it looks again
        self._breaking = True
        try:
            while (drop := self._next_to_free(client)) is not None:
                drop()
        finally:
            self._breaking = False

    def _next_to_free(self, client: "UnreadOfClient") -> Callable[[], None] | None:
        """Return what frees something beyond a limit; None: all limits are kept."""
        clients = self._clients.values()
        if client.sessions_bytes > self._most_of_one_bytes // 2:
            return client.drop_session
        if self.sessions_bytes > self._most_bytes // 2:
            return max(clients, key=lambda each: each.sessions_bytes).drop_session
        if client.total_bytes > self._most_of_one_bytes:
            return client.drop_stream
        if self.total_bytes > self._most_bytes:
            return max(clients, key=lambda each: each.streams_bytes).drop_stream
        return None


class UnreadOfClient:
    """The account of what waits of one client: of each user's streams, and of its sessions themselves."""

    def __init__(self, all_: Unread) -> None:
        self.total_bytes = self.sessions_bytes = 0
        self._all = all_
        # By the user's number; None: of the sessions.
        self._shares: WeakValueDictionary[int | None, Share] = WeakValueDictionary()

    @property
    def streams_bytes(self) -> int:
        return self.total_bytes - self.sessions_bytes

    def share(self, user: int | None = 0) -> "Share":
        """Return the share of a user's streams, or (None) of the sessions."""
        found = self._shares.get(user)
        if found is None:
            found = self._shares[user] = Share(self, of_sessions=user is None)
        return found

    def add(self, more_bytes: int, *, of_sessions: bool) -> None:
        self.total_bytes += more_bytes
        self._all.total_bytes += more_bytes
        if of_sessions:
            self.sessions_bytes += more_bytes
            self._all.sessions_bytes += more_bytes

    def keep_limits(self) -> None:
        self._all.keep_limits(self)

    def drop_session(self) -> None:
        """End the session that holds most itself."""
        self.share(None).drop_fullest()

    def drop_stream(self) -> None:
        """Break the fullest stream of the user who holds most."""
        _log.warning(
            "too many bytes are unread: the fullest connection breaks",
            unread_bytes=self.total_bytes,
        )
        users = [share for user, share in self._shares.items() if user is not None]
        max(users, key=lambda each: each.total_bytes).drop_fullest()


class Share:
    """The bytes that wait of the streams of a client's user, or of a client's sessions."""

    def __init__(self, client: UnreadOfClient, *, of_sessions: bool) -> None:
        self.total_bytes = 0
        self._client, self._of_sessions = client, of_sessions
        self._bytes: dict[Fillable, int] = {}

    def __del__(self) -> None:
        # What has gone with its client holds nothing.
        self._client.add(-self.total_bytes, of_sessions=self._of_sessions)

    def waits(self, one: Fillable, bytes_: int) -> None:
        """Note how many bytes of a stream, or a session, wait now."""
        more = bytes_ - self._bytes.get(one, 0)
        if not more:
            return
        if bytes_:
            self._bytes[one] = bytes_
        else:
            del self._bytes[one]
        self.total_bytes += more
        self._client.add(more, of_sessions=self._of_sessions)
        if more > 0:
            self._client.keep_limits()

    def drop_fullest(self) -> None:
        max(self._bytes, key=self._bytes.__getitem__).drop()


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

"""What a session tells whoever drives it; everything frequent is asked for instead (`readable_bytes`)."""

from typing import TypeAlias

from msgspec import Struct


class Writable(Struct, frozen=True):
    """There is room again after something was not taken."""


class ThunkReady(Struct, frozen=True):
    """The label of a deferred send has an appropriate network now (dissertation, 2.2.5)."""

    token: int
    rank: int


class KeepAliveAgreed(Struct, frozen=True):
    """How long the session outlives its last path from now on."""

    seconds: int


class PeerWishes(Struct, frozen=True):
    """The peer expects so many bytes until then (0 and infinity: it did not say)."""

    expected_bytes: int
    deadline_at_s: float


class Ponged(Struct, frozen=True):
    """The answer to a ping, `round_trip_s` after it was put into a record."""

    path_id: int
    token: int
    round_trip_s: float


class Probed(Struct, frozen=True):
    """What a path without traffic carries; `at_least`: that much, and maybe far more.

    The round trip is that of a short Ping, from when it was put into a record.
    """

    path_id: int
    rate_bps: float
    round_trip_s: float
    at_least: bool


class PeerClosed(Struct, frozen=True):
    """The peer has closed and all it ever sent is here, though not all may have been read yet."""


class Finished(Struct, frozen=True):
    """Both ends have closed and know that the other one has everything: sockets can be drained."""


class Failed(Struct, frozen=True):
    """The session has ended before its time.

    `acknowledged_bytes` of the stream and all IROBs below `acknowledged_irob` had reached the peer for
    certain; what was sent beyond may or may not have.
    """

    why: str
    by_peer: bool
    acknowledged_bytes: int
    acknowledged_irob: int


Event: TypeAlias = (
    Writable
    | ThunkReady
    | KeepAliveAgreed
    | PeerWishes
    | Ponged
    | Probed
    | PeerClosed
    | Finished
    | Failed
)

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
    """What a path without traffic carries (`at_least`: maybe far more), and a short Ping's round trip."""

    path_id: int
    rate_bps: float
    round_trip_s: float
    at_least: bool


class PeerClosed(Struct, frozen=True):
    """All that the peer ever sent is here, though not all may have been read yet."""


class Finished(Struct, frozen=True):
    """Both ends know that the other one has everything: sockets can be drained."""


class Failed(Struct, frozen=True):
    """What was acknowledged has reached the peer for certain; what was sent beyond, perhaps."""

    why: str
    by_peer: bool
    acknowledged_bytes: int


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

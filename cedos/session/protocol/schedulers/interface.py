"""The interface of a path scheduler: one choice, asked when a path has room.

The session asks which label's bytes go there, how many, and how far behind the head of that label's
queue they begin: enough to map labels to paths (IntNW, dissertation 2.3.2), stripe, send twice, or
plan ahead (SWTC leaves the next bytes to a faster path and gives this one bytes that are needed
later).
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Final, NamedTuple, Protocol

from cedos.errors import ConfigError
from cedos.model import Bulk, Label, NetworkKind, Urgency

# The labels in sending order. The index is the number on the wire.
LABELS: Final = (
    Label(Urgency.FOREGROUND, Bulk.SMALL),
    Label(Urgency.FOREGROUND, Bulk.LARGE),
    Label(Urgency.BACKGROUND, Bulk.SMALL),
    Label(Urgency.BACKGROUND, Bulk.LARGE),
)

# Label -> index in `LABELS`.
RANK: Final = {label: rank for rank, label in enumerate(LABELS)}


def rank_of(label: Label) -> int:
    """Return the rank of a label. ConfigError: it is no label; a program may pass anything."""
    # No look-up first: what is handed in need not be hashable.
    if not isinstance(label, Label):
        raise ConfigError(
            f"{label!r} is not a label; one such as Label(Urgency.BACKGROUND, Bulk.LARGE), of"
            " cedos.model, would be right"
        )
    return RANK[label]


FOREGROUND_RANKS: Final = (0, 1)
BULK_RANKS: Final = (1,)
BACKGROUND_RANKS: Final = (2, 3)
# More foreground data are expected for this time after the last (IntNW says "recently", without a
# number). A person who clicks and reads returns within seconds.
RECENT_S: Final = 5.0
# The bit mask of ranks that allows every label.
ALL_RANKS: Final = 0b1111


@dataclass(slots=True)
class PathFacts:
    """The driver's measurements of a path's TCP connection; None: nothing yet.

    `rtt_variation_s` is the mean deviation of the round trip. `unsent_bytes` wait in this host's
    kernel, `under_way_bytes` are sent and not acknowledged by the peer's. `window_bytes` is the
    congestion window, which doubles in `slow_start`. `rate_bps` goes towards the peer and was last
    measured well at `rate_at_s`. `foreground_at_s`: when any program of this host last sent
    foreground data over the network. Since `stalled_at_s` nothing sent there is acknowledged (None:
    the path is alive). `pauses`: it gets no new data, for a short silence or because it crawls.
    `crawls`: another path would deliver its data in a fraction of the time. `flaps`: it came back lately
    and has often gone before. `source`: the IPv4 address, as a number, that leads by a helper; else 0.
    `leaving`: the helper has said that it will soon be gone.
    """

    network: str = ""
    kind: NetworkKind = NetworkKind.ETHERNET
    metered: bool = False
    rtt_s: float | None = None
    rtt_min_s: float | None = None
    rtt_variation_s: float = 0.0
    rate_bps: float | None = None
    rate_at_s: float | None = None
    loss: float = 0.0
    window_bytes: int | None = None
    slow_start: bool = False
    unsent_bytes: int = 0
    under_way_bytes: int = 0
    foreground_at_s: float = float("-inf")
    measured_at_s: float = 0.0
    stalled_at_s: float | None = None
    pauses: bool = False
    crawls: bool = False
    flaps: bool = False
    source: int = 0
    leaving: bool = False

    @property
    def doubt(self) -> "PathDoubt":
        if self.stalled_at_s is not None:
            return PathDoubt.STALLED
        if self.flaps:
            return PathDoubt.FLAPS
        if self.crawls:
            return PathDoubt.CRAWLS
        return PathDoubt.PAUSES if self.pauses else PathDoubt.NONE


class PathDoubt(IntEnum):
    """A degree of doubt about a path."""

    NONE = 0
    PAUSES = 1
    CRAWLS = 2
    FLAPS = 3
    STALLED = 4


@dataclass(slots=True, eq=False)
class PathState:
    """A TCP connection to the peer over one network, as a scheduler sees it.

    `in_flight_bytes` the peer's session has not acknowledged; `peer` is what the other end says of this
    path; `allowed` is the mask of ranks that both ends let onto it.
    """

    path_id: int
    facts: PathFacts
    up_at_s: float
    in_flight_bytes: int = 0
    sent_bytes: int = 0
    last_sent_at_s: float = 0.0
    peer: PathFacts | None = None
    allowed: int = ALL_RANKS


@dataclass(slots=True)
class Backlog:
    """Waiting data, by rank of label.

    `waiting_bytes` may be sent now, within the peer's window. `copyable_bytes` are in flight on other
    paths only (set for schedulers with `copies`). `foreground_at_s`: when foreground data was last
    sent by the application, `small_at_s`: small foreground data.
    """

    waiting_bytes: list[int] = field(default_factory=lambda: [0, 0, 0, 0])
    copyable_bytes: list[int] = field(default_factory=lambda: [0, 0, 0, 0])
    foreground_at_s: float = float("-inf")
    small_at_s: float = float("-inf")


class SendGrant(NamedTuple):
    """Up to `limit_bytes` of the queue of `rank`, behind `skip_bytes` that are left for another path.

    With `copy` the bytes are those in flight on other paths, oldest first (`skip_bytes` is 0 then).
    """

    rank: int
    limit_bytes: int
    skip_bytes: int = 0
    copy: bool = False


class Scheduler(Protocol):
    """A path scheduler: which bytes go on which path. Pure; it may keep state of its own.

    `copies`: it wants `Backlog.copyable_bytes` (redundancy), which cost a little per record.
    `prompt`: with one path that its label may use, foreground data without a backlog may be sent
    without a question.
    """

    name: str
    copies: bool
    prompt: bool = False

    def choose(
        self,
        path: PathState,
        paths: Sequence[PathState],
        backlog: Backlog,
        room_bytes: int,
        now: float,
    ) -> SendGrant | None:
        """Return what to send on `path`, which has room; None or an impossible grant: nothing now.

        The session asks again until then, or until the record is full.
        """
        ...

    def next_check_s(self, paths: Sequence[PathState], now: float) -> float | None:
        """Return the seconds after which `choose` may change without news, or None."""
        ...


UNKNOWN_RTT_S: Final = 0.1
UNKNOWN_RATE_BPS: Final = 1e6
# Large data is cut into pieces of this size where it is spread over paths.
CHUNK_BYTES: Final = 16_384

_AHEAD_S: Final = 0.1  # docs/decisions/streams.md
_UNMEASURED_BPS: Final = 8e6  # too little would keep it from being measured
# A round trip this many times the minimum has a queue in it.
_QUEUED: Final = 1.25

_LEAST_AHEAD_BYTES: Final = 4 * CHUNK_BYTES


def rtt_s(path: PathState) -> float:
    """Return the round trip; an unmeasured path counts as slow, but not hopeless."""
    return path.facts.rtt_s if path.facts.rtt_s is not None else UNKNOWN_RTT_S


def rate_bps(path: PathState) -> float:
    """Return the rate of a path; never zero.

    In slow start the rate is that of a round trip ago: a path that is planned by it gets too little
    ever to show more. The kernel would send its window (docs/decisions/early-sizes.md).
    """
    facts = path.facts
    known = UNKNOWN_RATE_BPS if facts.rate_bps is None else facts.rate_bps
    if facts.slow_start:
        known = max(known, _window_bps(path))
    return known if known > 1e3 else 1e3


def _window_bps(path: PathState) -> float:
    """Return what a path in slow start would send; 0 for others, and once its queue fills."""
    facts = path.facts
    if not facts.slow_start or not facts.window_bytes or not facts.rtt_s:
        return 0.0
    if facts.rtt_min_s is not None and facts.rtt_s > _QUEUED * facts.rtt_min_s:
        return 0.0
    return 8 * facts.window_bytes / facts.rtt_s


def queue_s(path: PathState) -> float:
    """Return the seconds that this host's kernel needs for its unsent bytes."""
    return 8 * path.facts.unsent_bytes / rate_bps(path)


def latency_s(path: PathState) -> float:
    return rtt_s(path) + queue_s(path)


def allowed_paths(paths: Sequence[PathState], rank: int) -> list[PathState]:
    """Return the least doubtful of the paths that both ends let a label use.

    Where all of them flap or are stalled, another path that is relied on more is used; small foreground
    data, which costs little, leaves paths that crawl as well. A label that may use no path gets none.
    """
    may = [path for path in paths if path.allowed >> rank & 1]
    if len(paths) < 2 or not may:
        return may
    for path in may:
        facts = path.facts
        if facts.pauses or facts.flaps or facts.stalled_at_s is not None:
            break
    else:
        return may  # the usual case, which is asked for each record
    # A path is in doubt. If all paths of the label flap or are stalled, a path that is not meant for it
    # is better than none; else use its least doubtful ones.
    doubt = min(path.facts.doubt for path in may)
    if doubt >= (PathDoubt.CRAWLS if rank == 0 else PathDoubt.FLAPS):
        least = min(path.facts.doubt for path in paths)
        if least < doubt:
            return [path for path in paths if path.facts.doubt is least]
    return [path for path in may if path.facts.doubt is doubt]


def quickest(paths: Sequence[PathState]) -> PathState:
    """Return the path of the lowest latency; the older one of equals."""
    return min(paths, key=lambda path: (latency_s(path), path.path_id))


def widest(paths: Sequence[PathState]) -> PathState:
    """Return the path of the highest rate; the one with the shorter round trip of equals."""
    return min(paths, key=lambda path: (-rate_bps(path), rtt_s(path), path.path_id))


def ahead_bytes(paths: Sequence[PathState], rank: int) -> int:
    """Return how much of a label has to wait so that neither paths nor plans run dry."""
    rates = (
        max(each.facts.rate_bps or _UNMEASURED_BPS, _window_bps(each))
        for each in allowed_paths(paths, rank)
    )
    return max(_LEAST_AHEAD_BYTES, int(sum(rates) / 8 * _AHEAD_S))

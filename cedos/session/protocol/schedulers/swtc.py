"""SWTC, scheduled window-based transmission control (CBSP, "Packet Scheduler", equation 2).

Each piece of data goes where its acknowledgement is expected first:

    E_i = r_i * (1 / (1 - p_i)^2 - 1 / (1 - p_i) + 1) + w_i + q_i,   w_i = m_i + n_i

with the round trip r, the loss p, the queueing delay q of the path, the time m until what is scheduled
before it has left this host, and the time n until the window opens. The paper assigns a packet the
moment it is ready; here a path asks for data when it has room, so the pieces that wait are planned ahead:
those which another path, though busy, acknowledges sooner are left to it, and this path gets what comes
behind them. Both give each path the same pieces, in an order in which they arrive in sequence. So no
piece is bound to a path before it is sent. When a path joins, nothing has to be scheduled again; when
one leaves, the session puts what it carried back at the head of the queue (the paper's rescheduling).

The round trip that TCP measures contains the queue: r is the shortest one, q what the measured one
exceeds it by, but no more than what is in flight takes at the path's rate (docs/decisions/schedulers.md).
TCP's report gives rate and loss (`PathFacts`); the paper's filter, TCP Westwood's, is in
`emu.simulator.stream`.
"""

from collections import defaultdict, deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import ceil, floor
from typing import Final

from cedos.session.protocol.schedulers.interface import (
    CHUNK_BYTES,
    LABELS,
    Backlog,
    PathState,
    SendGrant,
    allowed_paths,
    latency_s,
    rate_bps,
    rtt_s,
)

# The payload of a packet.
PACKET_BYTES: Final = 1448
# A plan further ahead than this would be out of date before its end.
_HORIZON_PIECES: Final = 64
_CHECK_S: Final = 0.010
# What a path of unknown rate gets beyond its window: TCP measures a rate where it has more to send.
_BEHIND_BYTES: Final = 4 * PACKET_BYTES


def expected_s(round_trip_s: float, loss: float, waiting_s: float, queueing_s: float) -> float:
    """Return the seconds until the acknowledgement: equation 2."""
    arrives = 1.0 - loss if loss < 0.99 else 0.01
    # With a = 1 - p, 1 / a^2 - 1 / a + 1 is 1 + p / a^2.
    return round_trip_s * (1 + (1 - arrives) / arrives**2) + waiting_s + queueing_s


def _first_bytes(path: PathState) -> int:
    """Return how much more a path of unknown rate may get: little beyond the window.

    The path may be ten times slower than is thought. What waits behind its window is then late.
    """
    window = path.facts.window_bytes
    return (CHUNK_BYTES if window is None else window) + _BEHIND_BYTES - path.in_flight_bytes


@dataclass(slots=True)
class Schedule:
    """The pieces given to one path: `outstanding` holds (expected at s, bytes), oldest first."""

    outstanding: deque[tuple[float, int]] = field(default_factory=deque)
    known_bytes: int = 0

    def opens_in_s(self, window_bytes: int, in_flight_bytes: int, now: float) -> float:
        """Return the waiting time n: until acknowledgements open the window."""
        self.forget(in_flight_bytes)
        excess = in_flight_bytes - window_bytes
        if excess < 0:
            return 0.0
        for expected_at_s, size in self.outstanding:
            excess -= size
            if excess < 0:
                return max(0.0, expected_at_s - now)
        return 0.0  # nothing is known of what fills the window: it may open at any moment

    def forget(self, in_flight_bytes: int) -> None:
        """Forget the oldest pieces while more is expected back than is in flight: they were early."""
        while self.known_bytes > in_flight_bytes and self.outstanding:
            self.known_bytes -= self.outstanding.popleft()[1]

    def on_given(self, size: int, expected_at_s: float) -> None:
        """Note another piece on its way (the paper's est_ACK_AT)."""
        self.outstanding.append((expected_at_s, size))
        self.known_bytes += size


class Swtc:
    """The scheduler of the paper; it plans in pieces of `piece_bytes`."""

    name = "swtc"
    copies = False
    prompt = False

    def __init__(self, piece_bytes: int = CHUNK_BYTES) -> None:
        self._piece_bytes = piece_bytes
        # By path id, the pieces given to the path and when they are expected back.
        self.schedules: defaultdict[int, Schedule] = defaultdict(Schedule)
        self._left_to_others = False

    def choose(
        self,
        path: PathState,
        paths: Sequence[PathState],
        backlog: Backlog,
        room_bytes: int,
        now: float,
    ) -> SendGrant | None:
        # Forget the plans of paths that are gone.
        if len(self.schedules) > len(paths):
            for gone in self.schedules.keys() - {each.path_id for each in paths}:
                del self.schedules[gone]
        for rank in range(len(LABELS)):
            if not backlog.waiting_bytes[rank]:
                continue
            may = allowed_paths(paths, rank)
            if path in may:
                grant = self._plan(path, may, rank, backlog, room_bytes, now)
                if grant is not None:
                    return grant
                # Another path has all of this label sooner. It may get slower, so ask again soon.
                self._left_to_others = True
        return None

    def _plan(
        self,
        path: PathState,
        paths: Sequence[PathState],
        rank: int,
        backlog: Backlog,
        room_bytes: int,
        now: float,
    ) -> SendGrant | None:
        """Grant the first pieces that no other path acknowledges sooner than `path`.

        A path acknowledges its further pieces at equal distances (`_line`). So the pieces that it gets
        before an instant can be counted, and no plan is made piece by piece.
        """
        waiting = backlog.waiting_bytes[rank]
        # Fast path: with one path there is nothing to plan.
        if len(paths) == 1:
            self._note(path, min(room_bytes, waiting), now)
            return SendGrant(rank, room_bytes)
        if path.facts.rate_bps is None:
            room_bytes = min(room_bytes, _first_bytes(path))
            if room_bytes <= 0:
                return None
        piece = min(self._piece_bytes, waiting)
        mine_s, each_s = self._line(path, piece, now)
        skipped, rivals_s, earlier = 0, list[float](), True
        for other in paths:
            if other is path:
                earlier = False
                continue
            if other.facts.rate_bps is None and _first_bytes(other) <= 0:
                continue  # it gets nothing now, however soon it seems
            its_s, its_each_s = self._line(other, piece, now)
            # Count its pieces before mine. Of two equals the first path in the list gets the piece.
            if its_s < mine_s or (earlier and its_s == mine_s):
                lead = (mine_s - its_s) / its_each_s
                count = floor(lead) + 1 if earlier else ceil(lead)
                skipped += count
                if skipped >= _HORIZON_PIECES:
                    return None
                its_s += count * its_each_s
            rivals_s.append(its_s)
        # Others acknowledge all waiting data sooner.
        if skipped * piece >= waiting:
            return None
        # The pieces after that one are this path's as well, up to the first that a rival has sooner.
        ends_s = min(rivals_s, default=mine_s + _HORIZON_PIECES * each_s)
        taken = max(1, min(ceil((ends_s - mine_s) / each_s), _HORIZON_PIECES))
        limit = min(taken * piece, room_bytes, waiting - skipped * piece)
        self._note(path, limit, now)
        return SendGrant(rank, limit, skip_bytes=skipped * piece)

    def _note(self, path: PathState, size: int, now: float) -> None:
        schedule = self.schedules[path.path_id]
        schedule.forget(path.in_flight_bytes)
        schedule.on_given(size, now + latency_s(path))

    def _line(self, path: PathState, piece: int, now: float) -> tuple[float, float]:
        """Return after how long a path acknowledges one more piece, and how much later each further one.

        Both in seconds.
        """
        facts = path.facts
        byte_s = 8 / rate_bps(path)
        in_flight = path.in_flight_bytes
        # m: what the kernel has not sent yet, and the piece but for the packet that a round trip has.
        ahead = facts.unsent_bytes + piece - PACKET_BYTES
        waiting_s = byte_s * ahead if ahead > 0 else 0.0
        window = facts.window_bytes
        # n: the window is full, so the piece must wait for acknowledgements.
        if window is not None and in_flight >= window:
            waiting_s += self.schedules[path.path_id].opens_in_s(window, in_flight, now)
        round_trip_s, least_s, queueing_s = rtt_s(path), facts.rtt_min_s, 0.0
        if least_s is not None and least_s < round_trip_s:
            # A queue longer than what is in flight was there when it was measured, and is gone.
            queueing_s, drained_s = round_trip_s - least_s, byte_s * in_flight
            round_trip_s, queueing_s = least_s, drained_s if drained_s < queueing_s else queueing_s
        if not facts.loss:
            return round_trip_s + waiting_s + queueing_s, byte_s * piece
        return expected_s(round_trip_s, facts.loss, waiting_s, queueing_s), byte_s * piece

    def next_check_s(self, paths: Sequence[PathState], now: float) -> float | None:
        """Return a short time where data was left to a path that may change its mind."""
        if not self._left_to_others:
            return None
        self._left_to_others = False
        return _CHECK_S

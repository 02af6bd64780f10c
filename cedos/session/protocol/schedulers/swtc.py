"""SWTC, scheduled window-based transmission control (CBSP, "Packet Scheduler", equation 2).

Each piece of data goes where its acknowledgement is expected first:

    E_i = r_i * (1 / (1 - p_i)^2 - 1 / (1 - p_i) + 1) + w_i + q_i,   w_i = m_i + n_i

with the round trip r, the loss p, the queueing delay q of the path, the time m until what is scheduled
before it has left this host, and the time n until the window opens. The paper assigns a packet the
moment it is ready; here a path asks for data when it has room, so the pieces that wait are planned ahead:
those which another path, though busy, acknowledges sooner are left to it, and this path gets what comes
behind them. Both give each path the same pieces, in an order in which they arrive in sequence.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from cedos.session.protocol.schedulers.interface import (
    CHUNK_BYTES,
    LABELS,
    Backlog,
    PathState,
    SendGrant,
    allowed,
    rate_bps,
    rtt_s,
)

# A plan further ahead than this would be out of date before its end.
_HORIZON_PIECES: Final = 64
_CHECK_S: Final = 0.010


def expected_s(round_trip_s: float, loss: float, waiting_s: float, queueing_s: float) -> float:
    arrives = 1.0 - min(loss, 0.99)
    return round_trip_s * (1 / arrives**2 - 1 / arrives + 1) + waiting_s + queueing_s


@dataclass(slots=True)
class Schedule:
    """The pieces given to one path: `outstanding` holds (expected at s, bytes), oldest first."""

    outstanding: deque[tuple[float, int]] = field(default_factory=deque)

    def opens_in_s(self, window_bytes: int | None, in_flight_bytes: int, now: float) -> float:
        """Return the waiting time n: until acknowledgements open the full window.

        More may be expected back than is in flight: acknowledgements that came early are forgotten
        first.
        """
        known = sum(size for _, size in self.outstanding)
        while self.outstanding and known > in_flight_bytes:
            known -= self.outstanding.popleft()[1]
        if window_bytes is None or in_flight_bytes < window_bytes:
            return 0.0
        excess = in_flight_bytes - window_bytes
        for expected_at_s, size in self.outstanding:
            excess -= size
            if excess < 0:
                return max(0.0, expected_at_s - now)
        return 0.0  # nothing is known of what fills the window: it may open at any moment

    def gave(self, size: int, expected_at_s: float) -> None:
        """Note another piece on its way (the paper's est_ACK_AT)."""
        self.outstanding.append((expected_at_s, size))


class Swtc:
    name = "swtc"
    copies = False
    prompt = False

    def __init__(self) -> None:
        self._schedules: dict[int, Schedule] = {}
        self._left_to_others = False

    def choose(
        self,
        path: PathState,
        paths: Sequence[PathState],
        backlog: Backlog,
        room_bytes: int,
        now: float,
    ) -> SendGrant | None:
        for gone in self._schedules.keys() - {each.path_id for each in paths}:
            del self._schedules[gone]
        for rank in range(len(LABELS)):
            may = allowed(paths, rank)
            if backlog.waiting_bytes[rank] and path in may:
                grant = self._plan(path, may, rank, backlog, room_bytes, now)
                if grant is not None:
                    return grant
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
        waiting = backlog.waiting_bytes[rank]
        if len(paths) == 1:
            return SendGrant(rank, room_bytes)
        # What is asked of the path now goes in at once: its m and n count what is already inside.
        planned = {each.path_id: each.facts.unsent_bytes for each in paths}
        opens_s = {each.path_id: self._opens_in_s(each, now) for each in paths}
        skipped = taken = 0
        for _ in range(_HORIZON_PIECES):
            piece = min(CHUNK_BYTES, waiting - skipped - taken)
            if piece <= 0:
                break
            winner = min(paths, key=lambda each: self._expected_s(each, planned, opens_s, piece))
            if winner is path:
                taken += piece
                if taken >= room_bytes:
                    break
            elif taken:
                break
            else:
                skipped += piece
            planned[winner.path_id] += piece
        if not taken:
            return None
        limit = min(taken, room_bytes)
        schedule = self._schedules.setdefault(path.path_id, Schedule())
        ahead_s = 8 * path.facts.unsent_bytes / rate_bps(path)
        schedule.gave(limit, now + rtt_s(path) + ahead_s)
        return SendGrant(rank, limit, skip_bytes=skipped)

    def _opens_in_s(self, path: PathState, now: float) -> float:
        schedule = self._schedules.get(path.path_id)
        if schedule is None:
            return 0.0
        return schedule.opens_in_s(path.facts.window_bytes, path.in_flight_bytes, now)

    def _expected_s(
        self, path: PathState, planned: dict[int, int], opens_s: dict[int, float], piece: int
    ) -> float:
        least_s = path.facts.rtt_min_s
        base_s = rtt_s(path)
        # The round trip as it is without a queue, and the queue apart, where both are known.
        queueing_s = 0.0 if least_s is None else max(0.0, base_s - least_s)
        transmission_s = 8 * (planned[path.path_id] + piece) / rate_bps(path)
        waiting_s = transmission_s + opens_s[path.path_id]
        return expected_s(base_s - queueing_s, path.facts.loss, waiting_s, queueing_s)

    def next_check_s(self, paths: Sequence[PathState], now: float) -> float | None:
        """Return a short time where data was left to a path that may change its mind."""
        if not self._left_to_others:
            return None
        self._left_to_others = False
        return _CHECK_S

"""The pieces in flight on each path, and those held back until the peer has said what it has.

A path delivers in order (TCP), so a path's pieces are acknowledged from the front.
"""

from collections import deque
from collections.abc import Iterator, Sequence
from typing import Final

from cedos.session.protocol.schedulers.interface import (
    Backlog,
    PathFacts,
    PathState,
    SendGrant,
    allowed_paths,
)
from cedos.session.protocol.send_queues import MessageBatch, Piece
from cedos.session.protocol.sender import SMALL_BYTES, Sender

# The most pieces in flight. The peer refuses more gaps than that many cause.
MAX_IN_FLIGHT: Final = 8_192


class PathFlight:
    """A path: its state for schedulers, its pieces in flight, and its control frames."""

    __slots__ = (
        "allowed_here", "allowed_there", "arrived_bytes", "asked", "asked_bytes", "control", "dialled",
        "fell", "flight", "heard_at_s", "heard_bytes", "held_until_s", "owes_statement", "state",
    )  # fmt: skip

    def __init__(self, path_id: int, facts: PathFacts, now: float, *, dialled: bool) -> None:
        self.state = PathState(path_id, facts, now)
        self.flight: deque[Piece] = deque()
        self.control: deque[bytes] = deque()
        # Whether its next record states everything that holds now: positions, acknowledgements,
        # windows, and the control frames that the peer may have missed.
        self.owes_statement = True
        self.allowed_here = self.allowed_there = self.state.allowed
        self.dialled = dialled  # whether this end dialled it
        self.heard_at_s = now
        self.heard_bytes = 0  # of the peer's records
        # So many bytes sent over the path a Ping has asked about, and a Pong has said to have arrived.
        self.asked_bytes = self.arrived_bytes = 0
        # The network flaps, so the path is not relied on until a record arrives after this instant;
        # None: it is relied on.
        self.held_until_s: float | None = None
        self.asked = False  # whether a Ping has asked, after that instant, if the path still works
        self.fell = False  # whether its silence was counted as a fall of its network

    def on_record(self, size_bytes: int, now: float) -> None:
        """Note that a record of the peer came over this path."""
        self.heard_at_s = now
        self.heard_bytes += size_bytes
        if self.held_until_s is not None and now >= self.held_until_s:
            self.came_back(None)

    def came_back(self, held_until_s: float | None) -> None:
        """Note that the path is back; it is not relied on before it is heard after `held_until_s`.

        None: it is relied on at once.
        """
        self.held_until_s = held_until_s
        self.asked = self.fell = False
        self.state.facts.flaps = held_until_s is not None

    def silent_since(
        self, at_s: float | None, *, pauses: bool = False, crawls: bool = False
    ) -> None:
        """Note since when the path is silent; None: it is not. The rest: as in `PathFacts`."""
        facts = self.state.facts
        facts.stalled_at_s, facts.pauses, facts.crawls = at_s, pauses, crawls

    def asks_at(self) -> float | None:
        """Return when the path has been held for long enough to be asked whether it is there."""
        return None if self.asked else self.held_until_s

    def asks(self, now: float) -> bool:
        """Return whether to ask the path now; true once."""
        asks_at = self.asks_at()
        due = asks_at is not None and asks_at <= now
        self.asked |= due
        return due

    def allow_here(self, ranks: int) -> None:
        self.allowed_here = ranks
        self.state.allowed = ranks & self.allowed_there

    def allow_there(self, ranks: int, peer: PathFacts) -> None:
        """Take the peer's mask of ranks and its view of the path."""
        self.allowed_there = ranks
        self.state.allowed = ranks & self.allowed_here
        self.state.peer = peer


class InFlight:
    """The paths of a session and their pieces; schedulers see `states`."""

    def __init__(self, sender: Sender) -> None:
        self.paths: dict[int, PathFlight] = {}
        self.states: list[PathState] = []
        self.only: PathFlight | None = None  # the path, if there is just one
        self._sender = sender
        self._held: list[Piece] = []
        self._count = 0
        # Whether this end was restored from an idle record, and the peer has not said yet what it
        # has. New data waits: this end may have sent more after the record was written.
        self.unheard = False

    def on_up(self, path_id: int, facts: PathFacts, now: float, *, dialled: bool) -> None:
        path = PathFlight(path_id, facts, now, dialled=dialled)
        self.paths[path_id] = path
        self._paths_changed()

    def on_path_lost(self, path_id: int) -> None:
        """Remove a path: hold its pieces back; requeue those that are small and urgent."""
        path = self.paths.pop(path_id)
        self._paths_changed()
        self._count -= len(path.flight)
        urgent: list[Piece] = []
        # A piece that is on another path, waits already, or has arrived needs nothing.
        for piece in path.flight:
            piece.on = tuple(each for each in piece.on if each != path_id)
            if piece.on or piece.queued or not self._is_needed(piece):
                continue
            # Small urgent messages do not wait for the peer's Sync: a copy costs little.
            if piece.rank == 0 and piece.size <= SMALL_BYTES and self.paths:
                urgent.append(piece)
            else:
                self._held.append(piece)
        if urgent:
            self._sender.send_queues[0].requeue(urgent)

    def release(self) -> None:
        """Requeue what was held back: the peer has said what it has."""
        self.unheard = False
        held, self._held = self._held, []
        self._requeue(held)

    def requeue(self, path_id: int) -> None:
        """Requeue what is in flight on a path, and on no other living path."""
        # Pieces that a living path carries as well are on their way already.
        living = {
            path.path_id
            for path in self.states
            if path.path_id != path_id and path.facts.stalled_at_s is None
        }
        self._requeue(
            [
                piece
                for piece in self.paths[path_id].flight
                if not piece.queued and living.isdisjoint(piece.on)
            ]
        )

    def drop_acknowledged(self) -> None:
        irobs = self._sender.irobs
        for path in self.paths.values():
            flight = path.flight
            gone = 0
            # TCP delivers in order: acknowledged pieces are at the front.
            while flight and (flight[0].done or flight[0].is_acknowledged(irobs)):
                piece = flight.popleft()
                gone += piece.size
                self._count -= 1
                if not piece.done:
                    self._finish(piece)
            path.state.in_flight_bytes -= gone

    def take(self, path: PathFlight, grant: SendGrant, room_bytes: int) -> Piece | None:
        """Return the piece that a scheduler granted, now in flight on `path`; None: there is none."""
        path_id = path.state.path_id
        state = path.state
        # The path's mask forbids the label, unless all its paths are silent.
        if not state.allowed >> grant.rank & 1 and state not in allowed_paths(
            self.states, grant.rank
        ):
            return None
        if grant.copy:
            piece = self._copy(path_id, grant.rank, room_bytes)
            if piece is None:
                return None
        else:
            queue = self._sender.send_queues[grant.rank]
            # Skip requeued pieces that have arrived meanwhile, or that this path carries.
            while True:
                if self.full and not queue.pending:
                    return None
                limit_bytes = min(room_bytes, max(grant.limit_bytes, 1))
                piece = queue.take(limit_bytes, grant.skip_bytes)
                if piece is None and limit_bytes < room_bytes:
                    # A piece that cannot be cut so short takes more room; one with a long list of
                    # dependencies, for example.
                    piece = queue.take(room_bytes, grant.skip_bytes)
                if piece is None:
                    return None
                if not piece.queued:
                    break
                piece.queued = False
                if self._is_needed(piece) and path_id not in piece.on:
                    break
        self.on_sent(path, piece)
        return piece

    def on_sent(self, path: PathFlight, piece: Piece) -> None:
        piece.on += (path.state.path_id,)
        path.flight.append(piece)
        path.state.in_flight_bytes += piece.size
        self._count += 1

    @property
    def pieces(self) -> int:
        """Return how many pieces are in flight, held back, or wait to be sent again."""
        waiting = sum(queue.pending for queue in self._sender.send_queues)
        return self._count + len(self._held) + waiting

    @property
    def full(self) -> bool:
        return self._count >= MAX_IN_FLIGHT

    def count_copyable(self, path_id: int, backlog: Backlog) -> None:
        copyable = backlog.copyable_bytes = [0, 0, 0, 0]
        for piece in self._pieces_elsewhere(path_id):
            copyable[piece.rank] += piece.size

    @property
    def idle(self) -> bool:
        return not (self._count or self._held)

    def _paths_changed(self) -> None:
        paths = list(self.paths.values())
        self.states = [each.state for each in paths]
        self.only = paths[0] if len(paths) == 1 else None

    def _copy(self, path_id: int, rank: int, room_bytes: int) -> Piece | None:
        for piece in self._pieces_elsewhere(path_id):
            if piece.rank == rank:
                if piece.size + piece.extra <= room_bytes:
                    return piece
                return self._cut(piece, room_bytes - piece.extra)
        return None

    def _pieces_elsewhere(self, path_id: int) -> Iterator[Piece]:
        """Return pieces in flight on other paths that were never sent on this one."""
        irobs = self._sender.irobs
        seen: set[int] = set()
        for path in self.paths.values():
            # A piece on several paths is named once.
            for piece in path.flight if path.state.path_id != path_id else ():
                known = piece.done or piece.queued or path_id in piece.on or id(piece) in seen
                if not known and not piece.is_acknowledged(irobs):
                    seen.add(id(piece))
                    yield piece

    def _cut(self, piece: Piece, room_bytes: int) -> Piece | None:
        """Put both parts of a cut piece in its place on every path."""
        parts = piece.cut(room_bytes)
        if parts is None:
            return None
        for part in parts:
            part.on = piece.on
        for path in self.paths.values():
            if path.state.path_id in piece.on:
                at = path.flight.index(piece)
                path.flight[at] = parts[0]
                path.flight.insert(at + 1, parts[1])
                self._count += 1
                path.state.in_flight_bytes += parts[0].size + parts[1].size - piece.size
        return parts[0]

    def _requeue(self, pieces: list[Piece]) -> None:
        """Queue again what the peer lacks of these pieces, in front of their labels' queues."""
        waiting: tuple[list[Piece], ...] = ([], [], [], [])
        for piece in pieces:
            if self._is_needed(piece):
                waiting[piece.rank].extend(self._rest(piece))
        for queue, lost in zip(self._sender.send_queues, waiting, strict=True):
            if lost:
                queue.requeue(lost)

    def _rest(self, piece: Piece) -> Sequence[Piece]:
        if isinstance(piece, MessageBatch):
            batches = piece.rest(self._sender.irobs)
            # The batch was split: give back the memory of the messages that the peer has.
            if piece.done:
                self._sender.replay.give(piece.bytes - sum(each.bytes for each in batches))
            return batches
        return piece.rest(self._sender.irobs)

    def _is_needed(self, piece: Piece) -> bool:
        """Return whether the peer lacks any of a piece; finish the piece if not."""
        if not piece.done and piece.is_acknowledged(self._sender.irobs):
            self._finish(piece)
        return not piece.done

    def _finish(self, piece: Piece) -> None:
        piece.done = True
        if isinstance(piece, MessageBatch):
            self._sender.replay.give(piece.bytes)

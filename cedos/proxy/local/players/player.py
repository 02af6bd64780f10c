"""One player: what it has in store by its own word and by what has come since. Pure."""

from collections import deque
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from cedos.proxy.local.players.cmcd import PlayerWord
from cedos.session.protocol.buffer_manager import AwaitedPiece, BufferManager

ENDLESS: Final = 1 << 60
_BETWEEN_S: Final = 1.0
"""A player that asks for nothing for so long needs nothing: it has enough, or was halted."""

_TRACK_S: Final = 60.0
_READ_IN_S: Final = 0.5
"""What has come is not played at once: it is read in, and what a player says it has is rounded."""

_LEAST_PATIENCE_S: Final = 3.0
_PATIENT: Final = 0.7
"""A player that gave a request up, and makes it again, is not let wait for as long again: it may give
up for good the second time."""

_HEAD_DUE_S: Final = 6.0
"""Players that wait for an answer's head alone (hls.js, and Shaka for the connection) give up after 10 s:
before that it is let through, while the body waits."""

HEAD_S: Final = 4.0
"""So long a head may take to come, and the metered network is there for nothing else."""

_HEAD_BEFORE_S: Final = 1.0
_RATES: Final = 3
_WORTH_BYTES: Final = 50_000
_SHORTEST_S: Final = 0.05
_MOST_GIVEN_UP: Final = 16

_STEP: Final = 2.0
"""A rendition that is new may have so much more than those that are known."""

_MOST_TRACKS: Final = 8
_NOT_PLAYED: Final = frozenset(("m", "i", "k", "o"))
"""Manifests, what precedes segments, keys, others (CTA-5004, `ot`): they take nothing of the bit rate."""


@dataclass(slots=True)
class Piece:
    """A request that was made and is not answered in full; `word`: None, nothing is known of it.

    `held`: it has not left this host, so that its answer's head can be had alone; `headed`: that was
    let come so. `answered`: the head is here.
    """

    word: PlayerWord | None
    asked_s: float
    target: bytes = b""
    patience_s: float = float("inf")
    received_bytes: int = 0
    came_s: float | None = None
    held: bool = False
    headed: bool = False
    answered: bool = False

    def head_is_due(self, now: float) -> bool:
        """Whether its player may give it up soon, for want of a head."""
        due_s = self.asked_s + min(_HEAD_DUE_S, self.patience_s - _HEAD_BEFORE_S)
        return self.held and not self.answered and due_s <= now < due_s + HEAD_S

    def came(self, received_bytes: int, now: float) -> None:
        """So much of the answer's body is here."""
        if received_bytes and self.came_s is None:
            self.came_s = now
        self.received_bytes = received_bytes

    def store_s(self, now: float) -> float:
        """What is left of what its player had as it asked."""
        if self.word is None or self.word.buffer_s is None:
            return 0.0
        return max(self.word.buffer_s - (now - self.asked_s) * self.word.rate, 0.0)


class _GivenUp(NamedTuple):
    """`headed`: though the head had come."""

    patience_s: float
    headed: bool


@dataclass(slots=True)
class _Track:
    """Objects of one type: `store_s` was there `at_s`, what has come whole since included."""

    store_s: float = 0.0
    at_s: float = 0.0
    rate: float = 1.0
    bitrate_bps: float | None = None
    ended_s: float = float("-inf")

    def left_s(self, now: float) -> float:
        return max(self.store_s - (now - self.at_s) * self.rate, 0.0)


@dataclass(slots=True)
class Player:
    """`asked` for each request, `ended` once it is answered; `manager` is the rule that it goes by.

    What is not known counts as an empty store: it goes at once, over whatever network there is.
    """

    name: str
    manager: BufferManager = field(default_factory=BufferManager)
    _given_up: dict[bytes, _GivenUp] = field(default_factory=dict)
    _heads_help: bool = True
    _tracks: dict[str | None, _Track] = field(default_factory=dict)
    _pieces: list[Piece] = field(default_factory=list)
    _ended_s: float = float("-inf")
    _piece_s: float = 0.0
    _metered_bps: deque[float] = field(default_factory=lambda: deque(maxlen=_RATES))

    @property
    def is_heard(self) -> bool:
        """Whether it ever said what it has in store."""
        return bool(self._tracks)

    @property
    def asks(self) -> bool:
        return bool(self._pieces)

    def is_known(self, word: PlayerWord) -> bool:
        """Whether that request can wait for a network, as far as its player's store lasts."""
        return word.buffer_s is not None and self._bitrate_bps(word) is not None

    def asked(self, word: PlayerWord | None, now: float, target: bytes = b"") -> Piece:
        given_up = self._given_up.get(target)
        piece = Piece(word, now, target, float("inf") if given_up is None else given_up.patience_s)
        if given_up is not None and given_up.headed:
            self._heads_help = False  # all of the answer has to be there in time
        self._pieces.append(piece)
        if word is None or word.buffer_s is None or word.kind in _NOT_PLAYED:
            return piece
        if word.kind not in self._tracks and len(self._tracks) >= _MOST_TRACKS:
            del self._tracks[min(self._tracks, key=lambda kind: self._tracks[kind].at_s)]
        track = self._tracks.setdefault(word.kind, _Track())
        track.store_s, track.at_s, track.rate = word.buffer_s, now, word.rate
        if word.bitrate_bps is not None:
            track.bitrate_bps = word.bitrate_bps
        self._plays(now)
        return piece

    def ended(self, piece: Piece, now: float, *, whole: bool, metered: bool = False) -> None:
        """It is answered, or given up; `metered`: over such a network, perhaps among others."""
        self._pieces.remove(piece)
        at_once = metered and not piece.headed
        if whole and at_once and piece.received_bytes >= _WORTH_BYTES and piece.came_s is not None:
            lasted_s = max(now - piece.came_s, _SHORTEST_S)
            self._metered_bps.append(8 * piece.received_bytes / lasted_s)
        self._ended_s = now
        word = piece.word
        if not whole:
            waited_s = now - piece.asked_s
            headed = piece.headed and piece.answered
            waited = word is not None and (headed or not piece.received_bytes)
            if waited and waited_s >= _LEAST_PATIENCE_S:
                patience_s = min(piece.patience_s, _PATIENT * waited_s)
                self._given_up[piece.target] = _GivenUp(patience_s, headed)
                if len(self._given_up) > _MOST_GIVEN_UP:
                    del self._given_up[next(iter(self._given_up))]
            return
        self._given_up.pop(piece.target, None)
        if word is None or word.buffer_s is None or word.kind not in self._tracks:
            return
        track = self._tracks[word.kind]
        track.ended_s = now
        if word.duration_s:
            track.store_s += word.duration_s
            if word.bitrate_bps is None:
                track.bitrate_bps = 8 * piece.received_bytes / word.duration_s
        self._plays(now)

    def buffered_s(self, now: float) -> float:
        """For so long it plays on if nothing more comes; endless where it asks for nothing."""
        if any(self._needs(piece, now) for piece in self._pieces):
            return 0.0
        if self._pieces:
            return min(piece.store_s(now) for piece in self._pieces)
        if now - self._ended_s > _BETWEEN_S:
            return float("inf")
        ended = [each for each in self._tracks.values() if now - each.ended_s <= _BETWEEN_S]
        return min((track.left_s(now) for track in ended), default=0.0)

    def buffered_bytes(self, now: float) -> int:
        """Of that what can be waited with."""
        buffered_s = self.buffered_s(now)
        if buffered_s == float("inf"):
            return ENDLESS
        return int(max(buffered_s - _READ_IN_S, 0.0) * (self._total_bps(now) / 8))

    def heads_due(self, now: float) -> bool:
        """Whether answers' heads are wanted now, from whatever network, and no more than those.

        All that it has asked for must have been held: the rest would come as well.
        """
        return (
            self._heads_help
            and all(piece.held and not self._needs(piece, now) for piece in self._pieces)
            and any(piece.head_is_due(now) for piece in self._pieces)
        )

    def let_go(self) -> None:
        """What had its head, or was to have it, goes on like all else."""
        for piece in self._pieces:
            piece.held = piece.held and not piece.headed

    def awaited(self, now: float) -> AwaitedPiece:
        """The segments that it waits for, as if they were one."""
        return AwaitedPiece(
            sum(map(self._left_bytes, self._pieces)),
            any(piece.received_bytes > 0 for piece in self._pieces),
            min(self._metered_bps, default=None),
            self.heads_due(now),
        )

    def _needs(self, piece: Piece, now: float) -> bool:
        word = piece.word
        if word is None or word.urgent or not self.is_known(word):
            return True
        return not piece.answered and now - piece.asked_s >= piece.patience_s

    def _left_bytes(self, piece: Piece) -> int:
        if piece.word is None or piece.word.duration_s is None:
            return 0
        expected = (self._bitrate_bps(piece.word) or 0.0) / 8 * piece.word.duration_s
        return max(int(expected) - piece.received_bytes, 0)

    def _bitrate_bps(self, word: PlayerWord) -> float | None:
        track = self._tracks.get(word.kind)
        told_bps = word.bitrate_bps or (track.bitrate_bps if track is not None else None)
        if told_bps:
            return told_bps
        return (
            _STEP * max((each.bitrate_bps or 0.0 for each in self._tracks.values()), default=0)
            or None
        )

    def _plays(self, now: float) -> None:
        pieces = [each.word.duration_s for each in self._pieces if each.word is not None]
        piece_s = min((each for each in pieces if each is not None), default=self._piece_s)
        self._piece_s = piece_s
        self.manager.plays_at(self._total_bps(now), piece_s)

    def _total_bps(self, now: float) -> float:
        """Of all types that it still asks for."""
        return sum(
            track.bitrate_bps or 0.0
            for track in self._tracks.values()
            if now - max(track.at_s, track.ended_s) < _TRACK_S
        ) or max((track.bitrate_bps or 0.0 for track in self._tracks.values()), default=0.0)

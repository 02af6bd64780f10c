"""A player that says nothing, by the playlists that it read: what it has got and cannot have played."""

from collections import deque
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Final, Protocol

from cedos.proxy.local.players.cmcd import PRECEDING, PlayerWord
from cedos.proxy.local.players.playlist import ListedSegment
from cedos.session.protocol.playback_clock import PlaybackClock

_MOST_LISTS: Final = 16
_TOGETHER_S: Final = 5.0
_FULL_S: Final = 0.2
_FAST: Final = 1.15
_LOOKS_S: Final = 0.5
"""A player that is full may look whether a segment was played no more often: dash.js does so every half
second, and asks for one of 2 s now and then after 1.5 s, for the next after 2.5 s."""

_MOST_ASKED: Final = 8
_MS_PER_BYTE_BPS: Final = 8_000.0
"""The clock counts bytes: of a stream with this bit rate one is a millisecond."""


class ListedObjects(Protocol):
    """What a playlist or a manifest says of the objects at its own host."""

    def get(self, target: str, /) -> ListedSegment | None:
        """By path and query; None: it is no segment."""


@dataclass(frozen=True, slots=True)
class _Key:
    """Of what comes one after another: one rendition of what is listed at `url`."""

    url: str
    track: str
    rendition: str

    @property
    def text(self) -> str:
        return f"{self.url}#{self.rendition}" if self.rendition else self.url


@dataclass(frozen=True, slots=True)
class _Asked:
    at_s: float
    segment: ListedSegment


@dataclass(slots=True)
class _Run:
    """Segments that came one after another: played from when the first of them was there."""

    clock: PlaybackClock = field(default_factory=lambda: PlaybackClock(_MS_PER_BYTE_BPS))
    last: ListedSegment | None = None
    got_ms: int = 0
    came_s: float | None = None
    asked_full: deque[_Asked] = field(default_factory=lambda: deque(maxlen=_MOST_ASKED))
    is_fast: bool = False

    def leads_to(self, segment: ListedSegment) -> bool:
        """Whether it is the next, or the last once more, of the same or of another rendition."""
        return self.last is not None and -0.5 < self._ahead(segment, self.last) < 1.5

    def takes_back(self, segment: ListedSegment, now: float) -> bool:
        """Whether it is in store, and not being played: it is to be replaced, with all that follows it.

        What is before it stays; who begins with what is played now may have thrown away all.
        """
        if self.last is None:
            return False
        replaced_s = (1 - self._ahead(segment, self.last)) * self.last.duration_s
        if not 0 < replaced_s < self.store_s(now):
            return False
        self.got_ms -= round(1e3 * replaced_s)
        self.last = replace(self.last, number=segment.number - self.last.places)
        return True

    def came(self, segment: ListedSegment, now: float) -> None:
        self.came_s = now
        if self.last is None or self._ahead(segment, self.last) >= 0.5:
            self.store_s(now)  # what was played until now is counted
            self.got_ms += round(1e3 * segment.duration_s)
            self.last = segment
            self.store_s(now)

    def asked(self, segment: ListedSegment, now: float) -> None:
        """One that is full asks for the next segment whenever one was played: so fast it plays."""
        if self.came_s is None or now - self.came_s <= _FULL_S:
            self.asked_full.clear()
            return
        if self.asked_full:
            if self.asked_full[-1].segment.number == segment.number:
                return  # once more, as after an error
            self.is_fast = self._is_fast(segment, now)
        self.asked_full.append(_Asked(now, segment))

    def _is_fast(self, segment: ListedSegment, now: float) -> bool:
        """Whether, since one of the last times, more was played than time went by."""
        played_s = segment.duration_s
        for earlier in reversed(self.asked_full):
            if played_s > _FAST * (now - earlier.at_s) + _LOOKS_S:
                return True
            played_s += earlier.segment.duration_s
        return False

    def store_s(self, now: float) -> float:
        return (self.got_ms - self.clock.played_bytes(self.got_ms, now)) / 1e3

    @staticmethod
    def _ahead(segment: ListedSegment, last: ListedSegment) -> float:
        """In segments. Renditions need not be cut at the very same places."""
        return (segment.number - last.number) / last.places


class ListedStreams:
    """All playlists of one server, as one player reads them.

    A player may begin to play later than is assumed here, or halt: it has more in store then. One that
    jumps has nothing. Of one that plays faster nothing is known: it would have to say so (CMCD).
    """

    def __init__(self) -> None:
        self._lists: dict[str, ListedObjects] = {}
        self._runs: dict[_Key, _Run] = {}
        self._read_s: dict[str, float] = {}
        self._begun: set[str] = set()

    def read(self, url: str, segments: ListedObjects, now: float) -> None:
        """A playlist came, for the first time or again."""
        self._lists.pop(url, None)
        if len(self._lists) >= _MOST_LISTS:
            oldest = next(iter(self._lists))
            del self._lists[oldest], self._read_s[oldest]
            for key in [key for key in self._runs if key.url == oldest]:
                del self._runs[key]
            self._begun.discard(oldest)
        self._lists[url] = segments
        self._read_s.setdefault(url, now)

    def word(self, target: str, now: float) -> PlayerWord | None:
        """What its player might have said as it asks for `target`; None: no playlist has it."""
        for url, segments in self._lists.items():
            if (segment := segments.get(target)) is not None:
                if not segment.duration_s:
                    return PlayerWord(kind=PRECEDING)
                key = _Key(url, segment.track, segment.rendition)
                run = self._run(key, segment, now)
                run.asked(segment, now)
                store_s = None if run.is_fast else run.store_s(now)
                return PlayerWord(kind=key.text, buffer_s=store_s, duration_s=segment.duration_s)
        return None

    def came(self, target: str, now: float) -> None:
        """A segment came whole."""
        for url, segments in self._lists.items():
            if (segment := segments.get(target)) is not None and segment.duration_s:
                key = _Key(url, segment.track, segment.rendition)
                self._run(key, segment, now).came(segment, now)
                return

    def _run(self, key: _Key, segment: ListedSegment, now: float) -> _Run:
        """That of which the segment is the next, or the last once more; else a new one.

        A player that changes the rendition reads another playlist later, and goes on there, or begins
        with what it has in store. Sound and
        pictures are read together, and each has a run of its own. A manifest has all of them, and says
        which are which.
        """
        own = self._runs.get(key)
        if own is not None and own.leads_to(segment):
            return own
        others = [name for name in self._runs if name != key and self._may_go_on(name, key)]
        goes_on = (name for name in others if self._runs[name].leads_to(segment))
        back = (name for name in others if self._runs[name].takes_back(segment, now))
        self._begun.add(key.url)
        if (name := next(chain(goes_on, back), None)) is not None:
            run = self._runs[key] = self._runs.pop(name)
            return run
        run = self._runs[key] = _Run()
        return run

    def _may_go_on(self, name: _Key, key: _Key) -> bool:
        if name.track != key.track:
            return False
        later = self._read_s[key.url] - self._read_s[name.url] > _TOGETHER_S
        return name.url == key.url or later or key.url in self._begun

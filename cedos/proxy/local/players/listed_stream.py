"""A player that says nothing, by the playlists that it read: what it has got and cannot have played."""

from dataclasses import dataclass, field
from typing import Final

from cedos.proxy.local.players.cmcd import PlayerWord
from cedos.proxy.local.players.playlist import ListedSegment
from cedos.session.protocol.playback_clock import PlaybackClock

_MOST_LISTS: Final = 16
_TOGETHER_S: Final = 5.0
_FULL_S: Final = 0.2
_FAST: Final = 1.15
_MS_PER_BYTE_BPS: Final = 8_000.0
"""The clock counts bytes: of a stream with this bit rate one is a millisecond."""


@dataclass(slots=True)
class _Run:
    """Segments that came one after another: played from when the first of them was there."""

    clock: PlaybackClock = field(default_factory=lambda: PlaybackClock(_MS_PER_BYTE_BPS))
    last: int | None = None
    got_ms: int = 0
    came_s: float | None = None
    asked_full_s: float | None = None
    is_fast: bool = False

    def leads_to(self, number: int) -> bool:
        return self.last is not None and number - self.last in (0, 1)

    def asked(self, duration_s: float, now: float) -> None:
        """One that is full asks for the next segment whenever one was played: so fast it plays."""
        full = self.came_s is not None and now - self.came_s > _FULL_S
        if full and self.asked_full_s is not None:
            self.is_fast = duration_s > _FAST * (now - self.asked_full_s)
        self.asked_full_s = now if full else None

    def store_s(self, now: float) -> float:
        return (self.got_ms - self.clock.played_bytes(self.got_ms, now)) / 1e3


class ListedStreams:
    """All playlists of one server, as one player reads them.

    A player may begin to play later than is assumed here, or halt: it has more in store then. One that
    jumps has nothing. Of one that plays faster nothing is known: it would have to say so (CMCD).
    """

    def __init__(self) -> None:
        self._lists: dict[str, dict[str, ListedSegment]] = {}
        self._runs: dict[str, _Run] = {}
        self._read_s: dict[str, float] = {}
        self._begun: set[str] = set()

    def read(self, url: str, segments: dict[str, ListedSegment], now: float) -> None:
        """A playlist came, for the first time or again."""
        self._lists.pop(url, None)
        if len(self._lists) >= _MOST_LISTS:
            oldest = next(iter(self._lists))
            del self._lists[oldest], self._read_s[oldest]
            self._runs.pop(oldest, None)
            self._begun.discard(oldest)
        self._lists[url] = segments
        self._read_s.setdefault(url, now)

    def word(self, target: str, now: float) -> PlayerWord | None:
        """What its player might have said as it asks for `target`; None: no playlist has it."""
        for url, segments in self._lists.items():
            if (segment := segments.get(target)) is not None:
                run = self._run(url, segment.number)
                run.asked(segment.duration_s, now)
                store_s = None if run.is_fast else run.store_s(now)
                return PlayerWord(kind=url, buffer_s=store_s, duration_s=segment.duration_s)
        return None

    def came(self, target: str, now: float) -> None:
        """A segment came whole."""
        for url, segments in self._lists.items():
            if (segment := segments.get(target)) is not None:
                run = self._run(url, segment.number)
                run.came_s = now
                if run.last != segment.number:
                    run.store_s(now)  # what was played until now is counted
                    run.got_ms += round(1e3 * segment.duration_s)
                    run.last = segment.number
                    run.store_s(now)
                return

    def _run(self, url: str, number: int) -> _Run:
        """That of which the segment is the next, or the last once more; else a new one.

        A player that changes the rendition reads another playlist later, and goes on there. Sound and
        pictures are read together, and each has a run of its own.
        """
        own = self._runs.get(url)
        if own is not None and own.leads_to(number):
            return own
        for name, run in self._runs.items():
            later = self._read_s[url] - self._read_s[name] > _TOGETHER_S
            if name != url and run.leads_to(number) and (later or url in self._begun):
                self._runs[url] = self._runs.pop(name)
                self._begun.add(url)
                return run
        self._begun.add(url)
        run = self._runs[url] = _Run()
        return run

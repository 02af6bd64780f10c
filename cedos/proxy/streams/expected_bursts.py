"""What the server of one stream sends and takes at a time, by what it did before.

TLS tells no lengths. But a server of films sends films, and one of pictures is sent pictures: what has
become larger than most things do is taken for one of those that did.
"""

from collections.abc import Sequence
from math import inf
from statistics import median_low
from typing import Final

from cedos.model import Direction
from cedos.profiler.names import domain
from cedos.profiler.sizes import SizeHistory

_PAUSE_S: Final = 1.0
"""What a program sends after a pause asks for something new. (An answer may take its time.)"""

_LEAST_KNOWN: Final = 3
"""So many that were larger have to be known of a server, or of its domain."""


class ExpectedBursts:
    """A *burst* is all that goes both ways until the program asks again after a pause.

    `moves` with all that goes, after `begin` where that `begins` one; `ended` when nothing more comes:
    then it is learnt from.
    """

    def __init__(self, history: SizeHistory) -> None:
        self._history = history
        self._names: Sequence[str] = ()
        self._port = 0
        self._moved_s = -inf
        self._bytes = dict.fromkeys(Direction, 0)
        self._expected = dict.fromkeys(Direction, inf)

    def begins(self, now_s: float) -> bool:
        """Whether what the program sends now asks for something new."""
        return now_s - self._moved_s > _PAUSE_S

    def begin(self, server: str, port: int) -> None:
        """The program asks this server for something."""
        self.ended()
        self._names, self._port = _names(server), port
        self._expected = dict.fromkeys(Direction, -1.0)

    def moves(
        self, direction: Direction, size_bytes: int, now_s: float
    ) -> list[tuple[Direction, int]]:
        """How much is expected to follow, either way, where that is news."""
        self._moved_s = now_s
        self._bytes[direction] += size_bytes
        return [
            (way, int(expected - so_far))
            for way, so_far in self._bytes.items()
            if so_far > self._expected[way] and (expected := self._expect(way, so_far)) < inf
        ]

    def ended(self) -> None:
        """It is whole."""
        if any(self._bytes.values()):
            for way, size in self._bytes.items():
                for name in self._names:
                    self._history.learn(name, self._port, way, size)
        self.broke()

    def broke(self) -> None:
        """Nobody knows how large it would have been."""
        self._bytes = dict.fromkeys(Direction, 0)
        self._expected = dict.fromkeys(Direction, inf)

    def _expect(self, way: Direction, so_far: int) -> float:
        """The middle of all that became larger than this is; without bound where nobody can tell."""
        self._expected[way] = inf
        for name in self._names:
            larger = self._history.larger(name, self._port, way, so_far)
            if len(larger) >= _LEAST_KNOWN:
                self._expected[way] = median_low(larger)
                break
        return self._expected[way]


def _names(server: str) -> list[str]:
    wider = domain(server)
    return [server] if wider is None else [server, wider]

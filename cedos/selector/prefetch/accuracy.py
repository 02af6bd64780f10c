"""How often what was hinted is really asked for, per class (dissertation, 3.2.2.1: shadow accuracy).

A hint counts whether or not it was prefetched: what is never prefetched is watched in the shadow, or the
estimate would only ever learn from its own choices. The paper divides consumed hints by issued ones, so
that a fresh inbox of 35 hints looks like 35 misses; here a hint counts when its fate is known: it was
consumed, or cancelled, or dropped, or nobody wanted it for so long that nobody will.
"""

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field

ASSUMED = 0.5
"""The accuracy of an application of which nothing at all is known."""

_APPLICATION_WEIGHT = 2.0
_CLASS_WEIGHT = 4.0


@dataclass(slots=True)
class Counts:
    """Hints whose fate is known, and how many of them were consumed; older ones count less."""

    resolved: float = 0.0
    consumed: float = 0.0

    def add(self, consumed: bool, keep: float) -> None:
        """One more; what was there before is worth `keep` of itself."""
        self.resolved = self.resolved * keep + 1.0
        self.consumed = self.consumed * keep + consumed


@dataclass(slots=True)
class ShadowAccuracy:
    """The probability that a hint of a class is consumed.

    A class without a sample is taken for the application's average, and an application without one
    for `ASSUMED`: some imagined samples of the wider group stand before the first real ones.

    Args:
        memory: so many hints of a class are remembered, as a decaying average: habits shift.
    """

    memory: float = 200.0
    application: Counts = field(default_factory=Counts)
    classes: dict[Hashable, Counts] = field(default_factory=dict)

    def resolved(self, cls: Hashable, consumed: bool) -> None:
        """A hint's fate became known, prefetched or not."""
        keep = 1.0 - 1.0 / max(self.memory, 1.0)
        self.application.add(consumed, keep)
        self.classes.setdefault(cls, Counts()).add(consumed, keep)

    def of(self, cls: Hashable) -> float:
        """0 to 1, never quite either: no habit is a law."""
        average = _shrunk(self.application, ASSUMED, _APPLICATION_WEIGHT)
        counts = self.classes.get(cls)
        return average if counts is None else _shrunk(counts, average, _CLASS_WEIGHT)

    def to_state(self) -> dict[str, list[float]]:
        """What a program keeps for its next start: class (as text) -> resolved, consumed."""
        return {str(cls): [one.resolved, one.consumed] for cls, one in self.classes.items()}

    @classmethod
    def from_state(
        cls, state: Mapping[str, list[float]], memory: float = 200.0
    ) -> "ShadowAccuracy":
        """The same from what was kept; what makes no sense in it is left out.

        The classes are then texts, so that a program that keeps them names its classes by texts.
        """
        made = cls(memory)
        for name, pair in state.items():
            match pair:
                case [int() | float() as resolved, int() | float() as consumed]:
                    # (A comparison with NaN is false.)
                    if 0.0 <= consumed <= resolved < float("inf"):
                        made.classes[name] = Counts(float(resolved), float(consumed))
                        made.application.resolved += resolved
                        made.application.consumed += consumed
        return made


def _shrunk(counts: Counts, towards: float, weight: float) -> float:
    return (counts.consumed + weight * towards) / (counts.resolved + weight)

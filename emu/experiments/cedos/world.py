"""A simulated host: what both networks could carry, second by second, and what is wanted of them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple


class Wanted(NamedTuple):
    """A transfer: from when, how much, and until when (seconds of the world)."""

    released_s: int
    size_bytes: float
    deadline_s: float

    @property
    def delay_s(self) -> float:
        return self.deadline_s - self.released_s


@dataclass(frozen=True, slots=True)
class World:
    """Capacities in bits by second; 0: the network is not there.

    Attributes:
        wifi, cellular: as long as the world.
    """

    wifi: Sequence[float]
    cellular: Sequence[float]
    flows: Sequence[Wanted]
    known_wifi: Sequence[float] = ()
    known_cellular: Sequence[float] = ()

"""How a program fared, and who it runs as."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from cedos.errors import EmulationError

HalfWay = Callable[[], None]
"""Called once, in the middle of what is measured."""


@dataclass(frozen=True, slots=True)
class Watched:
    """From its first byte to its last one, the longest time without any, and whether all of it came."""

    took_s: float
    stall_s: float
    whole: bool


def watched(began_s: float, arrivals: Sequence[float], *, whole: bool) -> Watched:
    """`arrivals`: when anything came; EmulationError where nothing did."""
    if not arrivals:
        raise EmulationError("a program that was to be watched got nothing at all")
    stall_s = max((later - earlier for earlier, later in pairwise(arrivals)), default=0.0)
    return Watched(arrivals[-1] - began_s, stall_s, whole)


def as_user(user: int) -> tuple[str, ...]:
    """What goes before a command that another user is to run; nothing for root."""
    return ("setpriv", f"--reuid={user}", f"--regid={user}", "--clear-groups") if user else ()

"""How a program fared, and who it runs as."""

import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from cedos.errors import EmulationError

HalfWay = Callable[[], None]
"""Called once, in the middle of what is measured."""

_LOOK_S = 0.01
LIMIT_S = 90.0


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


def grown(
    process: "subprocess.Popen[bytes]",
    there: Callable[[], int],
    size: int,
    half_way: HalfWay | None,
    limit_s: float = LIMIT_S,
) -> list[float]:
    """When more came of the `size` bytes that a program writes, until it ends; monotonic, s.

    Args:
        there: how many bytes are there by now.
        half_way: called once after a third of them.
        limit_s: a program that takes longer is killed.
    """
    end_s = time.monotonic() + limit_s
    seen, arrivals, call = 0, [], half_way
    while process.poll() is None and time.monotonic() < end_s:
        if (now := there()) > seen:
            seen = now
            arrivals.append(time.monotonic())
            if call is not None and seen > 0.3 * size:
                call()
                call = None
        time.sleep(_LOOK_S)
    if process.poll() is None:
        process.kill()
    return arrivals

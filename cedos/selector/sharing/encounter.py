"""The time for which two moving hosts stay in range of each other (CBSP, equation 1)."""

import math
from typing import NamedTuple


class Relative(NamedTuple):
    """The helper's place and velocity as the requestor sees them: metres, metres a second."""

    dx: float
    dy: float
    rx: float
    ry: float


def encounter_s(of: Relative, range_m: float) -> float:
    """Return delta_i, seconds; 0 where they are out of range now, infinite where nothing moves.

    The paper's equation is the later root of |d + R t| = r. It has none, or a negative one, where the
    hosts are out of range and do not meet.
    """
    if math.hypot(of.dx, of.dy) > range_m:
        return 0.0
    speed2 = of.rx**2 + of.ry**2
    if speed2 == 0.0:
        return math.inf
    along = of.dx * of.rx + of.dy * of.ry
    across = of.dy * of.rx - of.dx * of.ry
    return (-along + math.sqrt(max(speed2 * range_m**2 - across**2, 0.0))) / speed2

"""When a link is out: a second in which next to nothing is carried."""

from emu.places.traces import Trace

DEAD_BPS = 1e5
"""A network that carries less for a second is out, as in a data set's `available`."""

_STEP_S = 0.1


def next_outage_s(trace: Trace, start_s: float, within_s: float) -> float | None:
    """Seconds from the start until a second begins in which next to nothing is carried; None: none.

    At least a second is looked at, at most `within_s`.
    """
    for step in range(round(max(within_s, 1.0) / _STEP_S) + 1):
        at_s = start_s + step * _STEP_S
        if trace.rate_bps(at_s, at_s + 1.0) < DEAD_BPS:
            return step * _STEP_S
    return None

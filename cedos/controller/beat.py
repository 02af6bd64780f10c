"""The beat of periodic work: equal intervals end at the same instants, so that an idle host wakes once.

`cedos.kernel.netlink` does the same for descriptors.
"""

import math
from typing import Final

# A beat comes this long after each full multiple of its interval, when data that others write each
# second are complete.
LATE_S: Final = 0.02


def next_beat_s(now_s: float, interval_s: float) -> float:
    """Return the next beat, which is later than now, however the division is rounded."""
    beat_s = (math.floor((now_s - LATE_S) / interval_s) + 1) * interval_s + LATE_S
    return beat_s if beat_s > now_s else beat_s + interval_s

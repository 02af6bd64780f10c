"""Where a short run is worth most: the moment at which a place's better network changes."""

import numpy as np

from emu.places.places import Place


def decisive_s(place: Place, duration_s: float) -> float:
    """Return the start (whole seconds) of a window of `duration_s` in which Wi-Fi matters and then fails.

    It maximises the mean Wi-Fi rate of the window's first third times how far the second half falls
    below it, where deep falls count most. 0 where the place is not longer than the window.
    """
    rates = place.wifi.down.bins(1.0)[: place.common_s]
    length = int(np.ceil(duration_s))
    third, half = max(1, length // 3), max(1, length // 2)
    best_s, best = 0, -np.inf
    for start in range(len(rates) - length + 1):
        window = rates[start : start + length]
        before = float(window[:third].mean())
        fall = np.clip(1.0 - window[-half:] / max(before, 1.0), 0.0, 1.0)
        worth = before * float((fall**4).mean())
        if worth > best:
            best_s, best = start, worth
    return float(best_s)

"""The fewest metered bytes with which a stream plays without a stall, if the future is known. Pure.

Exact for rates that are constant within a step: a metered byte is of use as late as it can come, for
then the store has the most room for unmetered ones. Backwards: what must be in store at the beginning
of each step, both networks taken together. Forwards: unmetered bytes as they come, metered ones only
where the next step's need is not there.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil


@dataclass(frozen=True, slots=True)
class Playback:
    """A stream of so many seconds at one rate; it is played `delay_s` after it was asked for.

    `piece_s`: it is cut, and of each piece nothing is played before all of it is there.
    """

    bitrate_bps: float
    seconds: float
    delay_s: float = 2.0
    store_bytes: float = 64e6
    piece_s: float = 0.0


def _due(playback: Playback, until_s: float) -> float:
    """Return the bytes that must have come by then."""
    seconds = min(max(until_s - playback.delay_s, 0.0), playback.seconds)
    if playback.piece_s:
        seconds = min(ceil(seconds / playback.piece_s) * playback.piece_s, playback.seconds)
    return playback.bitrate_bps / 8 * seconds


def least_metered_bytes(
    unmetered_bps: Sequence[float],
    metered_bps: Sequence[float],
    playback: Playback,
    step_s: float = 1.0,
) -> float | None:
    """Return the bytes; None if no plan plays it without a stall."""
    steps = len(unmetered_bps)
    whole = playback.bitrate_bps / 8 * playback.seconds
    played = [_due(playback, (n + 1) * step_s) - _due(playback, n * step_s) for n in range(steps)]
    need = [0.0] * (steps + 1)
    for n in reversed(range(steps)):
        come = (unmetered_bps[n] + metered_bps[n]) / 8 * step_s
        need[n] = max(need[n + 1] + played[n] - come, 0.0)
    stored = fetched = metered = 0.0
    for n in range(steps):
        room = playback.store_bytes + played[n] - stored
        free = min(unmetered_bps[n] / 8 * step_s, whole - fetched, max(room, 0.0))
        bought = min(max(need[n + 1] + played[n] - stored - free, 0.0), whole - fetched - free)
        if bought > metered_bps[n] / 8 * step_s + 1.0:
            return None
        fetched += free + bought
        stored += free + bought - played[n]
        metered += bought
    return metered

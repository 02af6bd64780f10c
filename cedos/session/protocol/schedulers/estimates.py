"""What a path costs a byte, from what is known of it; the same reading in all schedulers."""

from collections.abc import Sequence
from typing import Final

from cedos.session.protocol.schedulers.interface import PathDoubt, PathState

UNKNOWN_RTT_S: Final = 0.1
UNKNOWN_RATE_BPS: Final = 1e6
CHUNK_BYTES: Final = 16_384
"""Large data is cut into pieces of this size where it is spread over paths."""

_AHEAD_S: Final = 0.1  # docs/decisions/streams.md
_UNMEASURED_BPS: Final = 8e6  # too little would keep it from being measured
_QUEUED: Final = 1.25
"""A round trip of so many times the shortest one has a queue in it."""

_LEAST_AHEAD_BYTES: Final = 4 * CHUNK_BYTES


def rtt_s(path: PathState) -> float:
    """The round trip; a path that has not been measured is thought of as slow, but not hopeless."""
    return path.facts.rtt_s if path.facts.rtt_s is not None else UNKNOWN_RTT_S


def rate_bps(path: PathState) -> float:
    """What it carries; never zero.

    In slow start a rate is what was handed in a round trip ago: a path that is planned by that gets
    too little ever to show more. The kernel would send its window (docs/decisions/early-sizes.md).
    """
    facts = path.facts
    known = UNKNOWN_RATE_BPS if facts.rate_bps is None else facts.rate_bps
    return max(1e3, known, _window_bps(path))


def _window_bps(path: PathState) -> float:
    """What a path in slow start would send; 0 for others, and once its queue fills: that is all, then."""
    facts = path.facts
    if not facts.slow_start or not facts.window_bytes or not facts.rtt_s:
        return 0.0
    if facts.rtt_min_s is not None and facts.rtt_s > _QUEUED * facts.rtt_min_s:
        return 0.0
    return 8 * facts.window_bytes / facts.rtt_s


def queue_s(path: PathState) -> float:
    """How long this host's kernel needs for what it has not sent yet over the network."""
    return 8 * path.facts.unsent_bytes / rate_bps(path)


def latency_s(path: PathState) -> float:
    return rtt_s(path) + queue_s(path)


def allowed(paths: Sequence[PathState], rank: int) -> list[PathState]:
    """The paths that both ends let this label onto: of those the ones that are doubted least.

    Where all of them flap or are stalled, whatever else is relied on more will do. A label that is let
    onto none has none.
    """
    may = [path for path in paths if path.allowed >> rank & 1]
    if len(paths) < 2 or not may:
        return may
    doubt = min(path.facts.doubt for path in may)
    if doubt >= PathDoubt.FLAPS:
        least = min(path.facts.doubt for path in paths)
        if least < doubt:
            return [path for path in paths if path.facts.doubt is least]
    return [path for path in may if path.facts.doubt is doubt]


def quickest(paths: Sequence[PathState]) -> PathState:
    """The path of the lowest latency; the older one of equals."""
    return min(paths, key=lambda path: (latency_s(path), path.path_id))


def widest(paths: Sequence[PathState]) -> PathState:
    """The path of the highest rate; the one with the shorter round trip of equals."""
    return min(paths, key=lambda path: (-rate_bps(path), rtt_s(path), path.path_id))


def ahead_bytes(paths: Sequence[PathState], rank: int) -> int:
    """How much of a label has to wait so that neither its paths nor plans over them run dry."""
    rates = (
        max(each.facts.rate_bps or _UNMEASURED_BPS, _window_bps(each))
        for each in allowed(paths, rank)
    )
    return max(_LEAST_AHEAD_BYTES, int(sum(rates) / 8 * _AHEAD_S))

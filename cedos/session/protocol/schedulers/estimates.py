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
_LEAST_AHEAD_BYTES: Final = 4 * CHUNK_BYTES


def rtt_s(path: PathState) -> float:
    """The round trip; a path that has not been measured is thought of as slow, but not hopeless."""
    return path.facts.rtt_s if path.facts.rtt_s is not None else UNKNOWN_RTT_S


def rate_bps(path: PathState) -> float:
    """What it carries; never zero."""
    return max(1e3, path.facts.rate_bps if path.facts.rate_bps is not None else UNKNOWN_RATE_BPS)


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
    rates = (each.facts.rate_bps or _UNMEASURED_BPS for each in allowed(paths, rank))
    return max(_LEAST_AHEAD_BYTES, int(sum(rates) / 8 * _AHEAD_S))

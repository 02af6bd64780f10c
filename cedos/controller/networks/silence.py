"""Notice that a network is silent: nothing is heard from it although something is expected. Pure.

Pings notice that late: they are sent every now and then, and each has its time to be answered. A flow
that waits for data or for an acknowledgement notices it within a few round trips.
"""

import math
from collections import deque
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from cedos.controller.flows.living_flow import PathWait
from cedos.model import FlowKey

# The shortest silence that counts. A healthy network pauses too: a lost last packet is repeated
# after 0.2 s and a round trip.
PATIENCE_S = 0.35

# The patience in minimum round trips, plus one recent round trip. Where packets queue for longer,
# they arrive one after the other, or not at all.
_PATIENCE_RTTS = 3.0

_OWN_S = 0.1
# A path that waited this many round trips, and `_OWN_S`, when its network answered another flow
# waits for its own reason: its server thinks, or the data take another path.
_OWN_RTTS = 2.0

_REMEMBERED = 16
# Older pauses of a network may be those of another place.
_REMEMBERED_S = 600.0


class RoundTrips(NamedTuple):
    """A network's recent round trip, and the least of a longer time, s."""

    late_s: float
    least_s: float


_UNKNOWN = RoundTrips(0.0, 0.0)


class Due(NamedTuple):
    """For how long an answer has been due over a network, s, and whether transfers and pings wait."""

    silent_s: float
    transfers: bool
    pings: bool


class Silence:
    """The silences of all networks, by what their flows and pings say."""

    def __init__(self) -> None:
        self._heard_at_s: dict[str, float] = {}
        self._waiting_since_s: dict[FlowKey, float] = {}
        self._silent_since_s: dict[str, float] = {}
        self._ended: dict[str, deque[tuple[float, float]]] = {}

    def pauses(self, now_s: float) -> dict[str, tuple[float, ...]]:
        """Return how long each recent silence of a network lasted, s; the newest last."""
        found = {}
        for name, ended in self._ended.items():
            while ended and ended[0][0] < now_s - _REMEMBERED_S:
                ended.popleft()
            if ended:
                found[name] = tuple([lasted_s for _, lasted_s in ended])
        return found

    def check(
        self,
        paths: Iterable[PathWait],
        asked_at_s: Mapping[str, float],
        answered_at_s: Mapping[str, float],
        rtts_s: Mapping[str, RoundTrips],
        now_s: float,
    ) -> dict[str, Due]:
        """Return the networks that are silent now: for how long, and who waits.

        Args:
            paths: the open paths of living flows that lead beyond their router.
            asked_at_s: when the oldest pending ping was sent, by network.
            answered_at_s: when a round trip was last measured, by network.
            rtts_s: the round trips by network.
            now_s: the monotonic clock.
        """
        # Since when a flow that expects something now does so. That other flows did before says
        # nothing: a pause between two transfers is no silence.
        expecting_s: dict[str, float] = {}
        before_s, self._waiting_since_s = self._waiting_since_s, {}
        for key, network, heard_at_s, waits in paths:
            self._note_heard(network, heard_at_s)
            if not waits:
                continue
            since_s = self._waiting_since_s[key] = before_s.get(key, now_s)
            own_s = max(_OWN_S, _OWN_RTTS * rtts_s.get(network, _UNKNOWN).late_s)
            if answered_at_s.get(network, -math.inf) <= max(heard_at_s, since_s) + own_s:
                expecting_s[network] = min(since_s, expecting_s.get(network, since_s))
        for name, at_s in answered_at_s.items():
            self._note_heard(name, at_s)
        # A pending ping expects something, too.
        transfers = frozenset(expecting_s)
        pings = {n for n, at_s in asked_at_s.items() if at_s > self._heard_at_s.get(n, -math.inf)}
        for name in pings:
            expecting_s.setdefault(name, asked_at_s[name])
        found: dict[str, Due] = {}
        for name, since_s in expecting_s.items():
            silent_s = now_s - max(self._heard_at_s.get(name, -math.inf), since_s)
            trips = rtts_s.get(name, _UNKNOWN)
            if silent_s > max(PATIENCE_S, _PATIENCE_RTTS * trips.least_s, trips.late_s):
                found[name] = Due(silent_s, name in transfers, name in pings)
        self._remember({name: due.silent_s for name, due in found.items()}, now_s)
        return found

    def _remember(self, silent: Mapping[str, float], now_s: float) -> None:
        """Note the silences that have ended; a silence that no flow waits on any more is not known."""
        for name in self._silent_since_s.keys() - silent.keys():
            lasted_s = self._heard_at_s.get(name, -math.inf) - self._silent_since_s.pop(name)
            if lasted_s > PATIENCE_S:
                ended = self._ended.setdefault(name, deque(maxlen=_REMEMBERED))
                ended.append((now_s, lasted_s))
        for name, silent_s in silent.items():
            self._silent_since_s.setdefault(name, now_s - silent_s)

    def _note_heard(self, network: str, at_s: float) -> None:
        self._heard_at_s[network] = max(at_s, self._heard_at_s.get(network, -math.inf))

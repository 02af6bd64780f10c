"""Which networks have gone silent: nothing is heard of them although something is expected. Pure.

Pings alone tell it late: they go out every now and then, and each needs its time to be given up. A
flow that waits for data or for an acknowledgement tells it within a few round trips.
"""

import math
from collections import deque
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from cedos.daemon.flows.living_flow import LivingFlow
from cedos.model import FlowKey

PATIENCE_S = 0.35
"""Even a healthy network pauses: a lost last packet is sent again after 0.2 s and a round trip."""

_PATIENCE_RTTS = 3.0
"""So many of the least round trips are waited for, and one of those of late: where packets queue for
longer than on an empty path, they come one after the other all the time, or not at all."""

_OWN_S = 0.1
_OWN_RTTS = 2.0
"""A path that had waited for so long, and for so many round trips, when its network answered somebody
else waits for its own reasons: its server thinks, or the data take another path."""

_REMEMBERED = 16
_REMEMBERED_S = 600.0
"""A network's habits of so long ago were perhaps another place's."""


class RoundTrips(NamedTuple):
    """A network's round trip as it has been of late, and the least of a longer time, s."""

    late_s: float
    least_s: float


_UNKNOWN = RoundTrips(0.0, 0.0)


class Silence:
    """Joins what flows and pings say about each network."""

    def __init__(self) -> None:
        self._heard_at_s: dict[str, float] = {}
        self._waiting_since_s: dict[FlowKey, float] = {}
        self._silent_since_s: dict[str, float] = {}
        self._over: dict[str, deque[tuple[float, float]]] = {}

    def pauses(self, now_s: float) -> dict[str, tuple[float, ...]]:
        """For how long each network was silent each time of late, s; the newest last."""
        found = {}
        for name, over in self._over.items():
            while over and over[0][0] < now_s - _REMEMBERED_S:
                over.popleft()
            if over:
                found[name] = tuple([lasted_s for _, lasted_s in over])
        return found

    def check(
        self,
        flows: Iterable[LivingFlow],
        asked_at_s: Mapping[str, float],
        answered_at_s: Mapping[str, float],
        rtts_s: Mapping[str, RoundTrips],
        now_s: float,
    ) -> dict[str, float]:
        """The networks that are silent now, and for how long (seconds).

        `asked_at_s`: when the oldest ping that is still unanswered was sent, by network.
        `answered_at_s`: when a round trip was last measured, by network.
        """
        # Since when somebody who expects something now does. (That others did before says nothing: a
        # pause between two transfers is no silence.)
        expecting_s: dict[str, float] = {}
        before_s, self._waiting_since_s = self._waiting_since_s, {}
        for flow in flows:
            for path in flow.paths.values():
                if path.network is None or path.sample is None or path.closed is not None:
                    continue
                if path.near:  # it says nothing of what is behind the router
                    continue
                heard_at_s = path.sample.at_s - path.heard_s
                self._heard(path.network, heard_at_s)
                if not flow.waits_on(path):
                    continue
                since_s = self._waiting_since_s[path.key] = before_s.get(path.key, now_s)
                own_s = max(_OWN_S, _OWN_RTTS * rtts_s.get(path.network, _UNKNOWN).late_s)
                answered_s = answered_at_s.get(path.network, -math.inf)
                if answered_s <= max(heard_at_s, since_s) + own_s:
                    since_s = min(since_s, expecting_s.get(path.network, since_s))
                    expecting_s[path.network] = since_s
        for name, at_s in answered_at_s.items():
            self._heard(name, at_s)
        for name, at_s in asked_at_s.items():
            if at_s > self._heard_at_s.get(name, -math.inf):
                expecting_s.setdefault(name, at_s)
        found = {}
        for name, since_s in expecting_s.items():
            silent_s = now_s - max(self._heard_at_s.get(name, -math.inf), since_s)
            trips = rtts_s.get(name, _UNKNOWN)
            if silent_s > max(PATIENCE_S, _PATIENCE_RTTS * trips.least_s, trips.late_s):
                found[name] = silent_s
        self._remember(found, now_s)
        return found

    def _remember(self, silent: Mapping[str, float], now_s: float) -> None:
        """Notes the silences that are over: of those that nobody waits for any more it is not known."""
        for name in self._silent_since_s.keys() - silent.keys():
            lasted_s = self._heard_at_s.get(name, -math.inf) - self._silent_since_s.pop(name)
            if lasted_s > PATIENCE_S:
                over = self._over.setdefault(name, deque(maxlen=_REMEMBERED))
                over.append((now_s, lasted_s))
        for name, silent_s in silent.items():
            self._silent_since_s.setdefault(name, now_s - silent_s)

    def _heard(self, network: str, at_s: float) -> None:
        self._heard_at_s[network] = max(at_s, self._heard_at_s.get(network, -math.inf))

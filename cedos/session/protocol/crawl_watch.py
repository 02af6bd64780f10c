"""Whether a path has become so slow that what is on the way there gets elsewhere sooner. Pure.

A Wi-Fi that fades does not fall silent: acknowledgements go on, at a hundredth of the rate, and what was
handed to it before would be waited for (docs/decisions/silences.md).
"""

from collections import deque
from typing import Final

_OVER_S: Final = 0.4
"""A rate is that of so long at most,"""
_LEAST_OVER_S: Final = 0.25
"""and of so long at least: acknowledgements come in bursts. Both are so many round trips at least,"""
_OVER_ROUND_TRIPS: Final = 2.0
"""as the first acknowledgement of what is sent takes one."""
_LEAST_S: Final = 0.5
"""What is here within this is waited for."""
_TIMES_ELSEWHERE: Final = 3.0
_SLOWER: Final = 4.0
"""Than it was: a path that was never faster is planned by its rate, and has as much as that carries."""
_FORGETS_S: Final = 10.0
"""The rate that it had counts half after so long."""


class CrawlWatch:
    """Of one path, while something is on the way there.

    Attributes:
        crawls: since it was noticed, and until what was on the way has arrived.
    """

    __slots__ = ("_acknowledged", "_had_bps", "_had_s", "crawls")

    def __init__(self) -> None:
        self.crawls = False
        self._acknowledged: deque[tuple[float, int]] = deque()
        self._had_bps = 0.0
        self._had_s = 0.0

    def observe(
        self,
        acknowledged_bytes: int,
        on_way_bytes: int,
        elsewhere_s: float,
        rtt_min_s: float,
        now: float,
    ) -> bool:
        """Looks again; whether it has just begun to crawl.

        `on_way_bytes`: handed to the path and not acknowledged; `elsewhere_s`: in so long all of that
        could be there over another path, infinite without one; `rtt_min_s`: the path's, 0 unknown.
        """
        if not on_way_bytes:
            self.rests()
            return False
        seen = self._acknowledged
        seen.append((now, acknowledged_bytes))
        least_s = _OVER_ROUND_TRIPS * rtt_min_s
        while len(seen) > 2 and seen[1][0] <= now - max(_OVER_S, least_s):
            seen.popleft()
        over_s = now - seen[0][0]
        came_bytes = acknowledged_bytes - seen[0][1]
        if over_s < max(_LEAST_OVER_S, least_s) or not came_bytes:
            return False  # that nothing comes at all is silence (`path_watch`)
        rate_bps = 8 * came_bytes / over_s
        had_bps = self._had_bps * 0.5 ** ((now - self._had_s) / _FORGETS_S)
        needs_s = 8 * on_way_bytes / rate_bps
        if self.crawls:
            self.crawls = needs_s > _LEAST_S / 2
            if not self.crawls:
                self._had_bps, self._had_s = rate_bps, now
            return False
        slower = rate_bps * _SLOWER < had_bps
        self.crawls = slower and needs_s > max(_LEAST_S, _TIMES_ELSEWHERE * elsewhere_s)
        if rate_bps > had_bps:
            self._had_bps, self._had_s = rate_bps, now
        return self.crawls

    def rests(self) -> None:
        """Nothing is on the way, or nothing of it gets through: a rate begins anew."""
        self._acknowledged.clear()
        self.crawls = False

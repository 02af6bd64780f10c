"""The detector of stalled paths: it runs `protocol.path_watch` while data waits for acknowledgements."""

import asyncio
from collections import defaultdict
from collections.abc import Callable, Mapping
from typing import Final

from cedos.session.io.dialler import Dialler
from cedos.session.io.driver import Driver
from cedos.session.io.path import SILENCE_S, SessionPath
from cedos.session.protocol.path_watch import CrawlWatch, PathProgress, PathVoice, PathWatch
from cedos.session.protocol.session import Session

_CHECK_S: Final = 0.250
_CHECK_SEVERAL_S: Final = 0.050  # where data can go elsewhere
_LEAST_CHECK_S: Final = 0.001
# After this many times the limit of a silence, another connection is tried beside the silent one. On a
# link that is merely full that happens to many connections, so it must not end one that gets through.
_DEAD_FACTOR: Final = 3.0
# The session's deadline counts from the last record while data waits, and not from the kernel's own end
# half a minute later. But a network that retransmits for less than this may come back.
_LEAST_DEADLINE_S: Final = 3.0


class StallDetector:
    """The checks of a session's paths while data waits there to be acknowledged.

    With a dialler, another connection is tried beside a path that is silent. `pauses` is called with a
    path that begins to pause, and the seconds of the pause so far. `timer` is that of the next check;
    None: nothing waits.
    """

    __slots__ = (
        "_core", "_crawls", "_dialler", "_driver", "_paths", "_pauses", "_probed", "_pump", "_watches",
        "timer",
    )  # fmt: skip

    def __init__(
        self,
        driver: Driver,
        core: Session,
        paths: Mapping[int, SessionPath],
        dialler: Dialler | None,
        pump: Callable[[], None],
        pauses: Callable[[SessionPath, float], None],
    ) -> None:
        self._driver, self._core, self._paths = driver, core, paths
        self._dialler, self._pump, self._pauses = dialler, pump, pauses
        self._probed: set[int] = set()  # paths silent for so long that another connection is tried
        self._watches: defaultdict[int, PathWatch] = defaultdict(PathWatch)
        self._crawls: defaultdict[int, CrawlWatch] = defaultdict(CrawlWatch)
        self.timer: asyncio.TimerHandle | None = None

    def begin(self) -> None:
        """Begin to check, if there can be another path, or if the deadline is before TCP's own end."""
        if self._dialler or len(self._paths) > 1 or self._deadline_s < SILENCE_S:
            now = self._driver.now()
            for path in list(self._paths.values()):
                # A silence counts from now, and not from the first check of the timer.
                if path.facts.stalled_at_s is None:
                    self._check_path(path, now)
            self._check_later()

    def end(self) -> None:
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None

    def on_heard(self, path: SessionPath) -> None:
        """Check whether the data of a silent path that speaks again has arrived as well."""
        self._check_path(path, self._driver.now())

    def _check_later(self) -> None:
        every_s = _CHECK_S
        if len(self._paths) > 1:
            # The next check is at the moment at which the first path would count as silent.
            due_s = [each.due_s for each in self._watches.values() if each.due_s > 0.0]
            every_s = min([_CHECK_SEVERAL_S, *due_s])
            every_s = max(every_s, _LEAST_CHECK_S)
        self.timer = self._driver.loop.call_later(every_s, self._check)

    def _check(self) -> None:
        self.timer = None
        now = self._driver.now()
        # Forget paths that are gone.
        self._probed &= self._paths.keys()
        for gone in self._watches.keys() - self._paths.keys():
            del self._watches[gone]
            self._crawls.pop(gone, None)
        waiting = [self._check_path(path, now) for path in list(self._paths.values())]
        # The keep-alive is also the time for which the peer may be silent on all paths.
        if self._paths and all(self._overdue(path, now) for path in self._paths.values()):
            for path in list(self._paths.values()):
                path.close("nothing was heard until the deadline", reset=True)
            return
        if any(waiting):
            self._check_later()
            self._pump()

    def _check_path(self, path: SessionPath, now: float) -> bool:
        """Check a path; return whether data waits there."""
        path.estimator.poll(path.connection, now, at_once=True)
        info = path.estimator.info
        if info is None:
            return False
        watch, crawl = self._watches[path.path_id], self._crawls[path.path_id]
        # 1. Is the path silent, by the kernel's counters?
        waits = info.waits
        voice = watch.observe(
            PathProgress(
                waits,
                info.delivered_segments,
                now - info.acknowledged_idle_s,
                info.rtt_s,
                info.rtt_min_s,
                info.repeated_segments,
                now - info.receive_idle_s,
            ),
            now,
        )
        # 2. Does it crawl? Only the rate of a path that speaks says so.
        if voice is PathVoice.SILENT:
            crawl.rests()
        else:
            on_way_bytes = info.in_flight_bytes + info.unsent_bytes
            elsewhere_s = self._elsewhere_s(path, on_way_bytes)
            # Bytes in order come in one piece once a hole is filled, and would be taken for a high rate.
            if crawl.observe(
                info.delivered_segments * info.segment_bytes,
                on_way_bytes,
                elsewhere_s,
                info.rtt_min_s or 0.0,
                now,
            ):
                voice = PathVoice.CRAWLS
        # 3. Tell the session. It sends data in flight on a silent or crawling path again.
        changed = self._core.path_voice(path.path_id, voice, now)
        if changed and voice is PathVoice.PAUSES:
            self._pauses(path, watch.silent_s)
        # 4. Dial beside a path that is silent for so long that its connection may be dead.
        if voice is PathVoice.SILENT:
            if watch.silent_s > _DEAD_FACTOR * watch.limit_s and info.retries > 1:
                self._probed.add(path.path_id)
                if self._dialler is not None:
                    self._dialler.probe(path)
        elif voice is PathVoice.SPEAKS and path.path_id in self._probed:
            self._probed.discard(path.path_id)
            if self._dialler is not None:
                self._dialler.end_probe(path)
        return waits or info.unsent_bytes > 0

    def _elsewhere_s(self, path: SessionPath, size_bytes: int) -> float:
        """Return how soon another path, neither silent nor slow, could deliver as much."""
        found = float("inf")
        for other in self._paths.values():
            info = other.estimator.info
            slow = other.facts.stalled_at_s is not None or other.facts.crawls
            if other is not path and not slow and info is not None and other.facts.rate_bps:
                whole_bytes = info.in_flight_bytes + info.unsent_bytes + size_bytes
                found = min(found, 8 * whole_bytes / other.facts.rate_bps)
        return found

    @property
    def _deadline_s(self) -> float:
        """Return how long the session lives without a network, or infinity."""
        return max(_LEAST_DEADLINE_S, self._core.control.terms.seconds or float("inf"))

    def _overdue(self, path: SessionPath, now: float) -> bool:
        """Return whether data there has waited for the peer until the deadline."""
        since_s, info = path.facts.stalled_at_s, path.estimator.info
        if since_s is None or info is None or not info.retries:
            return False
        return min(now - since_s, info.acknowledged_idle_s) >= self._deadline_s

"""Notices paths on which nothing is acknowledged any more, as long as something is sent there."""

import asyncio
from collections.abc import Callable, Mapping
from typing import Final

from cedos.kernel import tcp_info
from cedos.session.io.dialler import Dialler
from cedos.session.io.driver import Driver
from cedos.session.io.path import SILENCE_S, SessionPath
from cedos.session.protocol.session import Session

_CHECK_S: Final = 0.250
# So long without an acknowledgement although the kernel has repeated itself: what is on the way there
# goes over another path as well. Three times as long: another connection is tried beside it. On a link
# that is merely full, both happen to many connections, so neither may end one that still gets through.
# A deadline, though, counts from the last word heard while something waits to be acknowledged, not from
# the kernel's giving up half a minute later.
_SILENT_S: Final = 0.400
_SILENT_RTTS: Final = 3.0
_DEAD_FACTOR: Final = 3.0
_LEAST_DEADLINE_S: Final = 3.0  # a link that repeats itself for less than this is no link lost


class StallDetector:
    """Checks a session's paths four times a second while something waits there to be acknowledged.

    With a dialler, another connection is tried beside a path that is silent. `timer` is that of the next
    check; None while nothing waits.
    """

    __slots__ = ("_core", "_dialler", "_driver", "_paths", "_probed", "_pump", "timer")

    def __init__(
        self,
        driver: Driver,
        core: Session,
        paths: Mapping[int, SessionPath],
        dialler: Dialler | None,
        pump: Callable[[], None],
    ) -> None:
        self._driver, self._core, self._paths = driver, core, paths
        self._dialler, self._pump = dialler, pump
        self._probed: set[int] = set()  # paths silent for so long that another connection is tried
        self.timer: asyncio.TimerHandle | None = None

    def begin(self) -> None:
        """Checks, where there is or can be another path, or the deadline comes before TCP gives up."""
        if self._dialler or len(self._paths) > 1 or self._deadline_s < SILENCE_S:
            self._check_later()

    def end(self) -> None:
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None

    def progressed(self, path: SessionPath) -> None:
        """Something came over a path, or was acknowledged there."""
        path.facts.stalled_at_s = None
        if path.path_id in self._probed:
            self._probed.discard(path.path_id)
            if self._dialler is not None:
                self._dialler.end_probe(path)

    def _check_later(self) -> None:
        self.timer = self._driver.loop.call_later(_CHECK_S, self._check)

    def _check(self) -> None:
        self.timer = None
        now = self._driver.now()
        self._probed &= self._paths.keys()
        waiting = False
        for path in list(self._paths.values()):
            if tcp_info.unacknowledged_bytes(path.connection):
                waiting = True
                self._check_path(path, now)
            else:
                self.progressed(path)
        if self._paths and all(self._overdue(path, now) for path in self._paths.values()):
            for path in list(self._paths.values()):
                path.close("nothing was heard until the deadline", reset=True)
            return
        if waiting:
            self._check_later()
            self._pump()

    def _check_path(self, path: SessionPath, now: float) -> None:
        path.estimator.poll(path.connection, now, at_once=True)
        info = path.estimator.info
        if info is None:
            return
        since_s = path.facts.stalled_at_s
        if since_s is not None and now - info.acknowledged_idle_s > since_s:
            self.progressed(path)
        if not info.retransmits:
            return
        limit_s = max(_SILENT_S, _SILENT_RTTS * (path.facts.rtt_s or 0.0))
        if info.acknowledged_idle_s > limit_s:
            self._stalled(path, now)
        if info.acknowledged_idle_s > _DEAD_FACTOR * limit_s and info.retransmits > 1:
            self._probed.add(path.path_id)
            if self._dialler is not None:
                self._dialler.probe(path)

    @property
    def _deadline_s(self) -> float:
        """How long the session lives without a network; infinite where it ends with its last path."""
        return max(_LEAST_DEADLINE_S, self._core.control.terms.seconds or float("inf"))

    def _overdue(self, path: SessionPath, now: float) -> bool:
        """Whether what waits there has been waiting for the peer's word until the deadline."""
        since_s, info = path.facts.stalled_at_s, path.estimator.info
        if since_s is None or info is None or not info.retransmits:
            return False
        return min(now - since_s, info.acknowledged_idle_s) >= self._deadline_s

    def _stalled(self, path: SessionPath, now: float) -> None:
        if path.facts.stalled_at_s is None:
            path.facts.stalled_at_s = now
            if len(self._paths) > 1:
                # The others may send what is lost there; it comes twice if it was not lost.
                self._core.requeue(path.path_id, now)

"""Notices paths on which nothing is acknowledged any more, as long as something is sent there."""

import asyncio
from typing import TYPE_CHECKING, Final

from cedos.kernel import tcp_info
from cedos.session.io.path import SILENCE_S, Path

if TYPE_CHECKING:
    from cedos.session.io.flow import Flow

_LOOK_S: Final = 0.250
# So long without an acknowledgement although the kernel has repeated itself: what is on the way there
# goes over another path as well. Three times as long: another connection is tried beside it. On a link
# that is merely full, both happen to many connections, so neither may end one that still gets through.
# A deadline, though, counts from the last word heard while something waits to be acknowledged, not from
# the kernel's giving up half a minute later.
_SILENT_S: Final = 0.400
_SILENT_RTTS: Final = 3.0
_DEAD_FACTOR: Final = 3.0
_LEAST_DEADLINE_S: Final = 3.0  # a link that repeats itself for less than this is no link lost


class Vigil:
    """Looks at a flow's paths four times a second while something waits there to be acknowledged.

    Attributes:
        timer: of the next look; None while nobody looks.
    """

    __slots__ = ("_flow", "timer")

    def __init__(self, flow: "Flow") -> None:
        self._flow = flow
        self.timer: asyncio.TimerHandle | None = None

    def begin(self) -> None:
        """Looks, where there is or can be another path, or the deadline comes before TCP gives up."""
        flow = self._flow
        if flow.dialler or len(flow.paths) > 1 or self._deadline_s < SILENCE_S:
            self._look_later()

    def end(self) -> None:
        """Looks no more."""
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None

    def speaks(self, path: Path) -> None:
        """Something came over a path, or was acknowledged there."""
        path.facts.stalled_at_s = None
        if path.probed:
            path.probed = False
            if self._flow.dialler is not None:
                self._flow.dialler.probe_no_more(path)

    def _look_later(self) -> None:
        self.timer = self._flow.driver.loop.call_later(_LOOK_S, self._look)

    def _look(self) -> None:
        self.timer = None
        flow = self._flow
        now = flow.driver.now()
        waiting = False
        for path in list(flow.paths.values()):
            if tcp_info.unacknowledged_bytes(path.connection):
                waiting = True
                self._look_at(path, now)
            else:
                self.speaks(path)
        if flow.paths and all(self._overdue(path, now) for path in flow.paths.values()):
            for path in list(flow.paths.values()):
                path.close("nothing was heard until the deadline", reset=True)
            return
        if waiting:
            self._look_later()
            flow.pump()

    def _look_at(self, path: Path, now: float) -> None:
        path.scout.look(path.connection, now, at_once=True)
        info = path.scout.info
        if info is None:
            return
        since_s = path.facts.stalled_at_s
        if since_s is not None and now - info.acknowledged_idle_s > since_s:
            self.speaks(path)
        if not info.retransmits:
            return
        limit_s = max(_SILENT_S, _SILENT_RTTS * (path.facts.rtt_s or 0.0))
        if info.acknowledged_idle_s > limit_s:
            self._silent(path, now)
        if info.acknowledged_idle_s > _DEAD_FACTOR * limit_s and info.retransmits > 1:
            path.probed = True
            if self._flow.dialler is not None:
                self._flow.dialler.probe(path)

    @property
    def _deadline_s(self) -> float:
        """How long the session lives without a network; infinite where it ends with its last path."""
        return max(_LEAST_DEADLINE_S, self._flow.core.control.terms.seconds or float("inf"))

    def _overdue(self, path: Path, now: float) -> bool:
        """Whether what waits there has been waiting for the peer's word until the deadline."""
        since_s, info = path.facts.stalled_at_s, path.scout.info
        if since_s is None or info is None or not info.retransmits:
            return False
        return min(now - since_s, info.acknowledged_idle_s) >= self._deadline_s

    def _silent(self, path: Path, now: float) -> None:
        if path.facts.stalled_at_s is None:
            path.facts.stalled_at_s = now
            if len(self._flow.paths) > 1:
                # The others may send what is lost there; it comes twice if it was not lost.
                self._flow.core.requeue(path.path_id, now)

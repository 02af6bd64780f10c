"""The dialling end: a connection over every way there is, at once when a way appears.

Networks that come are told by the kernel; a network that carries nothing, though its link is up, is
tried again (`Trial`) with a SYN every second, later less often. A connection that was had after all is
worth more than the reason why the one before it was lost.
"""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from cedos.errors import CedosError, ProtocolError
from cedos.session.io.connect_attempts import Connected, Endpoint, Trial
from cedos.session.io.links import Way
from cedos.session.io.networks import kind_of
from cedos.session.io.path import Path
from cedos.session.protocol.channel.channel import Channel
from cedos.session.protocol.handshake.outcome import ConnectionKind, Failure, FailureKind
from cedos.session.protocol.schedulers.interface import PathFacts

if TYPE_CHECKING:
    from cedos.session.io.driver import Driver
    from cedos.session.io.flow import Flow

_EXCLUSIVE_S: Final = 2.0


class Dialler:
    """Keeps a flow connected over all its ways.

    Args:
        driver: of this loop.
        flow: gets the paths; tells when one is lost.
        endpoints: where the server may be; replaced by `moved`.
        channel: makes the channel of a connection: `ConnectionKind.NEW` for the flow's first.
        failed: the flow cannot go on: the server's own, authenticated word, or another key.
        permitted: whether an interface may be used now; asked again by `look`.
    """

    def __init__(
        self,
        driver: "Driver",
        flow: "Flow",
        endpoints: Sequence[Endpoint],
        channel: Callable[[ConnectionKind], Channel],
        failed: Callable[[Failure], None],
        permitted: Callable[[str], bool] = lambda _interface: True,
    ) -> None:
        self._driver = driver
        self._flow = flow
        self.endpoints = list(endpoints)
        self._channel = channel
        self._failed = failed
        self._permitted = permitted
        self._trials: dict[str, Trial] = {}
        self._ready: list[Connected] = []
        self._exclusive: Path | None = None
        self._shaking: dict[int, Path] = {}
        self._timer: asyncio.TimerHandle | None = None
        self.not_before_s = 0.0
        self._closed = False
        self.last_why, self.last_code = "", 0  # of what did not succeed; the code is an errno
        self.lost_names: Callable[[], None] | None = None

    def start(self) -> None:
        """Begins to dial."""
        self._driver.watch(self)
        self.look()

    def moved(self, endpoints: Sequence[Endpoint]) -> None:
        """The server is (also) somewhere else now."""
        if list(endpoints) != self.endpoints:
            self.endpoints = list(endpoints)
            self.look()

    def look(self) -> None:
        """The ways may have changed: ends what lost its way, dials over new ones."""
        if self._closed:
            return
        ways = self._ways()
        for path in [*self._flow.paths.values(), *self._shaking.values()]:
            if not self._stands(path, ways):
                path.close("its network is gone", reset=True)
        for waiting in [each for each in self._ready if each.way.interface not in ways]:
            self._ready.remove(waiting)
            waiting.connection.close()
        for name in [name for name in self._trials if name not in ways]:
            self._trials.pop(name).end()
        for name, (way, endpoints) in ways.items():
            trial = self._trials.get(name)
            if trial is None or trial.way.addresses != way.addresses:
                if trial is not None:
                    trial.end()
                trial = self._trials[name] = Trial(self._driver, self, way)
            trial.way, trial.endpoints = way, endpoints
            if self.wanted(name):
                trial.hasten()
                trial.begin()
        self._advance()

    def slept(self) -> None:
        """The host slept: whatever was connected is not any more, in all likelihood."""
        for path in list(self._flow.paths.values()):
            path.close("this host slept", reset=True)
        self.look()

    def probe(self, path: Path) -> None:
        """A path is silent: see whether another connection over the same way gets through."""
        trial = self._trials.get(path.way)
        if trial is not None and not trial.probing and not self._closed:
            trial.probe()

    def probe_no_more(self, path: Path) -> None:
        """It speaks again: whatever was tried beside it is not needed."""
        trial = self._trials.get(path.way)
        if trial is not None and trial.probing:
            trial.calm()
        for waiting in [each for each in self._ready if each.way.interface == path.way]:
            self._ready.remove(waiting)
            waiting.connection.close()
        for other in [each for each in self._shaking.values() if each.way == path.way]:
            other.close("not needed any more", reset=True)

    def lost(self, path: Path) -> None:
        """The flow lost a path; dials again."""
        trial = self._trials.get(path.way)
        if trial is not None:
            trial.anew()
        if not self._closed:
            self.look()

    def _ways(self) -> dict[str, tuple[Way, list[Endpoint]]]:
        ways: dict[str, tuple[Way, list[Endpoint]]] = {}
        for endpoint in self.endpoints:
            for way in self._driver.links.ways(endpoint[0]):
                if self._permitted(way.interface):
                    ways.setdefault(way.interface, (way, []))[1].append(endpoint)
        return ways

    @staticmethod
    def _stands(path: Path, ways: dict[str, tuple[Way, list[Endpoint]]]) -> bool:
        if path.way not in ways:
            return False
        addresses = ways[path.way][0].addresses
        own = path.own_address().partition("%")[0]
        # The host's own addresses are all on the loopback's way, but only 127.0.0.1 is its own.
        return own in addresses or path.way == "lo"

    def wanted(self, interface: str) -> bool:
        """Whether there is no connection over this interface yet."""
        return not any(
            path.way == interface for path in [*self._flow.paths.values(), *self._shaking.values()]
        ) and not any(each.way.interface == interface for each in self._ready)

    def connected(self, made: Connected) -> None:
        """A way has a TCP connection: its handshake is next."""
        self._ready.append(made)
        self._advance()

    def complain(self, why: str, code: int = 0) -> None:
        """Something did not succeed."""
        self.last_why, self.last_code = why, code

    def looks_lost(self) -> None:
        """Several tries had no answer: the server's name may stand for other addresses by now."""
        if self.lost_names is not None:
            self.lost_names()

    def _advance(self) -> None:
        """Begins handshakes: one alone while the flow has no path, then all that are ready."""
        while self._ready and not self._closed:
            open_paths = [p for p in self._flow.paths.values() if p.facts.stalled_at_s is None]
            if not open_paths and self._exclusive is not None:
                return
            attempt = self._ready.pop(0)
            kind = ConnectionKind.NEW if self._flow.credentials is None else ConnectionKind.RESUME
            if open_paths:
                kind = ConnectionKind.JOIN
            name = attempt.way.interface
            facts = PathFacts(network=name, kind=kind_of(name))
            facts.metered = facts.kind.value == "cellular"
            try:
                path = Path(
                    self._driver,
                    attempt.connection,
                    self._channel(kind),
                    self,
                    facts,
                    way=name,
                    index=attempt.way.index,
                    peer=attempt.endpoint[0],
                )
            except CedosError:
                attempt.connection.close()
                raise
            path.known = self._flow.core.positions()
            self._shaking[path.path_id] = path
            if kind is not ConnectionKind.JOIN:
                self._exclusive = path
                self._arm(_EXCLUSIVE_S, self._hurry)
            path.start()

    def _hurry(self) -> None:
        """The one handshake does not get on while another connection is ready: its turn."""
        if self._exclusive is None:
            return
        if self._ready:
            self._exclusive.close("no answer to the handshake", reset=True)
            return
        expires_at = self._exclusive.channel.expires_at
        if expires_at is not None and self._driver.now() > expires_at:
            self._exclusive.channel.expire()
            self._exclusive.close("no answer to the handshake", reset=True)
        else:
            self._arm(_EXCLUSIVE_S, self._hurry)

    def _arm(self, seconds: float, then: Callable[[], None]) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._driver.loop.call_later(seconds, then)

    def path_opened(self, path: Path) -> None:
        """A handshake is done: the flow has one more path."""
        self._shaking.pop(path.path_id, None)
        if self._exclusive is path:
            self._exclusive = None
        trial = self._trials.get(path.way)
        if trial is not None:
            trial.calm()
        self._flow.adopt(path)
        self._advance()

    def path_confirmed(self, path: Path) -> None:
        """The dialling end confirms at once."""

    def path_received(self, path: Path) -> None:
        """Only adopted paths have records."""

    def path_wrong(self, path: Path, error: ProtocolError) -> None:
        """Only adopted paths have records."""

    def path_lost(self, path: Path, why: str) -> None:
        """A connection broke in its handshake, or the server refuses."""
        self._shaking.pop(path.path_id, None)
        if self._exclusive is path:
            self._exclusive = None
        failure = path.channel.failure
        if failure is not None:
            ended = failure.authenticated and failure.kind in (
                FailureKind.LOST_STATE,
                FailureKind.REFUSED,
            )
            never_was = self._flow.credentials is None and failure.kind in (
                FailureKind.WRONG_KEY,
                FailureKind.VERSION,
            )
            if (ended and not failure.retry_after_s) or never_was:
                self._failed(failure)
                return
            if failure.retry_after_s:
                self.not_before_s = self._driver.now() + min(failure.retry_after_s, 60.0)
        self.complain(f"{path.peer} over {path.way}: {why}")
        if not self._closed:
            trial = self._trials.get(path.way)
            if trial is not None and self.wanted(path.way):
                trial.begin()
            self._advance()

    def close(self) -> None:
        """Dials no more; the flow's paths are its own business."""
        if self._closed:
            return
        self._closed = True
        self._driver.unwatch(self)
        if self._timer is not None:
            self._timer.cancel()
        for trial in self._trials.values():
            trial.end()
        for attempt in self._ready:
            attempt.connection.close()
        for path in list(self._shaking.values()):
            with suppress(OSError):
                path.close("no longer wanted")

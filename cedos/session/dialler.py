"""The dialling end: a connection over every way there is, at once when a way appears.

Networks that come are told by the kernel; a network that carries nothing, though its link is up, is
tried again with a SYN every second, later less often. A connection that was had after all is worth more
than the reason why the one before it was lost.
"""

import asyncio
import errno
import os
import socket
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from ipaddress import ip_address
from typing import TYPE_CHECKING, Final

from cedos.errors import CedosError, ProtocolError
from cedos.session.channel import Channel
from cedos.session.handshake.outcome import Failure, FailureKind, Kind
from cedos.session.links import Way
from cedos.session.networks import kind_of
from cedos.session.path import Path, prepare
from cedos.session.scheduling import Facts

if TYPE_CHECKING:
    from cedos.session.driver import Driver
    from cedos.session.flow import Flow

Endpoint = tuple[str, int]
"""An address (IPv4 or IPv6, no name) and a port."""

# A SYN that is not answered is not repeated by the kernel before a second has passed, and then ever more
# rarely; so we begin anew beside it. The first tries of a way are frequent, for a network that has just
# come takes a moment to carry anything.
_PAUSES_S: Final = (0.1, 0.2, 0.4, *((1.0,) * 60), *((3.0,) * 60))
_LAST_PAUSE_S: Final = 10.0
_AT_ONCE: Final = 3  # unanswered tries of one way: a round trip may be longer than a pause
_EXCLUSIVE_S: Final = 2.0
_HASTE_S: Final = 0.010
# The other end of a link that has just come up need not hear at once. Its hardware address is asked for
# first, and that question the kernel repeats after a second only, whatever is tried meanwhile.
_SETTLE_S: Final = 0.020


@dataclass(slots=True)
class _Try:
    """One TCP connection that is not there yet."""

    way: Way
    endpoint: Endpoint
    connection: socket.socket


@dataclass(slots=True)
class _Trial:
    """What is going on over one way."""

    way: Way
    endpoints: list[Endpoint] = field(default_factory=list)
    tries: list[_Try] = field(default_factory=list)
    count: int = 0
    timer: asyncio.TimerHandle | None = None
    probing: bool = False
    tried_s: float = 0.0


class Dialler:
    """Keeps a flow connected over all its ways.

    Args:
        driver: of this loop.
        flow: gets the paths; tells when one is lost.
        endpoints: where the server may be; replaced by `moved`.
        channel: makes the channel of a connection: `Kind.NEW` for the flow's first.
        failed: the flow cannot go on: the server's own, authenticated word, or another key.
        permitted: whether an interface may be used now; asked again by `look`.
    """

    def __init__(
        self,
        driver: "Driver",
        flow: "Flow",
        endpoints: Sequence[Endpoint],
        channel: Callable[[Kind], Channel],
        failed: Callable[[Failure], None],
        permitted: Callable[[str], bool] = lambda _interface: True,
    ) -> None:
        self._driver = driver
        self._flow = flow
        self.endpoints = list(endpoints)
        self._channel = channel
        self._failed = failed
        self._permitted = permitted
        self._trials: dict[str, _Trial] = {}
        self._ready: list[_Try] = []
        self._exclusive: Path | None = None
        self._shaking: dict[int, Path] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._not_before_s = 0.0
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
            self._end_trial(self._trials.pop(name))
        for name, (way, endpoints) in ways.items():
            trial = self._trials.get(name)
            if trial is None or trial.way.addresses != way.addresses:
                if trial is not None:
                    self._end_trial(trial)
                trial = self._trials[name] = _Trial(way)
            trial.way, trial.endpoints = way, endpoints
            if self._wanted(name):
                self._hasten(trial)
                self._begin(trial)
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
            trial.probing = True
            trial.count = 3  # once a second
            self._begin(trial)

    def probe_no_more(self, path: Path) -> None:
        """It speaks again: whatever was tried beside it is not needed."""
        trial = self._trials.get(path.way)
        if trial is not None and trial.probing:
            self._calm(trial)
        for waiting in [each for each in self._ready if each.way.interface == path.way]:
            self._ready.remove(waiting)
            waiting.connection.close()
        for other in [each for each in self._shaking.values() if each.way == path.way]:
            other.close("not needed any more", reset=True)

    def lost(self, path: Path) -> None:
        """The flow lost a path; dials again."""
        trial = self._trials.get(path.way)
        if trial is not None and trial.timer is None and not trial.tries:
            trial.count = 0
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

    def _wanted(self, name: str) -> bool:
        return not any(
            path.way == name for path in [*self._flow.paths.values(), *self._shaking.values()]
        ) and not any(each.way.interface == name for each in self._ready)

    def _begin(self, trial: _Trial) -> None:
        """Begins a try over a way, unless one is planned already."""
        if trial.timer is not None or self._closed or not trial.endpoints:
            return
        now = self._driver.now()
        not_before_s = max(self._not_before_s, trial.way.came_s + _SETTLE_S)
        if now < not_before_s:
            self._plan(trial, not_before_s - now)
            return
        if len(trial.tries) >= _AT_ONCE:
            self._drop(trial.tries[0], trial)
        endpoint = trial.endpoints[trial.count % len(trial.endpoints)]
        pause_s = _PAUSES_S[trial.count] if trial.count < len(_PAUSES_S) else _LAST_PAUSE_S
        trial.count += 1
        trial.tried_s = now
        if trial.count % 8 == 4 and self.lost_names is not None:
            self.lost_names()
        self._plan(trial, pause_s)
        self._dial(trial, endpoint)

    def _hasten(self, trial: _Trial) -> None:
        """Something has changed: what was tried before may get through now.

        An interface that is up may drop everything for a second more, until the kernel has noticed its
        carrier; it says so when it has.
        """
        if trial.timer is not None and self._driver.now() - trial.tried_s > _HASTE_S:
            trial.timer.cancel()
            trial.timer = None
            trial.count = 0

    def _plan(self, trial: _Trial, pause_s: float) -> None:
        def again() -> None:
            trial.timer = None
            if trial.probing or self._wanted(trial.way.interface):
                self._begin(trial)

        trial.timer = self._driver.loop.call_later(pause_s, again)

    def _dial(self, trial: _Trial, endpoint: Endpoint) -> None:
        family = socket.AF_INET if ip_address(endpoint[0]).version == 4 else socket.AF_INET6
        connection = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        try:
            prepare(connection, trial.way.interface)
            code = connection.connect_ex(endpoint)
        except OSError as error:
            code = error.errno or errno.EIO
        if code not in (0, errno.EINPROGRESS):
            connection.close()
            self._complain(f"{endpoint[0]} over {trial.way.interface}: {os.strerror(code)}", code)
            return
        attempt = _Try(trial.way, endpoint, connection)
        trial.tries.append(attempt)
        self._driver.loop.add_writer(connection.fileno(), lambda: self._connected(attempt, trial))

    def _connected(self, attempt: _Try, trial: _Trial) -> None:
        connection = attempt.connection
        code = connection.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        self._driver.loop.remove_writer(connection.fileno())
        trial.tries.remove(attempt)
        if code:
            connection.close()
            self._complain(
                f"{attempt.endpoint[0]} over {attempt.way.interface}: {os.strerror(code)}", code
            )
            return
        for other in list(trial.tries):
            self._drop(other, trial)
        self._ready.append(attempt)
        self._advance()

    def _advance(self) -> None:
        """Begins handshakes: one alone while the flow has no path, then all that are ready."""
        while self._ready and not self._closed:
            open_paths = [p for p in self._flow.paths.values() if p.facts.stalled_at_s is None]
            if not open_paths and self._exclusive is not None:
                return
            attempt = self._ready.pop(0)
            kind = Kind.NEW if self._flow.credentials is None else Kind.RESUME
            if open_paths:
                kind = Kind.JOIN
            name = attempt.way.interface
            facts = Facts(network=name, kind=kind_of(name))
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
            if kind is not Kind.JOIN:
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
            self._calm(trial)
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
                self._not_before_s = self._driver.now() + min(failure.retry_after_s, 60.0)
        self._complain(f"{path.peer} over {path.way}: {why}")
        if not self._closed:
            trial = self._trials.get(path.way)
            if trial is not None and self._wanted(path.way):
                self._begin(trial)
            self._advance()

    def _complain(self, why: str, code: int = 0) -> None:
        self.last_why, self.last_code = why, code

    def _drop(self, attempt: _Try, trial: _Trial) -> None:
        trial.tries.remove(attempt)
        self._driver.loop.remove_writer(attempt.connection.fileno())
        attempt.connection.close()

    def _calm(self, trial: _Trial) -> None:
        trial.count, trial.probing = 0, False
        self._end_trial(trial)

    def _end_trial(self, trial: _Trial) -> None:
        if trial.timer is not None:
            trial.timer.cancel()
            trial.timer = None
        for attempt in list(trial.tries):
            self._drop(attempt, trial)

    def close(self) -> None:
        """Dials no more; the flow's paths are its own business."""
        if self._closed:
            return
        self._closed = True
        self._driver.unwatch(self)
        if self._timer is not None:
            self._timer.cancel()
        for trial in self._trials.values():
            self._end_trial(trial)
        for attempt in self._ready:
            attempt.connection.close()
        for path in list(self._shaking.values()):
            with suppress(OSError):
                path.close("no longer wanted")

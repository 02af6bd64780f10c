"""The dialling end: a connection over every local network, as soon as the network appears.

The kernel reports new networks. A network that carries nothing, though its link is up, is tried again
(`ConnectAttempts`) with a SYN every second, later less often. A helper's way is an egress of its own,
beside the interface that leads there. The states of an egress:

| state | next | when |
|---|---|---|
| no path | attempts | the interface is up, leads to the server, and may be used |
| attempts | ready | a TCP connection is there |
| ready | handshake | the session has a path that speaks, or no other handshake is under way |
| handshake | path | the server has proved who it is |
| handshake | attempts | it failed without an authenticated refusal |
| path | path, no attempts | the helper that it leads by leaves: nothing new is sent there |
| path | path and attempts | the path is silent: another connection is tried beside it (`probe`) |
| any | no path | its interface went down or lost its address, or may not be used any more |
"""

import asyncio
import os
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from ipaddress import IPv4Address
from typing import Final

from cedos.errors import CedosError
from cedos.session.io.advice import KnownNetwork
from cedos.session.io.connect_attempts import (
    ConnectAttempts,
    Connected,
    Endpoint,
    RestingNetworks,
    follow,
)
from cedos.session.io.driver import Driver
from cedos.session.io.links import Egress
from cedos.session.io.path import SessionPath, SessionPathEvent
from cedos.session.protocol.channel import Channel, resume, set_up
from cedos.session.protocol.crypto import KeyPair
from cedos.session.protocol.frames import Sync
from cedos.session.protocol.handshake.credentials import Credentials
from cedos.session.protocol.handshake.outcome import ConnectionKind, Failure, FailureKind
from cedos.session.protocol.handshake.set_up import SetUpOptions
from cedos.session.protocol.schedulers.interface import PathFacts

_EXCLUSIVE_S: Final = 2.0
_HANDSHAKE_S: Final = 10.0  # as long as the other end waits (`HandshakeLimits`)
_MOST_RESTING: Final = 16
_RESOLVE_S: Final = 20.0
_NO_ANSWER: Final = "no answer to the handshake"


@dataclass(frozen=True, slots=True)
class DialledServer:
    """A server that a session dials, and the key of this host.

    `networks` returns whether an egress, by its name, may be used to an address of the server. `resolve`
    looks names up again; None: there are only addresses. `known` returns the daemon's knowledge of one.
    """

    endpoints: Sequence[Endpoint]
    key: bytes
    me: KeyPair
    ask: SetUpOptions
    networks: Callable[[str, str], bool]
    resolve: Callable[[], Awaitable[Sequence[Endpoint]]] | None
    known: Callable[[str], KnownNetwork | None] = lambda _interface: None


class Dialler:
    """The keeper of a session's connections over all local networks.

    Attributes:
        last_why: why the last attempt failed, with `last_code`, an errno.
    """

    def __init__(
        self,
        driver: Driver,
        server: DialledServer,
        paths: Mapping[int, SessionPath],  # the open paths of the session, by id
        *,
        # Return the session's proof; None before its first connection is open.
        credentials: Callable[[], Credentials | None],
        positions: Callable[[], Sync],  # return how much the session has sent and received
        opened: Callable[[SessionPath], None],  # called with each path whose handshake is done
        permit: Callable[[], None],  # called when a path's helper leaves, or stays after all
        # Called when the session cannot go on: by the server's authenticated refusal, or because
        # the server has another key.
        failed: Callable[[Failure], None],
        # Returns whether metered networks may be used now; `check` asks again.
        metered_allowed: Callable[[], bool],
    ) -> None:
        self._driver = driver
        self._server = server
        self.endpoints = list(server.endpoints)
        self._paths = paths
        self._credentials = credentials
        self._positions = positions
        self._opened = opened
        self._permit = permit
        self._failed = failed
        self._metered_allowed = metered_allowed
        # The stages of a connection: attempts by egress, connections that are ready, and handshakes.
        # `_exclusive` is the only handshake while the session has no path.
        self._attempts: dict[str, ConnectAttempts] = {}
        self._resting: dict[str, RestingNetworks] = {}  # by egress, also by those that are gone
        self._ready: list[Connected] = []
        self._exclusive: SessionPath | None = None
        self._in_handshake: dict[int, SessionPath] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._resolving: asyncio.Task[None] | None = None
        self._closed = False
        self.last_why, self.last_code = "", 0

    def start(self) -> None:
        self._driver.watch(self, self.check, self._on_sleep)
        self.check()

    def check(self) -> None:
        """End paths that lost their network, and dial over new networks."""
        if self._closed:
            return
        # End what uses a network or an address that is gone.
        usable = self._usable(self.endpoints)
        for path in [*self._paths.values(), *self._in_handshake.values()]:
            if not self._stands(path, usable):
                path.close("its network is gone", reset=True)
        for waiting in [
            each
            for each in self._ready
            if each.egress.name not in usable or not self._may_use(each)
        ]:
            self._ready.remove(waiting)
            waiting.connection.close()
        # Send nothing new by helpers that leave, and dial none of them.
        changed = False
        for path in self._paths.values():
            leaving = path.egress in usable and usable[path.egress][0].leaving
            changed |= leaving is not path.facts.leaving
            path.facts.leaving = leaving
        if changed:
            self._permit()
        usable = {name: found for name, found in usable.items() if not found[0].leaving}
        # Dial over each usable interface that has no path yet.
        follow(self._attempts, usable, self._attempts_over)
        for name in usable:
            if (attempts := self._attempts.get(name)) is not None and self.is_wanted(name):
                attempts.retry_now()
                attempts.begin()
        self._advance()

    def _attempts_over(self, egress: Egress) -> ConnectAttempts:
        resting = self._resting.setdefault(egress.name, RestingNetworks())
        if len(self._resting) > _MOST_RESTING:
            del self._resting[next(iter(self._resting))]
        return ConnectAttempts(self._driver, self, egress, resting)

    def _on_sleep(self) -> None:
        """End all paths: the host slept, and the connections are very likely dead."""
        for path in list(self._paths.values()):
            path.close("this host slept", reset=True)
        self.check()

    def probe(self, path: SessionPath) -> None:
        """Try whether another connection gets through beside a silent path."""
        attempts = self._attempts.get(path.egress)
        if attempts is not None and not attempts.probing and not self._closed:
            attempts.probe()

    def end_probe(self, path: SessionPath) -> None:
        """End the attempts beside a path that speaks again."""
        attempts = self._attempts.get(path.egress)
        if attempts is not None and attempts.probing:
            attempts.on_success()
        # Connections and handshakes beside the path are not needed any more.
        for waiting in [each for each in self._ready if each.egress.name == path.egress]:
            self._ready.remove(waiting)
            waiting.connection.close()
        for other in [p for p in self._in_handshake.values() if p.egress == path.egress]:
            other.close("not needed any more", reset=True)

    def path_lost(self, path: SessionPath, in_vain_bytes: int, arrived_bytes: int) -> None:
        attempts = self._attempts.get(path.egress)
        if attempts is not None:
            attempts.reset()
            attempts.on_lost(in_vain_bytes, arrived_bytes)
        if not self._closed:
            self.check()

    def _speaking(self) -> list[SessionPath]:
        return [path for path in self._paths.values() if path.facts.stalled_at_s is None]

    @property
    def has_network(self) -> bool:
        """Return whether a network that may be used leads to the server."""
        return bool(self._usable(self.endpoints))

    def _usable(self, endpoints: Sequence[Endpoint]) -> dict[str, tuple[Egress, list[Endpoint]]]:
        found: dict[str, tuple[Egress, list[Endpoint]]] = {}
        metered_allowed = self._metered_allowed()
        for endpoint in endpoints:
            for egress in self._egresses(endpoint):
                if (metered_allowed or not egress.metered) and self._server.networks(
                    egress.name, endpoint[0]
                ):
                    found.setdefault(egress.name, (egress, []))[1].append(endpoint)
        return found

    def networks(self) -> dict[str, bool]:
        """Return each egress that leads to the server, usable or not, and whether it is metered."""
        return {
            egress.name: egress.metered
            for endpoint in self.endpoints
            for egress in self._egresses(endpoint)
        }

    def _egresses(self, endpoint: Endpoint) -> Iterator[Egress]:
        # The daemon's kind and price count.
        for egress in self._driver.links.egresses(endpoint[0]):
            known = self._server.known(egress.name)
            if known is None:
                yield egress
            else:
                yield replace(egress, kind=known.kind, metered=known.metered)

    def _may_use(self, made: Connected) -> bool:
        return self._server.networks(made.egress.name, made.endpoint[0])

    def _stands(self, path: SessionPath, usable: dict[str, tuple[Egress, list[Endpoint]]]) -> bool:
        if path.egress not in usable or not self._server.networks(path.egress, path.peer):
            return False
        addresses = usable[path.egress][0].addresses
        own = path.own_endpoint()[0].partition("%")[0]
        # The host's own addresses are all reached over the loopback, but only 127.0.0.1 is its own.
        return own in addresses or path.egress == "lo"

    # What attempts ask and tell

    def is_wanted(self, egress: str) -> bool:
        return not any(
            path.egress == egress for path in [*self._paths.values(), *self._in_handshake.values()]
        ) and not any(each.egress.name == egress for each in self._ready)

    def on_connected(self, made: Connected) -> None:
        if not self._may_use(made):  # not any more
            made.connection.close()
            return
        self._ready.append(made)
        self._advance()

    def attempt_failed(self, why: str, code: int) -> None:
        self.last_why, self.last_code = why, code

    def on_unanswered(self) -> None:
        """Look the server's name up again: it may stand for other addresses by now."""
        if self._server.resolve is not None and self._resolving is None:
            self._resolving = self._driver.loop.create_task(self._resolve(self._server.resolve))

    async def _resolve(self, resolve: Callable[[], Awaitable[Sequence[Endpoint]]]) -> None:
        try:
            async with asyncio.timeout(_RESOLVE_S):
                found = list(await resolve())
        except TimeoutError:
            return
        finally:
            self._resolving = None
        if found != self.endpoints:
            self.endpoints = found
            self.check()

    # Handshakes

    def _advance(self) -> None:
        """Begin handshakes: one alone while the session has no path, then all that are ready."""
        while self._ready and not self._closed:
            # Without a path that speaks, one handshake at a time: it decides whether the session goes on.
            open_paths = self._speaking()
            if not open_paths and self._exclusive is not None:
                return
            made = self._ready.pop(0)
            egress = made.egress
            # Begin the handshake. The peer's first Sync will be compared with the positions of now.
            facts = PathFacts(network=egress.name, kind=egress.kind, metered=egress.metered)
            facts.source = int(IPv4Address(egress.source)) if egress.source else 0
            try:
                path = SessionPath(
                    self._driver,
                    made.connection,
                    self._channel(joins=bool(open_paths)),
                    self._report,
                    facts,
                    egress=egress.name,
                    index=egress.index,
                    peer=made.endpoint[0],
                    known=self._positions(),
                )
            except CedosError:
                made.connection.close()
                raise
            self._in_handshake[path.path_id] = path
            # The only handshake must not hold up other ready connections for long.
            if not open_paths:
                self._exclusive = path
                self._arm(_EXCLUSIVE_S, self._exclusive_overdue)
            # What answers nothing, as a portal may, must not keep its network unused for good.
            self._driver.loop.call_later(_HANDSHAKE_S, self._overdue, path.path_id)
            path.start()

    def _channel(self, *, joins: bool) -> Channel:
        credentials, me = self._credentials(), self._server.me
        if credentials is None:
            return set_up(me, self._server.key, self._server.ask, random=os.urandom)
        kind = ConnectionKind.JOIN if joins else ConnectionKind.RESUME
        return resume(me, credentials, kind, random=os.urandom)

    def _exclusive_overdue(self) -> None:
        """Give up the one handshake if it is slow while another connection is ready."""
        if self._exclusive is None:
            return
        if self._ready:
            self._exclusive.close(_NO_ANSWER, reset=True)
        else:
            self._arm(_EXCLUSIVE_S, self._exclusive_overdue)

    def _overdue(self, path_id: int) -> None:
        path = self._in_handshake.get(path_id)
        if path is not None:
            path.channel.expire()
            path.close(_NO_ANSWER, reset=True)

    def _arm(self, seconds: float, then: Callable[[], None]) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._driver.loop.call_later(seconds, then)

    def _report(self, path: SessionPath, event: SessionPathEvent, why: str) -> None:
        """Handle the events of a path until its handshake is done."""
        if event not in (SessionPathEvent.OPENED, SessionPathEvent.LOST):
            return
        self._in_handshake.pop(path.path_id, None)
        if self._exclusive is path:
            self._exclusive = None
        # The handshake has ended: its connection is a path now, or the egress is tried again.
        attempts = self._attempts.get(path.egress)
        if event is SessionPathEvent.OPENED:
            if attempts is not None:
                attempts.on_success()
            self._opened(path)
            self._advance()
            return
        # The server's authenticated refusal ends the session; anything else is tried again.
        failure = path.channel.failure
        if failure is not None:
            if self._is_final(failure):
                self._failed(failure)
                return
            if failure.retry_after_s and attempts is not None:
                attempts.not_before_s = self._driver.now() + min(failure.retry_after_s, 60.0)
        self.attempt_failed(f"{path.peer} over {path.egress}: {why}", 0)
        if not self._closed:
            if attempts is not None and self.is_wanted(path.egress):
                attempts.begin()
            self._advance()

    def _is_final(self, failure: Failure) -> bool:
        # A hint without proof ends nothing that was proved before: an attacker could send it.
        if failure.kind in (FailureKind.LOST_STATE, FailureKind.REFUSED):
            return failure.authenticated and not failure.retry_after_s
        never_was = self._credentials() is None
        return never_was and failure.kind in (FailureKind.WRONG_KEY, FailureKind.VERSION)

    def close(self) -> None:
        """Dial no more; open paths belong to the session."""
        if self._closed:
            return
        self._closed = True
        self._driver.unwatch(self)
        if self._timer is not None:
            self._timer.cancel()
        if self._resolving is not None:
            self._resolving.cancel()
        for attempts in self._attempts.values():
            attempts.end()
        for made in self._ready:
            made.connection.close()
        for path in list(self._in_handshake.values()):
            with suppress(OSError):
                path.close("no longer wanted")

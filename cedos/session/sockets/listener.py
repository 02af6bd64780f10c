"""The accepting end: TCP connections from anywhere become paths of flows, new, known or idle.

A stranger costs a socket and a few hundred bytes until it has proved itself, for ten seconds at most and
so many at a time (`cedos.session.protocol.handshake.limits`).
"""

import asyncio
import os
import resource
import socket
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final, Self

from cedos.errors import HostError, SessionError
from cedos.kernel.process_limits import OUT_OF_FILES
from cedos.session.io.driver import Driver
from cedos.session.io.path import QUIET_S, SessionPath, SessionPathEvent, prepare
from cedos.session.protocol.channel import Acceptor, Channel
from cedos.session.protocol.crypto import KeyPair
from cedos.session.protocol.handshake.limits import HandshakeLimits, HostLedger
from cedos.session.protocol.handshake.outcome import ConnectionKind
from cedos.session.protocol.life import SessionLimits
from cedos.session.protocol.schedulers.interface import PathFacts, Scheduler
from cedos.session.protocol.session import Session
from cedos.session.sockets.connection import Connection
from cedos.session.sockets.flow_table import FlowTable

_BACKLOG: Final = 1024
_BURST: Final = 64  # connections taken at once: the living ones have their turn in between
_FULL_S: Final = 0.5
_MOST_OF_ADDRESS: Final = 2_000


def host_limits(beside: int = 0) -> HandshakeLimits:
    """Return limits by the open files that this process may have: a client can make any number of keys.

    `beside`: the files that the program has for each session, beside its connections.
    """
    files, usual = resource.getrlimit(resource.RLIMIT_NOFILE)[0], HandshakeLimits()
    # All connections of a peer have half of the files, sessions without one a quarter.
    most = min(_MOST_OF_ADDRESS, files // 2 // (1 + beside))
    absent = min(usual.absent, files // 4 // beside) if beside else usual.absent
    return HandshakeLimits(connections_per_peer=max(most, 1), absent=absent)


def open_bound(address: tuple[str, int]) -> socket.socket:
    """Return a socket bound to an own address, "" for all of both families. Raises HostError."""
    host, port = address
    with _listen_errors(address):
        if not host and socket.has_dualstack_ipv6():
            with suppress(OSError):
                return _bound("::", port, socket.AF_INET6, only_its_family=False)
        return _bound(host, port, socket.AF_INET6 if ":" in host else socket.AF_INET)


def open_listening(address: tuple[str, int]) -> socket.socket:
    """Return a socket that listens at an own address. Raises HostError."""
    made = open_bound(address)
    try:
        with _listen_errors(address):
            made.listen(_BACKLOG)
    except HostError:
        made.close()
        raise
    return made


def _bound(
    host: str, port: int, family: socket.AddressFamily, *, only_its_family: bool = True
) -> socket.socket:
    made = socket.socket(family, socket.SOCK_STREAM)
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family is socket.AF_INET6:
            made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, int(only_its_family))
        made.bind((host, port))
    except BaseException:
        made.close()
        raise
    return made


@contextmanager
def _listen_errors(address: tuple[str, int]) -> Iterator[None]:
    host, port = address
    try:
        yield
    except OSError as error:
        raise HostError(
            f"cannot listen at {host or 'all addresses'} port {port}: {error.strerror or error}; "
            "give an address of this host and a free port"
        ) from error


class Listener:
    """The acceptor of sessions on one port.

    Args are those of `cedos.session.listen`. HostError: the address cannot be listened at.
    """

    def __init__(
        self,
        driver: Driver,
        address: tuple[str, int],
        me: KeyPair,
        *,
        allow: Callable[[bytes], bool] | None,
        clear: bool,
        idle: Path | None,
        scheduler: Callable[[], Scheduler],
        limits: SessionLimits,
        hosts: HandshakeLimits,
        listening: socket.socket | None = None,
    ) -> None:
        self._driver = driver
        self._scheduler = scheduler
        self._limits = limits
        self._socket = open_listening(address) if listening is None else listening
        self._socket.setblocking(False)
        ledger = HostLedger(hosts)
        try:
            self._flows = FlowTable(driver, allow, ledger, idle)
        except BaseException:
            if listening is None:
                self._socket.close()
            raise
        self._acceptor = Acceptor(
            me,
            self._flows,
            random=os.urandom,
            hardware_aes=driver.hardware_aes,
            now=driver.now(),
            allow_clear=clear,
            limits=hosts,
            ledger=ledger,
        )
        self._in_handshake: dict[Channel, SessionPath] = {}
        self._new: deque[Connection] = deque()
        self._waiters: deque[asyncio.Future[None]] = deque()
        self._timer: asyncio.TimerHandle | None = None
        self._pause: asyncio.TimerHandle | None = None
        self._closed = False
        driver.acquire(self)
        self._listen()

    @property
    def address(self) -> tuple[str, int]:
        host, port = self._socket.getsockname()[:2]
        return str(host), int(port)

    @property
    def half_open(self) -> int:
        return len(self._in_handshake)

    def keep_at_most(self, replay_bytes: int) -> None:
        """Limit the unacknowledged bytes of all sessions of this loop together."""
        memory = self._driver.memory
        memory.limit_bytes = min(memory.limit_bytes, replay_bytes)

    async def accept(self) -> Connection:
        """Return the next session: a new one, or (`resumed`) one that was idle.

        SessionError: the listener has been closed.
        """
        while True:
            if self._new:
                return self._new.popleft()
            if self._closed:
                raise SessionError("the listener has been closed")
            waiter = self._driver.loop.create_future()
            self._waiters.append(waiter)
            await waiter

    def _listen(self) -> None:
        self._pause = None
        self._driver.loop.add_reader(self._socket.fileno(), self._readable)

    def _readable(self) -> None:
        for _ in range(_BURST):
            try:
                connection, peer = self._socket.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                break
            except OSError as error:
                if error.errno in OUT_OF_FILES:
                    # No room for another one: those in the kernel's queue wait a little.
                    self._driver.loop.remove_reader(self._socket.fileno())
                    self._pause = self._driver.loop.call_later(_FULL_S, self._listen)
                break
            self._on_accepted(connection, str(peer[0]))
        self._expire()

    def _on_accepted(self, connection: socket.socket, address: str) -> None:
        address = address.removeprefix("::ffff:")
        channel = self._acceptor.channel(address, self._driver.now())
        try:
            prepare(connection, asks_after_s=QUIET_S)
        except OSError:
            channel.abandon()
            connection.close()
            return
        path = SessionPath(
            self._driver,
            connection,
            channel,
            self._report,
            PathFacts(network=address),
            peer=address,
        )
        self._in_handshake[channel] = path
        path.start()

    def _expire(self) -> None:
        for channel in self._acceptor.overdue(self._driver.now()):
            path = self._in_handshake.get(channel)
            if path is not None:
                path.close("it did not prove itself in time", reset=True)
        at = self._acceptor.next_expiry()
        if at is not None and self._timer is None and not self._closed:
            self._timer = self._driver.loop.call_at(at, self._expiry)

    def _expiry(self) -> None:
        self._timer = None
        self._expire()

    def _report(self, path: SessionPath, event: SessionPathEvent, _why: str) -> None:
        """Handle the events of a connection until a flow has it."""
        if event is SessionPathEvent.OPENED:
            self._on_opened(path)
        elif event is SessionPathEvent.LOST:
            self._in_handshake.pop(path.channel, None)

    def _on_opened(self, path: SessionPath) -> None:
        """Give the path of a proved peer to its flow."""
        opened = path.channel.opened
        assert opened is not None
        resumes = opened.kind is ConnectionKind.RESUME
        path.account = self._flows.peer_of(opened.credentials.peer_key, path.peer)
        if not self._flows.has_room(opened.credentials.flow_id, path.account, only=resumes):
            path.close("its peer has too many connections open", reset=True)
            return
        # A new flow, a further path of a living one, or a flow that slept.
        connection = self._flows.get(opened.credentials.flow_id)
        only = connection is not None and resumes
        if opened.kind is ConnectionKind.NEW:
            # One that came later was confirmed first, and may sleep by now.
            if self._flows.find(opened.credentials.flow_id) is not None:
                path.close("two hellos with one flow id", reset=True)
                return
            core = Session(
                self._scheduler(),
                self._driver.now(),
                limits=self._limits,
                memory=self._driver.memory,
                keep_alive_s=opened.deadline_s,
            )
            connection = self._flows.add(opened, core, path.peer_address())
            self._offer(connection)
        elif connection is None:
            connection = self._flows.wake(
                opened, path.peer_address(), self._scheduler, self._limits
            )
            if connection is None:
                path.close("its session has ended meanwhile", reset=True)
                return
            self._offer(connection)

        def proved() -> None:
            self._in_handshake.pop(path.channel, None)

        connection.flow.adopt(path, only=only, proved=proved)

    def _offer(self, connection: Connection) -> None:
        self._new.append(connection)
        while self._waiters:
            waiter = self._waiters.popleft()
            if not waiter.done():
                waiter.set_result(None)
                break

    def stop(self) -> None:
        """Accept no more connections."""
        if self._pause is not None:
            self._pause.cancel()
        if self._socket.fileno() >= 0:
            self._driver.loop.remove_reader(self._socket.fileno())

    async def close(self) -> None:
        """Stop listening; accepted sessions go on, as long as they have a path."""
        if self._closed:
            return
        self._closed = True
        self.stop()
        self._socket.close()
        if self._timer is not None:
            self._timer.cancel()
        for path in list(self._in_handshake.values()):
            path.close("the listener has been closed", reset=True)
        self._flows.close()
        for connection in self._new:
            connection.abort("the server ends")
        self._new.clear()
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)
        self._driver.release(self)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_error: object) -> None:
        await self.close()

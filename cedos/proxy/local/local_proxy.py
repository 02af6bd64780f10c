"""The local proxy: it accepts programs' connections, and carries each through the gateway, or direct."""

import asyncio
import errno
import os
import socket
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import partial
from http import HTTPStatus
from ipaddress import ip_address, ip_network
from typing import Final

from cedos.errors import HostError
from cedos.kernel import process_limits
from cedos.kernel.socket_owners import UNKNOWN, SocketOwners
from cedos.limits import UsersTable
from cedos.logs import get_logger
from cedos.proxy.gateway.origin import GUARDED_PORTS, HIDDEN, DestinationRules, Origins
from cedos.proxy.http import OnlyAnswer, RefusedError, RequestBody
from cedos.proxy.local.direct import LocalNames, RuleBook, is_near
from cedos.proxy.local.gateway_link import GatewayUnreachableError
from cedos.proxy.local.gateway_links import GatewayLinks
from cedos.proxy.local.program_packets import Came, ProgramPackets, Refused
from cedos.proxy.local.program_request import (
    FirstWords,
    ProgramRequest,
    part_from,
    read_request,
    refuse,
)
from cedos.proxy.local.redirection import Redirection
from cedos.proxy.own_tasks import OwnTasks
from cedos.proxy.splice import Tunnel, TunnelBuffer, TunnelBytes, end_on_close, reset_on_close
from cedos.proxy.streams.carry import Carry
from cedos.proxy.streams.stream import ProxiedStream
from cedos.session.io.links import EgressReader

_HEAD_S: Final = 20.0
_CONNECT_S: Final = 30.0
_IDLE_S: Final = 86_400.0
_BACKLOG: Final = 1024
_MOST: Final = 4_096
# Of these so many whose request is not whole, or large and waits for its origin. Each may keep 80 KiB.
_MOST_SILENT, _SMALL_BYTES = 512, 4_096
# Open files that are left for the session's paths and other uses beside connections.
_SPARE_FILES: Final = 256

_FULL_PAUSE_S: Final = 0.2
# Connections that a user's programs have closed, and how long each stays, for its last bytes may be on
# their way.
MOST_LEFT, LEFT_S = 128, 600.0
_LEFT_CHECK_S: Final = 5.0
_MOST_REFUSED: Final = 256
_ABSENT: Final = frozenset({errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT})
_EVERYTHING: Final = (ip_network("0.0.0.0/0"), ip_network("::/0"), *HIDDEN)

_log = get_logger(__name__)


class Fail(StrEnum):
    """The rule while no gateway answers: new connections go direct (open), or are refused (closed)."""

    OPEN = "open"
    CLOSED = "closed"


@dataclass(frozen=True, slots=True)
class Listening:
    """An address at which programs connect."""

    address: str
    port: int
    # The destination of all its connections; None: each asks for its own (SOCKS 5 or HTTP).
    to: tuple[str, int] | None = None
    optional: bool = False  # whether to go on without it if this host lacks the address
    redirection: Redirection | None = None  # knows the destinations of redirected connections

    def __str__(self) -> str:
        host = f"[{self.address}]" if ":" in self.address else self.address
        return f"{host}:{self.port}"


@dataclass(frozen=True, slots=True)
class _Held:
    """The connections that a user holds, each kind the oldest first."""

    carried: dict[asyncio.Task[None], socket.socket] = field(default_factory=dict)  # all
    silent: dict[asyncio.Task[None], None] = field(default_factory=dict)  # `_MOST_SILENT`
    left: dict[asyncio.Task[None], float] = field(default_factory=dict)  # closed since, by programs

    def forget(self, task: asyncio.Task[None]) -> None:
        for each in (self.carried, self.silent, self.left):
            each.pop(task, None)

    def end(self, task: asyncio.Task[None]) -> None:
        """End a connection; its place is free at once, before its task has run again."""
        self.forget(task)
        task.cancel()


class LocalProxy:
    """The proxy: `open`, then it serves until `close`."""

    def __init__(
        self,
        link: GatewayLinks,  # the gateways
        fail: Fail = Fail.OPEN,  # the rule for new connections while no gateway answers
        *,
        # Tells whether a connection to a port goes direct, by the round trip to the gateway.
        direct: Callable[[int, float | None], bool] = lambda *_: False,
        rules: RuleBook | None = None,  # the user's rules; connections under a rule go direct
        names: LocalNames | None = None,  # the names that this host knows itself
    ) -> None:
        self._link = link
        self._fail = fail
        self._wanted_direct = direct
        self._rules = rules or RuleBook()
        # The ports at which programs ask: one that asks for them would go in circles.
        self._ports = set[int]()
        self._direct = Origins(
            DestinationRules(self._ports, inside=_EVERYTHING, ports=GUARDED_PORTS, local=True),
            _CONNECT_S,
        )
        self._sockets: list[tuple[socket.socket, Listening]] = []
        self._tasks = OwnTasks(_log, "a connection failed")
        self._held: dict[int, _Held] = {}  # by user
        self._most = _MOST
        self._buffer = TunnelBuffer()
        self._told_direct = False
        self._routes = EgressReader()
        self._owners = SocketOwners()
        self._checking: asyncio.TimerHandle | None = None
        self._names = names or LocalNames()
        # Origins that refused a user's connections.
        self._refused: UsersTable[tuple[int, str, int], None] = UsersTable(_MOST_REFUSED)

    @property
    def addresses(self) -> list[Listening]:
        """The addresses that the proxy listens at, with their real ports."""
        return [replace(where, port=one.getsockname()[1]) for one, where in self._sockets]

    def open(self, listening: Sequence[Listening]) -> None:
        """Listen at all these addresses. HostError: it cannot listen at one."""
        loop = asyncio.get_running_loop()
        files = process_limits.allow(2 * _MOST + _SPARE_FILES)
        self._most = max(1, min(_MOST, (files - min(_SPARE_FILES, files // 2)) // 2))
        for where in listening:
            try:
                family = socket.AF_INET6 if ":" in where.address else socket.AF_INET
                one = socket.create_server(
                    (where.address, where.port), family=family, backlog=_BACKLOG
                )
            except OSError as error:
                if where.optional and error.errno in _ABSENT:
                    continue
                self._stop_listening()
                # (The error's own words name the address as Python has it.)
                why = os.strerror(error.errno) if error.errno else str(error)
                raise HostError(
                    f"cannot listen at {where}: {why}; give an address of this host and a free port"
                ) from error
            one.setblocking(False)
            self._sockets.append((one, where))
            if where.to is None:
                self._ports.add(one.getsockname()[1])
        for one, where in self._sockets:
            loop.add_reader(one, self._acceptable, one, where)

    async def close(self) -> None:
        self._stop_listening()
        if self._checking is not None:
            self._checking.cancel()
        await self._tasks.end()
        self._routes.close()
        self._owners.close()

    async def connect(
        self,
        host: str,
        port: int,
        *,
        far: bool,
        words: FirstWords | None = None,
        user: int = UNKNOWN.user,
    ) -> ProxiedStream | socket.socket:
        """Connect a user to a host's port, through the gateway or direct. RefusedError.

        `far`: whether the destination is named as the gateway sees it: a private address, say, is one in
        the gateway's own network. `words`: bytes that may be sent at once; the caller sends the rest.
        """
        # A name that this host knows itself: only this host has the right address for it.
        if not far and (here := self._names.find(host)):
            if any(map(self.goes_direct, here)):
                return await self._connect_direct(host, port, user)
            host = here[0]
        # Through the gateway, unless the destination is nearby, under a rule, or better reached directly.
        if far or not (self.goes_direct(host) or await self._may_go_direct(host, port, user)):
            away: str | None = None
            try:
                stream = await self._open_stream(host, port, words, user)
            except RefusedError as error:
                # The gateway has no way there (no IPv6, say), but this host may have one: go on, direct.
                if self._fail is Fail.CLOSED or far or error.kind != "destination_ip_unroutable":
                    raise
            except GatewayUnreachableError as error:
                if self._fail is Fail.CLOSED:
                    raise RefusedError(
                        HTTPStatus.BAD_GATEWAY,
                        "proxy_internal_error",
                        f"the gateway cannot be reached: {error}",
                    ) from error
                away = str(error)
            else:
                self._tell_direct(None)
                return stream
            finally:
                if words is not None:
                    words.end()
            # Connect directly, and send the same first bytes again. (Here the error is gone, which holds
            # what is left of the session.)
            if words is not None:
                words.end(again=True)
            if away is not None:
                self._tell_direct(away)
                origin = await self._direct.connect(host, port, user)
                # (A router's name, or this host's own, shows no network that works.)
                with suppress(OSError):  # it was reset
                    if not self.goes_direct(origin.getpeername()[0]):
                        self._link.went_direct()
                return origin
        return await self._connect_direct(host, port, user)

    async def _connect_direct(self, host: str, port: int, user: int) -> socket.socket:
        """Connect without the gateway; if it must fail closed, only to addresses that may go direct."""
        if self._fail is Fail.OPEN:
            return await self._direct.connect(host, port, user)
        refused: RefusedError | None = None
        for address in await self._direct_addresses(user, host, port):
            try:
                return await self._direct.connect(address, port, user)
            except RefusedError as error:
                refused = error
        raise refused or RefusedError(
            HTTPStatus.FORBIDDEN,
            "destination_ip_prohibited",
            f"{host} leads to no host nearby, and all others are reached through the gateway",
        )

    async def _direct_addresses(self, user: int, host: str, port: int) -> list[str]:
        """Return the addresses to which a user's direct packets for a host may go. RefusedError.

        The network's resolver could answer a nearby name with any address. So with `--fail closed`, under
        which only nearby hosts are reached directly, the addresses have to be nearby, too.
        """
        found = await self._direct.addresses(host, port, user)
        if self._fail is Fail.OPEN:
            return found
        return [address for address in found if self.goes_direct(address)]

    async def _open_stream(
        self, host: str, port: int, words: FirstWords | None, user: int
    ) -> ProxiedStream:
        """Open a stream through the gateway; if its session is lost meanwhile, try the next one, once."""
        begun = words.begin if words else None
        try:
            return await self._link.open(host, port, begun, user=user)
        except GatewayUnreachableError:
            if self._link.stands or not (words is None or words.repeatable):
                raise
        # The session was lost at that moment, and the first bytes may be sent again.
        if words is not None:
            words.end(again=True)
        return await self._link.open(host, port, begun, user=user)

    async def carry(
        self,
        program: socket.socket,
        upstream: ProxiedStream | socket.socket,
        first: bytes = b"",
        body: RequestBody | None = None,
        answer: OnlyAnswer | None = None,
    ) -> TunnelBytes:
        """Carry data both ways until both sides have ended, or one broke.

        `first`: bytes that go upstream first. `body`: what of the program follows these.
        `answer`: passes on what comes back.
        """
        if isinstance(upstream, ProxiedStream):
            carrying = Carry(program, upstream, first=first, body=body, answer=answer)
            first = b""
            return await carrying.run()
        with upstream:
            tunnel = Tunnel(
                program, upstream, self._buffer, idle_s=_IDLE_S, first_up=first, up_body=body,
                answer=answer,
            )  # fmt: skip
            first = b""
            return await tunnel.run()

    def _give_up(self, upstream: ProxiedStream | socket.socket) -> None:
        if isinstance(upstream, ProxiedStream):
            upstream.drop()
        else:
            reset_on_close(upstream)
            upstream.close()

    async def _may_go_direct(self, host: str, port: int, user: int) -> bool:
        if self._fail is Fail.CLOSED:
            return False
        if await self._rules.find(host, port, user, self._look_up):
            return True
        return self._wanted_direct(port, self._link.rtt_s)

    def _packets_go_direct(self, user: int, host: str, port: int) -> bool | Awaitable[bool]:
        if self.goes_direct(host) or any(map(self.goes_direct, self._names.find(host))):
            return True
        if self._fail is Fail.CLOSED or not self._rules.stands:
            return False
        return self._rules.find(host, port, user, self._look_up)

    async def _look_up(self, host: str, port: int, user: int) -> list[str]:
        try:
            async with asyncio.timeout(_CONNECT_S):
                return await self._direct.addresses(host, port, user)
        except (RefusedError, TimeoutError):
            return []

    def packets(
        self, user: int, came: Came, refused: Refused = lambda _host, _port: None
    ) -> ProgramPackets:
        """Return a carrier of the datagrams of a user's socket, which calls back with the answers."""
        return ProgramPackets(
            self._link,
            partial(self._packets_go_direct, user),
            partial(self._direct_addresses, user),
            came,
            refused,
            user,
            fails_open=self._fail is Fail.OPEN,
        )

    def goes_direct(self, host: str) -> bool:
        """Tell whether a host is nearby, the gateway itself, or reached by a route of this host's own.

        Such a route leads to a network nearby, or through a VPN. None is known where the kernel does not
        answer. With `--fail closed` no route counts, for networks can give this host routes to any
        host, and any address; and the gateway counts only by the address that its user gave.
        """
        fails_open = self._fail is Fail.OPEN
        if is_near(host) or self._link.leads_to(host, by_network=fails_open):
            return True
        try:
            return fails_open and self._routes.has_own(ip_address(host.partition("%")[0]))
        except (ValueError, HostError):
            return False

    def _tell_direct(self, why: str | None) -> None:
        direct = why is not None
        if direct == self._told_direct:
            return
        self._told_direct = direct
        if direct:
            _log.warning("connections go direct", why=why)
        else:
            _log.warning("connections use the gateway again")

    def _stop_listening(self) -> None:
        loop = asyncio.get_running_loop()
        for one, _ in self._sockets:
            loop.remove_reader(one)
            one.close()
        self._sockets.clear()

    def _acceptable(self, one: socket.socket, where: Listening) -> None:
        try:
            program, peer = one.accept()
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            if error.errno in process_limits.OUT_OF_FILES:
                # No files are left. Pause, or the loop would call again at once.
                loop = asyncio.get_running_loop()
                loop.remove_reader(one)
                loop.call_later(_FULL_PAUSE_S, self._go_on, one, where)
            return
        user = self._owners.user_of(socket.IPPROTO_TCP, peer, program)
        held = self._held.get(user, _Held())
        taken = sum(len(each.carried) for each in self._held.values())
        if taken >= self._most and not self._make_room(held):
            reset_on_close(program)
            program.close()
            return
        self._held[user] = held
        program.setblocking(False)
        task = self._tasks.begin(self._serve(program, where, user))
        held.carried[task] = program
        task.add_done_callback(partial(self._on_served, user))
        if self._checking is None:
            self._checking = asyncio.get_running_loop().call_later(_LEFT_CHECK_S, self._check_left)
        if where.to is None and where.redirection is None:
            held.silent[task] = None
            if sum(len(each.silent) for each in self._held.values()) > _MOST_SILENT:
                most = max(self._held.values(), key=lambda each: len(each.silent))
                most.end(next(iter(most.silent)))

    def _make_room(self, held: _Held) -> bool:
        """End a connection of the user who has most.

        Return False if that is the user who asks and no connection of theirs is silent.
        """
        fullest = max((held, *self._held.values()), key=lambda each: len(each.carried))
        if fullest.silent:
            fullest.end(next(iter(fullest.silent)))
        elif fullest is held:
            return False
        else:
            fullest.end(next(reversed(fullest.carried)))
        return True

    def _on_served(self, user: int, task: asyncio.Task[None]) -> None:
        held = self._held.get(user, _Held())
        held.forget(task)
        if not held.carried:
            self._held.pop(user, None)

    def _check_left(self) -> None:
        """End what programs have left: an origin that never ends its half would hold places for ever."""
        loop = asyncio.get_running_loop()
        again = loop.call_later(_LEFT_CHECK_S, self._check_left) if self._held else None
        self._checking = again
        for held in self._held.values():
            for task, program in held.carried.items():
                if task not in held.left and self._owners.has_left(program):
                    held.left[task] = loop.time()
            while held.left and (
                len(held.left) > MOST_LEFT or next(iter(held.left.values())) <= loop.time() - LEFT_S
            ):
                held.end(next(iter(held.left)))

    def _go_on(self, one: socket.socket, where: Listening) -> None:
        if one.fileno() >= 0:
            asyncio.get_running_loop().add_reader(one, self._acceptable, one, where)

    async def _serve(self, program: socket.socket, where: Listening, user: int) -> None:
        with program:
            with suppress(OSError):
                program.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if (redirection := where.redirection) is None:
                await self._serve_asked(program, where, user)
                return
            # Whatever ends it until its answer has come: others than redirected ones are not served here.
            reset_on_close(program)
            to = redirection.destination(program)
            if to is None:
                return
            try:
                await self._serve_asked(program, replace(where, to=(to.address, to.port)), user)
            finally:
                redirection.forget(to)

    async def _serve_asked(self, program: socket.socket, where: Listening, user: int) -> None:
        """Read the program's request, connect, and carry until the end."""
        try:
            async with asyncio.timeout(_HEAD_S):
                request = (
                    ProgramRequest(*where.to)
                    if where.to is not None
                    else await read_request(program)
                )
        except (TimeoutError, OSError):
            return
        if request is None:
            return
        if len(request.first) <= _SMALL_BYTES:
            self._on_spoken(user, asyncio.current_task())
        far = where.to is not None and where.redirection is None
        origin = user, request.host, request.port
        # A program whose user's origin was refused before waits for the answer, so that it hears why.
        yes = b"" if origin in self._refused else request.accepted
        words = FirstWords(program, request.first, yes, once=self._fail is Fail.CLOSED)
        try:
            upstream = await self.connect(
                request.host,
                request.port,
                far=far,
                words=words,
                user=user,
            )
        except RefusedError as error:
            _log.debug("refused", reason=error.details)
            if where.to is None and not words.accepted:
                await refuse(program, request, error)
                return
            if words.accepted:
                self._refused.put(origin, None, user)
            reset_on_close(program)  # the program sees a reset, as from the destination itself
            return
        self._on_spoken(user, asyncio.current_task())
        self._refused.pop(origin)
        broken = words.broken
        if not words.accepted:
            try:
                await asyncio.get_running_loop().sock_sendall(program, request.accepted)
            except OSError:
                broken = True  # the next read would look like an orderly end
        reset_on_close(program)
        if broken:
            self._give_up(upstream)
            return
        answer = OnlyAnswer() if request.only else None
        carrying = self.carry(program, upstream, words.left, request.body, answer)
        # Their bytes, up to 64 KiB, need not last as long as the connection.
        del request, words
        ended = await carrying
        if ended.ended == "complete":
            end_on_close(program)
            if answer is not None:  # it may have asked for more
                await part_from(program)
        _log.debug("carried", ended=ended.ended, up=ended.up_bytes, down=ended.down_bytes)

    def _on_spoken(self, user: int, task: asyncio.Task[None] | None) -> None:
        """Note that a task's connection keeps no large request any more."""
        if task is not None and (held := self._held.get(user)) is not None:
            held.silent.pop(task, None)

"""The gateway: sessions come from those who were invited, and their streams go on as TCP connections."""

import asyncio
import socket
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import Final

import structlog

from cedos.errors import CedosError, SessionError
from cedos.kernel.process import open_files
from cedos.kernel.process.memory_room import MemoryRoom
from cedos.proxy.gateway.admission import DestinationRules, IPNetwork, no_memory
from cedos.proxy.gateway.associations import Associations
from cedos.proxy.gateway.fetched_answer import RequestFetcher
from cedos.proxy.gateway.figures import GatewayFigures
from cedos.proxy.gateway.gateway_session import GatewaySession, SessionTerms, StreamService
from cedos.proxy.gateway.hand_over import Handed, HandOver, KeptSession
from cedos.proxy.gateway.name_service import NameService
from cedos.proxy.gateway.origin import Origins
from cedos.proxy.gateway.processes.gateway_process import GatewayProcess
from cedos.proxy.gateway.traffic import Traffic
from cedos.proxy.http import RefusedError
from cedos.proxy.streams.unread import Unread
from cedos.session.protocol.crypto import KeyPair
from cedos.session.protocol.session_limits import SessionLimits
from cedos.session.sockets.connection import Connection
from cedos.session.sockets.handed_flow import HandedFlow
from cedos.session.sockets.listener import Listener
from cedos.session.sockets.sockets import listen

PORT: Final = 7009
SSH: Final = 22
KEEP_ALIVE_S: Final = 3_600
"""A session lives for so long without any network, and its connections with it."""

LIMITS: Final = SessionLimits(probes=False, keep_alive_s=KEEP_ALIVE_S)
"""Paths that carry nothing are not measured: on a metered network that would cost bytes."""

_SPARE_FILES: Final = 256
"""Of the files it may have open: for clients' paths and strangers' handshakes."""

_LEAST_MEMORY: Final = 16 << 20
_SHOWN_S: Final = 0.5

_log: Final[structlog.stdlib.BoundLogger] = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class GatewaySettings:
    """What a gateway does (`cedos gateway --help`).

    `inside`, `local`: it also connects to these private networks, and to its own host; `most`,
    `most_per_client`: connections at once; `names`: whether destinations are logged; `idle`: a file for
    the sessions of clients that are away and have no connections.
    """

    listen: tuple[str, int] = ("", PORT)
    deny: Sequence[IPNetwork] = ()
    inside: Sequence[IPNetwork] = ()
    local: bool = False
    most: int = 20_000
    most_per_client: int = 2_000
    idle_s: float = 86_400.0
    connect_s: float = 10.0
    names: bool = False
    idle: Path | None = None

    def rules(self) -> DestinationRules:
        """Where it may connect."""
        return DestinationRules(
            [self.listen[1]],
            self.deny,
            inside=self.inside,
            # Those who were invited may have their SSH; mail between servers stays closed.
            ports=[SSH],
            local=self.local,
        )


class Gateway:
    """`open` (HostError: it cannot listen), then `run` until it is cancelled, then `close`.

    Args:
        clients: by public key, who is invited: its name, None for nobody.
        service: serves what clients ask for on their sessions' streams.
        process: which of several this one is.
        requests: fetches what programs ask for by plain HTTP.
    """

    def __init__(
        self,
        settings: GatewaySettings,
        me: KeyPair,
        clients: Callable[[bytes], str | None],
        service: Callable[[Connection], StreamService] | None = None,
        process: GatewayProcess | None = None,
        requests: RequestFetcher | None = None,
    ) -> None:
        self._process = process
        self._settings = settings
        self._me = me
        self._clients = clients
        origins = Origins(settings.rules(), settings.connect_s)
        self._memory = MemoryRoom()
        self._free_bytes = free_bytes = _shared(
            self._memory.free_bytes(), 1 if process is None else len(process.siblings)
        )
        self._associations = Associations(origins, self._memory)
        self._names = NameService()
        self._terms = SessionTerms(
            origins,
            self._associations,
            self._names,
            self._admit,
            clients,
            settings.idle_s,
            settings.names,
            service,
            requests,
            unread=Unread() if free_bytes is None else Unread.within(free_bytes // 2),
        )
        self._listener: Listener | None = None
        self._sessions: dict[asyncio.Task[None], GatewaySession] = {}
        self._left: list[socket.socket] = []
        self.handed_over = False
        self._most = settings.most

    @property
    def address(self) -> tuple[str, int]:
        assert self._listener is not None
        return self._listener.address

    @property
    def streams(self) -> int:
        return sum(map(len, self._sessions.values()))

    @property
    def sessions(self) -> int:
        return len(self._sessions)

    def figures(self) -> GatewayFigures:
        """`held_bytes`: what is kept in memory for clients and origins."""
        traffic = self._terms.traffic
        return GatewayFigures(
            self.sessions,
            self.streams,
            sum(session.connection.held_bytes for session in self._sessions.values()),
            traffic.sessions,
            traffic.taken_over,
            traffic.connections,
            traffic.refused,
            traffic.up_bytes,
            traffic.down_bytes,
        )

    @property
    def traffic(self) -> Traffic:
        return self._terms.traffic

    async def open(self, handed: Handed | None = None) -> None:
        """Listens; goes on with what the process before this one left."""
        files = open_files.allow()
        self._most = min(self._settings.most, max(1, files - _SPARE_FILES))
        if self._most < self._settings.most:
            _log.warning(
                "the limit of open files allows fewer connections at once than wanted",
                wanted=self._settings.most,
                allowed=self._most,
                open_files=files,
            )
        process = self._process
        if process is not None:
            listening: socket.socket | None = process.listening
        else:
            listening = None if handed is None else handed.listening(self._settings.listen[1])
        try:
            self._listener = await self._listen(listening, self._settings.idle)
        except (SessionError, OSError) as error:
            _log.warning("idle sessions stay in memory", why=str(error))
            self._listener = await self._listen(listening, None)
        if self._free_bytes is not None:  # (half of it is for what servers do not read)
            self._listener.keep_at_most(self._free_bytes // 4)
        if handed is not None:
            for kept in handed.state.sessions:
                self._take_over(kept, handed)
            handed.close()
        self._show()

    async def _listen(self, listening: socket.socket | None, idle: Path | None) -> Listener:
        process = self._process
        return await listen(
            self._settings.listen,
            key=self._me,
            allow=lambda key: self._clients(key) is not None,
            idle=idle,
            scheduler="prompt-swtc",
            limits=LIMITS,
            listening=listening,
            siblings=None if process is None else process.siblings,
        )

    def _show(self) -> None:
        if self._process is not None and not self.handed_over:
            self._process.board.write(self._process.number, self.figures())
            asyncio.get_running_loop().call_later(_SHOWN_S, self._show)

    async def run(self) -> None:
        assert self._listener is not None
        while True:
            # (No name for it here: it would keep the last one while the next is waited for.)
            self._serve(GatewaySession(await self._listener.accept(), self._terms))
            self._terms.traffic.sessions += 1

    async def close(self) -> None:
        """End all sessions, which resets their connections."""
        if self._listener is not None:
            self._listener.stop()
        for task, session in list(self._sessions.items()):
            session.connection.abort("the gateway ends")
            with suppress(SessionError):
                await session.connection.drained()
            await session.close()
            task.cancel()
        await asyncio.gather(*self._sessions, return_exceptions=True)
        self._associations.close()
        self._names.close()
        if self._listener is not None:
            await self._listener.close()

    async def hand_over(self) -> HandOver:
        """Stops here, and is what another process goes on with; the sockets in it stay open."""
        assert self._listener is not None
        self.handed_over = True
        listening = self._listener.stop()
        kept = []
        for task, session in list(self._sessions.items()):
            if (each := await session.keep()) is not None:
                kept.append(each)
                self._left += session.left()
            else:
                session.connection.abort("the gateway begins anew")
                with suppress(SessionError):
                    await session.connection.drained()
            task.cancel()
        await asyncio.gather(*self._sessions, return_exceptions=True)
        self._associations.close()
        self._names.close()
        left = [each.fileno() for each in self._left]
        return HandOver.make(listening, kept, left, shared=self._process is not None)

    def _take_over(self, kept: KeptSession, handed: Handed) -> None:
        assert self._listener is not None
        try:
            connection = self._listener.take_over(HandedFlow(kept.credentials, kept.session))
        except (ValueError, CedosError) as error:
            _log.warning("a session cannot be gone on with", why=str(error))
            return
        self._terms.traffic.taken_over += 1
        self._serve(
            GatewaySession(
                connection,
                self._terms,
                kept,
                lambda each: handed.take(each.inode),
            )
        )

    def _serve(self, session: GatewaySession) -> None:
        task = asyncio.get_running_loop().create_task(session.run())
        self._sessions[task] = session
        task.add_done_callback(lambda done: self._sessions.pop(done, None))

    def _admit(self, client: bytes) -> None:
        settings = self._settings
        if self._clients(client) is None:
            raise RefusedError(
                HTTPStatus.FORBIDDEN, "http_request_denied", "this client is not invited any more"
            )
        if self._memory.short():
            raise no_memory()
        theirs = sum(
            len(each) for each in self._sessions.values() if each.connection.peer_key == client
        )
        streams, elsewhere = self.streams, 0
        if self._process is not None:
            self._process.board.connects(self._process.number, streams)
            elsewhere = self._process.board.connections_elsewhere(self._process.number)
        for count, most, whose in (
            (streams, self._most, "the gateway takes"),
            (streams + elsewhere, settings.most, "the gateway takes"),
            (theirs, settings.most_per_client, "one client may have"),
        ):
            if count > most:
                if self._process is not None:
                    self._process.board.connects(self._process.number, streams - 1)
                raise RefusedError(
                    HTTPStatus.SERVICE_UNAVAILABLE,
                    "connection_limit_reached",
                    f"{most} connections are all that {whose}",
                )


def _shared(free_bytes: int | None, processes: int) -> int | None:
    """What each of so many processes may plan with: whatever else has taken of a limit, a little."""
    return None if free_bytes is None else max(_LEAST_MEMORY, free_bytes // processes)

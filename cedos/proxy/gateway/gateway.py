"""The gateway: sessions come from those who were invited, and their streams go on as TCP connections."""

import asyncio
import resource
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from http import HTTPStatus
from typing import Final

import structlog

from cedos.errors import SessionError
from cedos.proxy.answers import RefusedError
from cedos.proxy.gateway.admission import DestinationRules, IPNetwork
from cedos.proxy.gateway.origin import Origins
from cedos.proxy.streams.carry import carry
from cedos.proxy.streams.frames import OpenStream
from cedos.proxy.streams.multiplexer import Multiplexer
from cedos.proxy.streams.stream import ProxiedStream
from cedos.session.protocol.crypto import KeyPair
from cedos.session.protocol.session_limits import SessionLimits
from cedos.session.sockets.connection import Connection
from cedos.session.sockets.listener import Listener
from cedos.session.sockets.sockets import listen

PORT: Final = 7009
SSH: Final = 22
KEEP_ALIVE_S: Final = 3_600
"""A session lives for so long without any network, and its connections with it."""

LIMITS: Final = SessionLimits(probes=False, keep_alive_s=KEEP_ALIVE_S)
"""Paths that carry nothing are not measured: on a metered network that would cost bytes."""

_SPARE_FILES: Final = 256
_log: Final[structlog.stdlib.BoundLogger] = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class GatewaySettings:
    """What a gateway does (`cedos gateway --help`).

    `inside`, `local`: it also connects to these private networks, and to its own host; `most`,
    `most_per_client`: connections at once; `names`: whether destinations are logged.
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


class Gateway:
    """`open` (HostError: it cannot listen), then `run` until it is cancelled, then `close`.

    Args:
        clients: by public key, who is invited: its name, None for nobody.
    """

    def __init__(
        self, settings: GatewaySettings, me: KeyPair, clients: Callable[[bytes], str | None]
    ) -> None:
        self._settings = settings
        self._me = me
        self._clients = clients
        rules = DestinationRules(
            [settings.listen[1]],
            settings.deny,
            inside=settings.inside,
            # Those who were invited may have their SSH; mail between servers stays closed.
            ports=[SSH],
            local=settings.local,
        )
        self._origins = Origins(rules, settings.connect_s)
        self._listener: Listener | None = None
        self._sessions: dict[asyncio.Task[None], Connection] = {}
        self._streams: set[asyncio.Task[None]] = set()
        self._per_client: Counter[bytes] = Counter()

    @property
    def address(self) -> tuple[str, int]:
        assert self._listener is not None
        return self._listener.address

    @property
    def streams(self) -> int:
        return len(self._streams)

    async def open(self) -> None:
        hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        with suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        self._listener = await listen(
            self._settings.listen,
            key=self._me,
            allow=lambda key: self._clients(key) is not None,
            scheduler="prompt-swtc",
            limits=LIMITS,
        )

    async def run(self) -> None:
        assert self._listener is not None
        while True:
            connection = await self._listener.accept()
            task = asyncio.get_running_loop().create_task(self._serve(connection))
            self._sessions[task] = connection
            task.add_done_callback(lambda done: self._sessions.pop(done, None))

    async def close(self) -> None:
        """Ends all sessions, which resets their connections."""
        for task, connection in list(self._sessions.items()):
            connection.abort("the gateway ends")
            with suppress(SessionError):
                await connection.drained()
            task.cancel()
        left = [*self._sessions, *self._streams]
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)
        if self._listener is not None:
            await self._listener.close()

    async def _serve(self, connection: Connection) -> None:
        client = connection.peer_key
        name = self._clients(client) or "unknown"
        _log.info("client came", client=name)
        streams = Multiplexer(connection, lambda stream, asked: self._opened(client, stream, asked))
        try:
            await streams.run()
            if not connection.ended:
                await connection.close()
        except SessionError as error:
            _log.debug("session ended", client=name, why=str(error))
        finally:
            _log.info("client left", client=name)

    def _opened(self, client: bytes, stream: ProxiedStream, asked: OpenStream) -> None:
        task = asyncio.get_running_loop().create_task(self._carry(client, stream, asked))
        self._streams.add(task)
        self._per_client[client] += 1
        task.add_done_callback(lambda done: self._over(done, client))

    def _over(self, task: asyncio.Task[None], client: bytes) -> None:
        self._streams.discard(task)
        self._per_client[client] -= 1
        if not self._per_client[client]:
            del self._per_client[client]
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.error("a connection failed", exc_info=error)

    async def _carry(self, client: bytes, stream: ProxiedStream, asked: OpenStream) -> None:
        where = {"origin": f"{asked.host}:{asked.port}"} if self._settings.names else {}
        try:
            self._admit(client)
            origin = await self._origins.connect(asked.host, asked.port)
        except RefusedError as error:
            _log.debug("refused", client=self._clients(client), reason=error.kind, **where)
            with suppress(OSError):
                await stream.refuse(error)
            return
        try:
            with suppress(OSError):
                await stream.accept()
            moved = await carry(origin, stream, idle_s=self._settings.idle_s)
        finally:
            self._origins.close(origin)
        # (What it sent is what came down from the origin.)
        _log.debug(
            "carried", client=self._clients(client), ended=moved.ended,
            up_bytes=moved.down_bytes, down_bytes=moved.up_bytes, **where,
        )  # fmt: skip

    def _admit(self, client: bytes) -> None:
        settings = self._settings
        if self._clients(client) is None:
            raise RefusedError(
                HTTPStatus.FORBIDDEN, "http_request_denied", "this client is not invited any more"
            )
        for count, most, whose in (
            (len(self._streams), settings.most, "the gateway takes"),
            (self._per_client[client], settings.most_per_client, "one client may have"),
        ):
            if count > most:
                raise RefusedError(
                    HTTPStatus.SERVICE_UNAVAILABLE,
                    "connection_limit_reached",
                    f"{most} connections are all that {whose}",
                )

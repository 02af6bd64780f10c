"""A laptop's session at the gateway: each of its streams goes on as a TCP connection.

DNS questions of clients, which the gateway puts to its own resolvers.
"""

import asyncio
import socket
from collections import Counter
from collections.abc import Callable, Coroutine
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field
from typing import Any, Final, Protocol, TypeVar

from cedos.errors import SessionAsleepError, SessionError
from cedos.logs import BoundLogger, get_logger
from cedos.proxy.gateway.origin import Origins, asking_user
from cedos.proxy.gateway.packet_relay import Associations
from cedos.proxy.http import RefusedError
from cedos.proxy.names import ASKED_S, NobodyAnswersError, Resolver, read, servfail
from cedos.proxy.own_tasks import OwnTasks
from cedos.proxy.splice import end_on_close, reset_on_close
from cedos.proxy.streams.association import ProxiedAssociation
from cedos.proxy.streams.carry import LAST_S, Carry
from cedos.proxy.streams.frames import LARGEST_PACKET, GatewayAnswer, GatewayQuestion, OpenStream
from cedos.proxy.streams.multiplexer import Multiplexer
from cedos.proxy.streams.stream import ProxiedStream, StreamBrokenError
from cedos.proxy.streams.unread import Unread
from cedos.session.sockets.connection import Connection

_log: Final[BoundLogger] = get_logger()
# The lifetime of an answer. After this time the client has asked another resolver.
ANSWER_S: Final = 2.0
MOST: Final = 512
MOST_PER_CLIENT: Final = 64
# Sends a datagram; after so many seconds it is dropped instead.
Say = Callable[[bytes, float], None]
_T = TypeVar("_T")


async def unless_broken(stream: ProxiedStream, work: Coroutine[Any, Any, _T]) -> _T:
    """Return the work's result. If the stream breaks first, cancel the work: StreamBrokenError."""
    working = asyncio.get_running_loop().create_task(work)

    def on_change() -> None:
        if stream.broken is not None:
            working.cancel()

    stream.watch(on_change)
    on_change()
    try:
        return await working
    except asyncio.CancelledError:
        if stream.broken is None:
            raise  # the caller cancelled this task
        raise StreamBrokenError("the program has gone") from None
    finally:
        stream.watch(lambda: None)


class NameService:
    """A resolver for clients. It drops questions beyond its limits; clients then ask another resolver."""

    def __init__(
        self,
        resolver: Resolver | None = None,
        *,
        most: int = MOST,
        most_per_client: int = MOST_PER_CLIENT,
    ) -> None:
        self._resolver = resolver or Resolver()
        self._most, self._most_per_client = most, most_per_client
        self._tasks: set[asyncio.Task[None]] = set()
        self._per_client: Counter[bytes] = Counter()

    def answer(self, client: bytes, asked: GatewayQuestion, say: Say) -> None:
        if len(self._tasks) >= self._most or self._per_client[client] >= self._most_per_client:
            return
        self._per_client[client] += 1
        task = asyncio.get_running_loop().create_task(self._ask(asked, say))
        self._tasks.add(task)
        task.add_done_callback(lambda done: self._on_done(done, client))

    def close(self) -> None:
        for task in self._tasks:
            task.cancel()

    async def _ask(self, asked: GatewayQuestion, say: Say) -> None:
        question = read(asked.message)
        if question is None:
            return
        try:
            async with asyncio.timeout(ASKED_S):  # the client does not wait longer
                answer = await self._resolver.ask(asked.message, question)
        except (NobodyAnswersError, TimeoutError):
            answer = servfail(asked.message, question)
        if len(answer) > LARGEST_PACKET:
            answer = servfail(asked.message, question)
        say(GatewayAnswer(asked.number, answer).pack(), ANSWER_S)

    def _on_done(self, task: asyncio.Task[None], client: bytes) -> None:
        self._tasks.discard(task)
        self._per_client[client] -= 1
        if not self._per_client[client]:
            del self._per_client[client]


class StreamService(Protocol):
    """A server of requests on a session's own stream, beside all proxied ones."""

    async def run(self) -> None:
        """Serve until the stream ends. SessionError."""


@dataclass(frozen=True, slots=True)
class SessionTerms:
    """Services and limits that all sessions of a gateway share."""

    origins: Origins
    associations: Associations
    name_service: NameService
    # Counts one more connection or association that a client opens (ValueError: it opens too many).
    count_open: Callable[[bytes], None]
    # Counts files that a client opens until they are closed (RefusedError: not one more).
    admitted: Callable[[bytes, int], AbstractContextManager[None]]
    # Returns a client's name; None: it is not invited any more.
    name_of: Callable[[bytes], str | None]
    idle_s: float
    # Returns the server of a session's own stream.
    service: Callable[[Connection], StreamService] | None = None
    # Returns the answer to a client's question about shared bandwidth, which came over this session;
    # None: there is none.
    share: Callable[[Connection, bytes], bytes | None] | None = None
    unread: Unread = field(default_factory=Unread)


class GatewaySession:
    """A laptop's session; `run` returns once it has ended."""

    def __init__(self, connection: Connection, terms: SessionTerms) -> None:
        self.connection = connection
        self._terms = terms
        self._client = connection.peer_key
        self._name = terms.name_of(self._client) or "unknown"
        self._tasks = OwnTasks(_log, "a connection failed")
        self._service = terms.service(connection) if terms.service is not None else None
        self._streams = Multiplexer(
            connection,
            self._on_opened,
            self._on_associated,
            self._on_question,
            terms.unread.client(self._client),
        )
        connection.on_sleep(self._state)

    def _state(self) -> bytes | None:
        """Return the state with which the session may sleep; None: something was begun here."""
        rests = self._service is None or self.connection.rests
        return self._streams.state() if rests and not self._tasks else None

    async def run(self) -> None:
        _log.info("client came", client=self._name)
        serving = asyncio.get_running_loop().create_task(self._serve())
        try:
            await self._streams.run()
            if not self.connection.ended:
                await self.connection.close()
        except SessionError as error:
            _log.debug("session ended", client=self._name, why=str(error))
        finally:
            serving.cancel()
            await asyncio.gather(serving, return_exceptions=True)
            if isinstance(self.connection.failure, SessionAsleepError):
                _log.info("client sleeps", client=self._name)
            else:
                _log.info("client left", client=self._name)
            # What came whole may still be handed on.
            await self._tasks.end(LAST_S)

    async def close(self) -> None:
        """End the connections that are left."""
        await self._tasks.end()

    def _on_opened(self, stream: ProxiedStream, asked: OpenStream) -> None:
        self._terms.count_open(self._client)
        self._tasks.begin(self._open(stream, asked))

    def _on_associated(self, association: ProxiedAssociation) -> None:
        self._terms.count_open(self._client)
        try:
            with ExitStack() as counted:
                # It has a socket for each version of IP.
                counted.enter_context(self._terms.admitted(self._client, 2))
                self._terms.associations.open(self._client, association, counted)
        except RefusedError as error:
            association.refuse(error)

    def _on_question(self, question: GatewayQuestion) -> None:
        if self._terms.name_of(self._client) is None:
            return
        if not question.share:
            self._terms.name_service.answer(self._client, question, self._streams.send_packet)
        elif self._terms.share is not None:
            answer = self._terms.share(self.connection, question.message)
            if answer is not None:
                self._streams.send_packet(
                    GatewayAnswer(question.number, answer, share=True).pack(), ANSWER_S
                )

    async def _serve(self) -> None:
        if self._service is None:
            return
        try:
            await self._service.run()
        except SessionError as error:
            _log.debug("serves no more", client=self._name, why=str(error))
        except Exception as error:
            _log.error("serving a client failed", exc_info=error)
            self.connection.abort("the gateway failed")

    async def _open(self, stream: ProxiedStream, asked: OpenStream) -> None:
        """Serve a stream until it is over. If anything fails, drop it: its program must not wait."""
        asking_user.set(asked.user)
        try:
            with ExitStack() as counted:
                connected = self._connect(asked, counted)
                with await unless_broken(stream, connected) as origin:
                    stream.accept()
                    await self._carry(stream, origin)
        except RefusedError as error:
            _log.debug("refused", client=self._name, reason=error.kind)
            stream.refuse(error)
        except StreamBrokenError:
            stream.drop()
        except BaseException:
            stream.drop()
            raise

    async def _connect(self, asked: OpenStream, counted: ExitStack) -> socket.socket:
        # What it asks for may cost more than to read that it asks.
        await self.connection.flow.driver.turns.turn(self._client.hex())
        counted.enter_context(self._terms.admitted(self._client, 1))
        return await self._terms.origins.connect(asked.host, asked.port, self._client)

    async def _carry(self, stream: ProxiedStream, origin: socket.socket) -> None:
        # If this process ends, the origin must see a reset. An orderly end would look like a complete
        # one.
        reset_on_close(origin)
        try:
            moved = await Carry(origin, stream, idle_s=self._terms.idle_s).run()
        finally:
            if stream.over:
                end_on_close(origin)
        # `Carry` counts from the stream's side: its "up" is what came down from the origin.
        _log.debug(
            "carried", client=self._name, ended=moved.ended,
            up_bytes=moved.down_bytes, down_bytes=moved.up_bytes,
        )  # fmt: skip

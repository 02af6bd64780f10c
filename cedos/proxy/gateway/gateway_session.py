"""A laptop's session at the gateway: each of its streams goes on as a TCP connection."""

import asyncio
import socket
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, Protocol

import structlog

from cedos.errors import SessionAsleepError, SessionError
from cedos.proxy.gateway.associations import Associations
from cedos.proxy.gateway.fetched_answer import (
    FetchedAnswer,
    RequestFetcher,
    fetched,
    request_head,
    send_answer,
    unless_broken,
)
from cedos.proxy.gateway.name_service import ANSWER_S, NameService
from cedos.proxy.gateway.origin import Origins
from cedos.proxy.http import RefusedError
from cedos.proxy.own_tasks import OwnTasks
from cedos.proxy.splice import end_on_close, reset_on_close
from cedos.proxy.streams.association import ProxiedAssociation
from cedos.proxy.streams.carry import Carry
from cedos.proxy.streams.frames import GatewayAnswer, GatewayQuestion, OpenStream
from cedos.proxy.streams.multiplexer import Multiplexer
from cedos.proxy.streams.stream import ProxiedStream, StreamBrokenError
from cedos.proxy.streams.unread import Unread
from cedos.session.sockets.connection import Connection

_log: Final[structlog.stdlib.BoundLogger] = structlog.get_logger()


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
    admit: Callable[[bytes], None]  # refuses one more of a client (RefusedError)
    # Returns a client's name; None: it is not invited any more.
    name_of: Callable[[bytes], str | None]
    idle_s: float
    # Returns the server of a session's own stream.
    service: Callable[[Connection], StreamService] | None = None
    requests: RequestFetcher | None = None  # fetches objects for programs
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
            self._opened,
            self._associated,
            self._asked,
            terms.unread.share(self._client),
        )

    def __len__(self) -> int:
        """Return the number of connections; one counts until the client has ended it, too.

        An association counts as two: it has a socket for each version of IP.
        """
        streams = len(self._streams.streams)
        return max(len(self._tasks), streams) + 2 * (len(self._streams) - streams)

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

    async def close(self) -> None:
        """End the connections that are left."""
        await self._tasks.end()

    def _opened(self, stream: ProxiedStream, asked: OpenStream) -> None:
        self._terms.count_open(self._client)
        self._tasks.begin(self._open(stream, asked))

    def _associated(self, association: ProxiedAssociation) -> None:
        self._terms.count_open(self._client)
        try:
            self._terms.admit(self._client)
            self._terms.associations.open(self._client, association)
        except RefusedError as error:
            association.refuse(error)

    def _asked(self, question: GatewayQuestion) -> None:
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
        try:
            self._terms.admit(self._client)
            await self._serve_stream(stream, asked)
        except RefusedError as error:
            _log.debug("refused", client=self._name, reason=error.kind)
            stream.refuse(error)
        except StreamBrokenError:
            stream.drop()
        except BaseException:
            stream.drop()
            raise

    async def _serve_stream(self, stream: ProxiedStream, asked: OpenStream) -> None:
        if asked.fetch and (found := await self._fetched(stream, asked)) is not None:
            await send_answer(stream, found)
            return
        connecting = self._terms.origins.connect(asked.host, asked.port, self._client)
        with await unless_broken(stream, connecting) as origin:
            stream.accept()
            await self._carry(stream, origin)

    async def _fetched(self, stream: ProxiedStream, asked: OpenStream) -> FetchedAnswer | None:
        """Return the gateway's own answer; None: a connection to the origin answers."""
        if self._terms.requests is None or (request := await request_head(stream)) is None:
            return None
        fetching = fetched(self._terms.requests, self._client, asked, request)
        return await unless_broken(stream, fetching)

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

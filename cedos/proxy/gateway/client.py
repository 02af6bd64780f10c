"""The side that faces the users: one accepted connection, from its request to its end."""

import asyncio
import socket
import time
from contextlib import suppress
from http import HTTPStatus
from typing import Final

import structlog

from cedos.model import Address
from cedos.proxy.gateway.admission import ClientRules
from cedos.proxy.gateway.listening import original_destination, subflows
from cedos.proxy.gateway.origin import Origins, keep_alive
from cedos.proxy.http import ESTABLISHED, ProxyRequest, RefusedError, RequestParser, answer
from cedos.proxy.splice import Tunnel, TunnelBytes, reset_on_close

_HEAD_TIMEOUT_S: Final = 20.0
_ANSWER_TIMEOUT_S: Final = 5.0
_LINGER_S: Final = 1.0
_BLOCK: Final = 16384

log: Final[structlog.stdlib.BoundLogger] = structlog.get_logger()


class RelayClient:
    """`serve` owns the socket and closes it. `transparent`: the client was on its way somewhere else."""

    def __init__(
        self,
        connection: socket.socket,
        name: str,
        *,
        transparent: bool,
        clients: ClientRules,
        origins: Origins,
        buffer: memoryview,
        idle_s: float,
        address: Address,
    ) -> None:
        self._connection = connection
        self._name = name
        self._transparent = transparent
        self._clients = clients
        self._origins = origins
        self._buffer = buffer
        self._idle_s = idle_s
        self._address = address
        self._tunnel: Tunnel | None = None

    def stop(self) -> None:
        if self._tunnel is not None:
            self._tunnel.end("stopped")

    @property
    def carries(self) -> bool:
        return self._tunnel is not None

    async def serve(self, refused: RefusedError | None = None) -> None:
        """Does what the client wants, or says why not (`refused`: whatever it wants); then closes."""
        began_s = time.monotonic()
        where = ""
        with self._connection:
            try:
                keep_alive(self._connection)
                with suppress(OSError):
                    self._connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                if refused is not None:
                    raise refused
                request = self._diverted() if self._transparent else await self._request()
                if request is None:
                    return
                where = f"{request.host}:{request.port}"
                moved, flows = await self._relay(request)
            except RefusedError as error:
                log.info(
                    "refused", client=self._name, origin=where, status=error.status.value,
                    reason=error.details,
                )  # fmt: skip
                await self._say(error)
            except OSError as error:
                log.info("client lost", client=self._name, origin=where, reason=str(error))
            else:
                log.info(
                    "relayed", client=self._name, origin=where, ended=moved.ended,
                    up_bytes=moved.up_bytes, down_bytes=moved.down_bytes,
                    seconds=round(time.monotonic() - began_s, 3), subflows=flows,
                )  # fmt: skip

    async def _request(self) -> ProxyRequest | None:
        """What the client asks for; None: it went away without a word."""
        loop = asyncio.get_running_loop()
        parser = RequestParser()
        try:
            async with asyncio.timeout(_HEAD_TIMEOUT_S):
                while True:
                    data = await loop.sock_recv(self._connection, _BLOCK)
                    if not data:
                        if parser.empty:
                            return None
                        raise ConnectionResetError("it ended in the middle of its request")
                    if (request := parser.feed(data)) is not None:
                        break
        except TimeoutError:
            if parser.empty:
                return None
            raise RefusedError(
                HTTPStatus.REQUEST_TIMEOUT,
                "http_request_error",
                f"no whole request within {_HEAD_TIMEOUT_S:g} s",
            ) from None
        self._clients.check(request.credentials)
        return request

    def _diverted(self) -> ProxyRequest:
        host, port = original_destination(self._connection)
        return ProxyRequest(True, host, port, b"", None, None, b"")

    async def _relay(self, request: ProxyRequest) -> tuple[TunnelBytes, int | None]:
        origin = await self._origins.connect(request.host, request.port, self._address)
        try:
            if request.tunnel and not self._transparent:
                await self._send(ESTABLISHED)
            limit = request.body_bytes
            rest = request.rest if limit is None else request.rest[:limit]
            self._tunnel = Tunnel(
                self._connection,
                origin,
                self._buffer,
                idle_s=self._idle_s,
                first_up=request.head + rest,
                up_limit=None if limit is None else limit - len(rest),
            )
            moved = await self._tunnel.run()
            return moved, subflows(self._connection)
        finally:
            self._origins.close(origin)

    async def _send(self, data: bytes) -> None:
        try:
            async with asyncio.timeout(_ANSWER_TIMEOUT_S):
                await asyncio.get_running_loop().sock_sendall(self._connection, data)
        except TimeoutError:
            raise ConnectionAbortedError("it does not take the answer") from None

    async def _say(self, refused: RefusedError) -> None:
        """Answers and lets the client read it: closing at once could reset what is on its way."""
        if self._transparent:
            reset_on_close(self._connection)
            return
        loop = asyncio.get_running_loop()
        with suppress(OSError, TimeoutError):
            await self._send(answer(refused))
            self._connection.shutdown(socket.SHUT_WR)
            async with asyncio.timeout(_LINGER_S):
                while await loop.sock_recv(self._connection, _BLOCK):
                    pass

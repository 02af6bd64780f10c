"""A program's request to the proxy, in SOCKS 5 or HTTP, and its refusal."""

import asyncio
import socket
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from cedos.proxy.http import ESTABLISHED, ProxyRequest, RefusedError, RequestParser, answer
from cedos.proxy.local.socks import VERSION, SocksError, SocksParser, SocksReply, reply, reply_of

_LINGER_S: Final = 1.0
_BLOCK: Final = 16_384


@dataclass(frozen=True, slots=True)
class ProgramRequest:
    """A connection that a program asks for."""

    host: str
    port: int
    accepted: bytes = b""  # the bytes for the program once it is connected
    first: bytes = b""  # the bytes that go to the origin first
    # How many bytes after `first` the program may send to the origin; None: any number.
    limit: int | None = None
    associates: bool = False  # the program wants to send datagrams (SOCKS 5), from `port`
    fetch: bool = False  # `first` is the head of a GET without a body
    socks: bool = False  # the program speaks SOCKS 5


async def read_request(program: socket.socket) -> ProgramRequest | None:
    """Return a program's request; None: it was refused, or the program has gone. OSError."""
    loop = asyncio.get_running_loop()
    data = await loop.sock_recv(program, _BLOCK)
    if not data:
        return None
    return await (_socks(program, data) if data[0] == VERSION else _http(program, data))


async def _socks(program: socket.socket, data: bytes) -> ProgramRequest | None:
    loop, parser = asyncio.get_running_loop(), SocksParser()
    while data:
        try:
            request = parser.feed(data)
        except SocksError as error:
            await _say(program, parser.answers + error.answer)
            return None
        if parser.answers:
            await loop.sock_sendall(program, parser.answers)
        if request is not None:
            return ProgramRequest(
                request.host,
                request.port,
                reply(SocksReply.SUCCEEDED),
                request.rest,
                associates=request.associates,
                socks=True,
            )
        data = await loop.sock_recv(program, _BLOCK)
    return None


async def _http(program: socket.socket, data: bytes) -> ProgramRequest | None:
    loop, parser = asyncio.get_running_loop(), RequestParser()
    request: ProxyRequest | None = None
    try:
        while request is None:
            request = parser.feed(data)
            if request is None and not (data := await loop.sock_recv(program, _BLOCK)):
                return None
    except RefusedError as error:
        await _say(program, answer(error))
        return None
    limit = request.body_bytes
    rest = request.rest if limit is None else request.rest[:limit]
    return ProgramRequest(
        request.host,
        request.port,
        ESTABLISHED if request.tunnel else b"",
        request.head + rest,
        None if limit is None else limit - len(rest),
        fetch=request.fetches,
    )


async def refuse(program: socket.socket, request: ProgramRequest, error: RefusedError) -> None:
    """Say why the connection was refused, in the program's protocol."""
    await _say(program, reply(reply_of(error)) if request.socks else answer(error))


async def _say(program: socket.socket, data: bytes) -> None:
    """Send an answer and wait until the program closes: closing first could reset it on its way."""
    loop = asyncio.get_running_loop()
    with suppress(OSError, TimeoutError):
        async with asyncio.timeout(_LINGER_S):
            await loop.sock_sendall(program, data)
            program.shutdown(socket.SHUT_WR)
            while await loop.sock_recv(program, _BLOCK):
                pass

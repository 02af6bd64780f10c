"""Carries bytes between a socket and a stream, both ways, until both have ended or one breaks."""

import asyncio
import socket
from contextlib import suppress
from typing import Final

from cedos.proxy.answers import RefusedError
from cedos.proxy.splice import TunnelBytes, reset_on_close
from cedos.proxy.streams.stream import ProxiedStream

_BLOCK: Final = 1 << 16


async def carry(
    program: socket.socket,
    stream: ProxiedStream,
    *,
    first: bytes = b"",
    limit: int | None = None,
    idle_s: float | None = None,
) -> TunnelBytes:
    """Carries, and says how it ended: `complete`, `idle`, `program: ...` or `stream: ...`.

    What breaks on one side is broken on the other: the program's socket is made to reset when it is
    closed (the caller does that), the stream is reset.

    Args:
        first: goes to the stream before anything that the program sends.
        limit: of what the program sends then, so many bytes are carried, and the rest is left.
        idle_s: the longest time without a byte.
    """
    loop = asyncio.get_running_loop()
    ways = {
        loop.create_task(_up(program, stream, first, limit)),
        loop.create_task(_down(program, stream)),
    }
    try:
        ended = await _ended(ways, stream, idle_s)
    finally:
        for way in ways:
            way.cancel()
        await asyncio.gather(*ways, return_exceptions=True)
        if not stream.over:
            reset_on_close(program)
            await stream.reset()
    return TunnelBytes(stream.sent_bytes, stream.received_bytes, ended)


async def _ended(
    ways: set["asyncio.Task[str]"], stream: ProxiedStream, idle_s: float | None
) -> str:
    waiting, carried = ways, -1
    while waiting:
        done, waiting = await asyncio.wait(
            waiting, timeout=idle_s, return_when=asyncio.FIRST_COMPLETED
        )
        if broke := next((way.result() for way in done if way.result()), ""):
            return broke
        now = stream.sent_bytes + stream.received_bytes
        if not done and now == carried:
            return "idle"
        carried = now
    if not stream.finished:
        await stream.finish()
    return "complete"


async def _up(
    program: socket.socket, stream: ProxiedStream, first: bytes, limit: int | None
) -> str:
    """What the program sends; "" once it has ended, else what broke."""
    loop = asyncio.get_running_loop()
    try:
        if first:
            await stream.write(first)
        while limit is None or limit > 0:
            try:
                data = await loop.sock_recv(
                    program, _BLOCK if limit is None else min(_BLOCK, limit)
                )
            except OSError as error:
                return f"program: {error.strerror or error}"
            if not data:
                await stream.finish()
                break
            limit = None if limit is None else limit - len(data)
            await stream.write(data)
    except (OSError, RefusedError) as error:
        return f"stream: {error}"
    return ""


async def _down(program: socket.socket, stream: ProxiedStream) -> str:
    loop = asyncio.get_running_loop()
    while True:
        try:
            data = await stream.read()
        except (OSError, RefusedError) as error:
            return f"stream: {error}"
        try:
            if not data:
                with suppress(OSError):
                    program.shutdown(socket.SHUT_WR)
                return ""
            await loop.sock_sendall(program, data)
        except OSError as error:
            return f"program: {error.strerror or error}"

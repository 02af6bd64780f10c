"""Many flows at once through one process: how fairly they share (Jain's index, Cedos Table IV)."""

import asyncio
import contextlib
import resource
import socket
from collections.abc import Coroutine, Sequence
from typing import Any, Final

from cedos import session
from cedos.errors import SessionError
from cedos.session.protocol.session_limits import SessionLimits
from emu.workloads.sessions.peer import Peer

_PIECE: Final = bytes(16_384)
_SMALL: Final = SessionLimits(send_bytes=131_072, stream_window=131_072)
_AT_ONCE: Final = 32  # handshakes


def jain(rates: Sequence[float]) -> float:
    """Jain's index: 1 where all have the same, 1/n where one has everything."""
    squares = sum(rate * rate for rate in rates)
    return sum(rates) ** 2 / (len(rates) * squares) if squares else 0.0


def _more_files() -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


async def send_to_many(peer: Peer, sessions: int, raws: int) -> dict[str, Any]:
    _more_files()
    loop = asyncio.get_running_loop()
    flows: list[Coroutine[Any, Any, None]] = []
    for _ in range(raws):
        plain, _ = await loop.sock_accept(peer.plain)
        plain.setblocking(False)
        flows.append(_send_plain(plain))
    flows += [_send(await peer.accept()) for _ in range(sessions)]
    await asyncio.gather(*flows)
    return {}


async def _send(connection: session.Connection) -> None:
    with contextlib.suppress(SessionError):
        while True:
            await connection.write(_PIECE)


async def _send_plain(plain: socket.socket) -> None:
    loop = asyncio.get_running_loop()
    with plain, contextlib.suppress(OSError):
        while True:
            await loop.sock_sendall(plain, _PIECE)


async def receive_from_many(
    peer: Peer,
    mode: str,
    to: str,
    port: int,
    key: str,
    sessions: int,
    raws: int,
    raw_port: int,
    warm_s: float,
    seconds: float,
) -> dict[str, Any]:
    """Takes what all flows bring; the bytes of each within `seconds`, after a warm-up."""
    _more_files()
    loop = asyncio.get_running_loop()
    got = [0] * (sessions + raws)
    flows: list[Coroutine[Any, Any, None]] = []
    ends: list[Any] = []
    for number in range(raws):
        plain = socket.socket()
        plain.setblocking(False)
        await loop.sock_connect(plain, (to, raw_port))
        ends.append(plain)
        flows.append(_receive_plain(plain, got, number))
    turn = asyncio.Semaphore(_AT_ONCE)

    async def one() -> session.Connection:
        async with turn:
            return await peer.connect(mode, to, port, key, limits=_SMALL, timeout_s=120)

    connections = await asyncio.gather(*(one() for _ in range(sessions)))
    flows += [_receive(each, got, raws + number) for number, each in enumerate(connections)]
    tasks = [asyncio.ensure_future(flow) for flow in flows]
    await asyncio.sleep(warm_s)
    before, began_s = list(got), loop.time()
    await asyncio.sleep(seconds)
    took_s = loop.time() - began_s
    rates = [8 * (after - first) / took_s for after, first in zip(got, before, strict=True)]
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    for each in connections:
        each.abort("measured")
    for plain in ends:
        plain.close()
    await asyncio.sleep(0.5)
    return {"rates": rates}


async def _receive(connection: session.Connection, got: list[int], at: int) -> None:
    while data := await connection.read():
        got[at] += len(data)


async def _receive_plain(plain: socket.socket, got: list[int], at: int) -> None:
    loop = asyncio.get_running_loop()
    buffer = bytearray(1 << 16)
    while count := await loop.sock_recv_into(plain, buffer):
        got[at] += count

"""Throughput of sessions: one flow, many at once, small messages, urgent ones under load."""

import asyncio
import contextlib
import random
import resource
import socket
import time
from collections.abc import Coroutine, Sequence
from typing import Any, Final

from cedos import session
from cedos.errors import SessionError
from cedos.model import Bulk, Label, Urgency
from cedos.session.protocol.life import SessionLimits
from emu.workloads.sessions.pair import Peer

CHUNK_BYTES: Final = 1 << 18


async def push(
    peer: Peer, mode: str, to: str, port: int, key: str, size: int, **options: Any
) -> dict[str, Any]:
    """Send `size` bytes; ends when the other end says that it has them."""
    if mode == "raw":
        return await asyncio.to_thread(_push_raw, to, port, size)
    connection = await peer.connect(mode, to, port, key, **options)
    data = bytes(CHUNK_BYTES)
    used_s, began_s = time.process_time(), time.perf_counter()
    left = size
    while left:
        piece = data if left >= len(data) else data[:left]
        await connection.write(piece)
        left -= len(piece)
    await connection.read_exactly(1)
    figures = {"seconds": time.perf_counter() - began_s, "cpu_s": time.process_time() - used_s}
    await connection.close()
    return figures


async def pull(peer: Peer, mode: str, size: int) -> dict[str, Any]:
    """Take `size` bytes and say so."""
    if mode == "raw":
        return await asyncio.to_thread(_pull_raw, peer.plain, size)
    connection = await peer.accept()
    left = size
    used_s = time.process_time()
    while left:
        left -= len(await connection.read())
    connection.write_now(b".")
    figures = {"cpu_s": time.process_time() - used_s}
    await connection.close()
    return figures


def _push_raw(to: str, port: int, size: int) -> dict[str, Any]:
    data = bytes(CHUNK_BYTES)
    with socket.create_connection((to, port)) as connection:
        used_s, began_s = time.process_time(), time.perf_counter()
        left = size
        while left:
            left -= connection.send(data if left >= len(data) else data[:left])
        connection.recv(1)
        return {"seconds": time.perf_counter() - began_s, "cpu_s": time.process_time() - used_s}


def _pull_raw(listening: socket.socket, size: int) -> dict[str, Any]:
    listening.setblocking(True)
    connection, _ = listening.accept()
    listening.setblocking(False)
    buffer = bytearray(CHUNK_BYTES)
    with connection:
        connection.setblocking(True)
        used_s = time.process_time()
        left = size
        while left:
            left -= connection.recv_into(buffer)
        connection.send(b".")
        return {"cpu_s": time.process_time() - used_s}


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
    """Take what all flows bring; the bytes of each within `seconds`, after a warm-up."""
    _more_files()
    loop = asyncio.get_running_loop()
    got = [0] * (sessions + raws)
    flows: list[Coroutine[Any, Any, None]] = []
    ends: list[Any] = []
    # Plain TCP connections first, then the sessions, a few at a time.
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
    # Count only after all flows have found their rates.
    await asyncio.sleep(warm_s)
    before, began_s = list(got), loop.time()
    await asyncio.sleep(seconds)
    took_s = loop.time() - began_s
    rates = [8 * (after - first) / took_s for after, first in zip(got, before, strict=True)]
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    # End at once: what is still on its way is of no interest.
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


FOREGROUND: Final = Label(Urgency.FOREGROUND, Bulk.SMALL)
BACKGROUND: Final = Label(Urgency.BACKGROUND, Bulk.LARGE)
_LARGE: Final = bytes(250_000)
_URGENT, _ANSWER = bytes(500), bytes(8)
_EVERY_S: Final = 0.2


async def ask_under_load(
    peer: Peer,
    mode: str,
    to: str,
    port: int,
    key: str,
    seconds: float,
    background: bool,
) -> dict[str, Any]:
    """Ask small questions now and then, with a full background load or without.

    Returns:
        `times`: seconds until each answer was here.
    """
    seeded = random.Random(7)
    connection = await peer.connect(mode, to, port, key)
    load = asyncio.ensure_future(_load(connection)) if background else None
    await asyncio.sleep(2.0)
    times: list[float] = []
    began_s = time.perf_counter()
    while time.perf_counter() - began_s < seconds:
        await asyncio.sleep(seeded.uniform(0.5, 1.5) * _EVERY_S)
        asked_s = time.perf_counter()
        await connection.send(_URGENT, FOREGROUND, after=())
        await connection.receive()
        times.append(time.perf_counter() - asked_s)
    if load is not None:
        load.cancel()
    connection.abort("measured")
    await connection.wait_drained()
    return {"times": times}


async def _load(connection: session.Connection) -> None:
    while True:
        await connection.send(_LARGE, BACKGROUND, after=())


async def answer_under_load(peer: Peer) -> dict[str, Any]:
    connection = await peer.accept()
    try:
        while (message := await connection.receive()) is not None:
            if message.label != BACKGROUND:
                await connection.send(_ANSWER, FOREGROUND, after=())
    except SessionError:
        pass  # the other end is done
    return {}


SIZE: Final = 100
_LABEL: Final = Label()


async def send_messages(
    peer: Peer, mode: str, to: str, port: int, key: str, number: int
) -> dict[str, Any]:
    """Send messages as fast as they are taken."""
    connection = await peer.connect(mode, to, port, key)
    data = bytes(SIZE)
    began_s = time.perf_counter()
    for _ in range(number):
        await connection.send(data, _LABEL)
    await connection.receive()
    seconds = time.perf_counter() - began_s
    await connection.close()
    return {"seconds": seconds}


async def receive_messages(peer: Peer, number: int) -> dict[str, Any]:
    connection = await peer.accept()
    left = number
    while left:
        await connection.receive()
        left -= 1 + len(connection.receive_data_now(4096))
    await connection.send(b"all", _LABEL)
    await connection.close()
    return {}

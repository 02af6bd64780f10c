"""One large transfer: as plain TCP, as a session in clear, as a session."""

import asyncio
import socket
import time
from typing import Any, Final

from emu.workloads.sessions.peer import Peer

CHUNK_BYTES: Final = 1 << 18


async def push(
    peer: Peer, mode: str, to: str, port: int, key: str, size: int, **options: Any
) -> dict[str, Any]:
    """Sends `size` bytes; ends when the other end says that it has them."""
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
    """Takes `size` bytes and says so."""
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

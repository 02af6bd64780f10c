"""One large download over one session, whatever happens to the networks meanwhile."""

import os
import time
from typing import Any

from cedos.session import connect, listen
from cedos.session.protocol.crypto import KeyPair

_ZEROS = bytes(1 << 20)


async def server(host: str, port: int, key: str, size: int) -> None:
    listener = await listen((host, port), key=KeyPair(bytes.fromhex(key)))
    while True:
        connection = await listener.accept()
        await connection.write_source(lambda offset, count: _ZEROS[:count], size)
        await connection.close()


async def client(host: str, port: int, server_key: str, deadline_s: float) -> dict[str, Any]:
    """Fetch it; `ended_s` is the monotonic instant of the last byte."""
    connection = await connect(
        (host, port),
        server_key=bytes.fromhex(server_key),
        key=KeyPair(os.urandom(32)),
        deadline=deadline_s,
        timeout_s=None,
    )
    size = 0
    longest_s, last_s = 0.0, time.monotonic()
    while data := await connection.read():
        now_s = time.monotonic()
        longest_s, last_s = max(longest_s, now_s - last_s), now_s
        size += len(data)
    ended_s = time.monotonic()
    await connection.close()
    return {
        "bytes": size,
        "ended_s": ended_s,
        "longest_silence_s": longest_s,
        "paths_lost": connection.flow.lost_paths,
    }

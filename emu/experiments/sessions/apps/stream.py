"""A stream that never ends, and when its reader had nothing to read."""

import os
import time
from typing import Any

from cedos.errors import SessionError
from cedos.session import connect, listen
from cedos.session.protocol.crypto import KeyPair

_ZEROS = bytes(1 << 20)
_ENDLESS = 1 << 40


async def server(host: str, port: int, key: str) -> None:
    listener = await listen((host, port), key=KeyPair(bytes.fromhex(key)))
    while True:
        connection = await listener.accept()
        await connection.write_source(lambda offset, count: _ZEROS[:count], _ENDLESS)


async def client(
    host: str, port: int, server_key: str, seconds: float, silence_s: float
) -> dict[str, Any]:
    """Read; the silences longer than `silence_s`, as [began, ended] (monotonic seconds)."""
    connection = await connect(
        (host, port),
        server_key=bytes.fromhex(server_key),
        key=KeyPair(os.urandom(32)),
        timeout_s=None,
    )
    silences, size = [], 0
    await connection.read()
    last_s = time.monotonic()
    end_s = last_s + seconds
    while last_s < end_s:
        data = await connection.read()
        if not data:
            raise SessionError("an endless stream has ended")
        size += len(data)
        now_s = time.monotonic()
        if now_s - last_s > silence_s:
            silences.append([last_s, now_s])
        last_s = now_s
    connection.abort("measured")
    return {"silences": silences, "bytes": size}

"""Small messages: how many a second."""

import time
from typing import Any, Final

from cedos.model import Label
from emu.workloads.sessions.peer import Peer

SIZE: Final = 100
_LABEL: Final = Label()


async def send_messages(
    peer: Peer, mode: str, to: str, port: int, key: str, number: int, batch: int
) -> dict[str, Any]:
    """Sends messages as fast as they are taken, `batch` at a time (1: one by one)."""
    connection = await peer.connect(mode, to, port, key)
    data = bytes(SIZE)
    many = [data] * batch
    began_s = time.perf_counter()
    if batch == 1:
        for _ in range(number):
            await connection.send(data, _LABEL)
    else:
        for _ in range(number // batch):
            await connection.send_many(many, _LABEL)
    await connection.receive()
    seconds = time.perf_counter() - began_s
    await connection.close()
    return {"seconds": seconds}


async def receive_messages(peer: Peer, number: int) -> dict[str, Any]:
    connection = await peer.accept()
    left = number
    while left:
        left -= len(await connection.receive_many(4096))
    await connection.send(b"all", _LABEL)
    await connection.close()
    return {}

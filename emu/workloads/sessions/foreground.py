"""Foreground messages through full background load (IntNW; dissertation, 2.3.2)."""

import asyncio
import random
import time
from typing import Any, Final

from cedos import session
from cedos.errors import SessionError
from cedos.model import Bulk, Label, Urgency
from emu.workloads.sessions.peer import Peer

FOREGROUND: Final = Label(Urgency.FOREGROUND, Bulk.SMALL)
BACKGROUND: Final = Label(Urgency.BACKGROUND, Bulk.LARGE)
_LARGE: Final = bytes(250_000)
_SMALL: Final = bytes(500)


async def ask_under_load(
    peer: Peer,
    mode: str,
    to: str,
    port: int,
    key: str,
    seconds: float,
    background: bool,
    every_s: float,
) -> dict[str, Any]:
    """Asks small questions now and then, with a full background load or without.

    Returns:
        `times`: seconds until each answer was here; `rate_bps`: of the background data that arrived.
    """
    seeded = random.Random(7)
    connection = await peer.connect(mode, to, port, key)
    load = asyncio.ensure_future(_load(connection)) if background else None
    await asyncio.sleep(2.0)
    times: list[float] = []
    first, began_s = await _received(connection), time.perf_counter()
    while time.perf_counter() - began_s < seconds:
        if every_s:
            await asyncio.sleep(seeded.uniform(0.5, 1.5) * every_s)
            asked_s = time.perf_counter()
            await _received(connection)
            times.append(time.perf_counter() - asked_s)
        else:
            await asyncio.sleep(0.5)
    last, took_s = await _received(connection), time.perf_counter() - began_s
    if load is not None:
        load.cancel()
    connection.abort("measured")
    await connection.drained()
    return {"times": times, "rate_bps": 8 * (last - first) / took_s}


async def _load(connection: session.Connection) -> None:
    while True:
        await connection.send(_LARGE, BACKGROUND, after=())


async def _received(connection: session.Connection) -> int:
    """A foreground question, and its answer: how many background bytes have arrived."""
    await connection.send(_SMALL, FOREGROUND, after=())
    answer = await connection.receive()
    assert answer is not None
    return int.from_bytes(answer.data, "big")


async def answer_under_load(peer: Peer) -> dict[str, Any]:
    """Answers questions with how many bytes of background data are here."""
    connection = await peer.accept()
    received = 0
    try:
        while (message := await connection.receive()) is not None:
            if message.label == BACKGROUND:
                received += len(message.data)
            else:
                await connection.send(received.to_bytes(8, "big"), FOREGROUND, after=())
    except SessionError:
        pass  # the other end is done
    return {}

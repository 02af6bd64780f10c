"""A session tells the other programs of its host what it sends, and makes room for what they send."""

import asyncio
import os
import socket
from pathlib import Path

import pytest

from cedos import session
from cedos.model import Bulk, Label, Urgency
from cedos.session.io.foreground import Foreground
from cedos.session.protocol.crypto import KeyPair

BULK = Label(Urgency.BACKGROUND, Bulk.LARGE)
LOOPBACK = socket.if_nametoindex("lo")


def test_what_one_program_sends_another_makes_room_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CEDOS_RUNTIME_DIR", str(tmp_path))
    other = Foreground(tmp_path)  # has a slot of its own, as another process would

    async def scenario() -> None:
        key = KeyPair(os.urandom(32))
        async with (
            asyncio.timeout(100),
            await session.listen(("127.0.0.1", 0), key=key) as listener,
        ):
            near = await session.connect(
                listener.address, server_key=key.public, key=KeyPair(os.urandom(32))
            )
            far = await listener.accept()
            (path,) = near.flow.paths.values()

            async def background() -> None:
                await asyncio.sleep(0.02)  # the estimator polls every 10 ms
                await near.send(bytes(1000), BULK)
                assert await far.receive() is not None

            await background()
            assert path.facts.foreground_at_s == float("-inf")
            assert other.idle_s(LOOPBACK) == float("inf")

            other.sent(LOOPBACK)
            began_s = asyncio.get_running_loop().time()
            await background()
            assert abs(path.facts.foreground_at_s - began_s) < 60

            await asyncio.sleep(0.02)
            await near.send(b"urgent")
            await asyncio.sleep(0.02)
            assert other.idle_s(LOOPBACK) < 60
            near.abort()
            await near.drained()

    asyncio.run(scenario())
    other.close()

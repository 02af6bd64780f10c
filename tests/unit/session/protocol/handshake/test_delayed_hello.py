"""A resumption that somebody kept back and lets go later, against a real listener."""

import asyncio
import os
import socket
from pathlib import Path

import pytest
from kit.waiting import until

from cedos import session
from cedos.session.protocol.channel import resume
from cedos.session.protocol.crypto import KeyPair
from cedos.session.protocol.handshake.limits import HandshakeLimits
from cedos.session.protocol.handshake.messages import MessageKind
from cedos.session.protocol.handshake.outcome import ConnectionKind


def test_it_takes_no_living_flow_over(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))

    async def scenario() -> None:
        me, server = KeyPair(os.urandom(32)), KeyPair(os.urandom(32))
        strangers = HandshakeLimits(handshake_s=1.0)
        async with await session.listen(("127.0.0.1", 0), key=server, hosts=strangers) as listener:
            ours = await session.connect(
                listener.address, server_key=server.public, key=me, deadline=60
            )
            await ours.write(b"one")
            theirs = await listener.accept()
            assert await theirs.read_exactly(3) == b"one"
            (old,) = theirs.flow.paths.values()

            # It has the right secret, a new number, a right proof: only, nobody is there to confirm it.
            credentials = ours.flow.credentials
            assert credentials is not None
            late = resume(me, credentials, ConnectionKind.RESUME, random=os.urandom, now=0.0)
            with socket.create_connection(listener.address) as attacker:
                attacker.sendall(late.outgoing()[0])
                attacker.setblocking(False)
                loop = asyncio.get_running_loop()
                answer = await loop.sock_recv(attacker, 4)
                assert answer[3] == MessageKind.RESUME_ANSWER
                assert len(theirs.flow.paths) == 2
                await ours.write(b"two")
                assert await theirs.read_exactly(3) == b"two"
                await theirs.write(b"three")
                assert await ours.read_exactly(5) == b"three"
                assert old.path_id in theirs.flow.paths
                # And it is not kept for ever.
                await until(lambda: list(theirs.flow.paths.values()) == [old])
            await ours.write(b"four")
            assert await theirs.read_exactly(4) == b"four"
            closing = asyncio.create_task(theirs.close())
            await ours.close()
            await closing

    asyncio.run(scenario())

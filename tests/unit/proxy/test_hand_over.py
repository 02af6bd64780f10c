"""A gateway that gives way to its successor: what it carried goes on."""

import asyncio
import hashlib
import os
import socket
from typing import Any

import pytest

from cedos.proxy.gateway.hand_over import (
    Handed,
    HandOver,
    KeptOrigin,
    KeptSession,
    read,
)
from cedos.proxy.streams.kept import KeptStreams
from cedos.proxy.streams.stream import WINDOW_BYTES
from cedos.session.protocol.crypto import KeyPair, Suite
from cedos.session.protocol.handshake.credentials import Credentials
from cedos.session.sockets.sibling_processes import process_of

pytestmark = pytest.mark.anyio

Ends = Any


async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(65_536):
        writer.write(data)
        await writer.drain()
    writer.write(b"end")
    await writer.drain()


async def test_what_is_under_way_goes_on(ends: Ends) -> None:
    await ends.start()
    port = await ends.origin(echo)
    talks = [await ends.forward(port) for _ in range(5)]
    data = os.urandom(6 * WINDOW_BYTES)

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bytes:
        async def send() -> None:
            for begin in range(0, len(data), 50_000):
                writer.write(data[begin : begin + 50_000])
                await writer.drain()
                await asyncio.sleep(0.005)
            writer.write_eof()

        sending = asyncio.create_task(send())
        got = await reader.read()
        await sending
        writer.close()
        return got

    talking = [asyncio.create_task(talk(*each)) for each in talks]
    for _ in range(4):
        await asyncio.sleep(0.15)
        await ends.succeed()
        assert ends.gateway.streams == 5
    right = hashlib.sha256(data + b"end").digest()
    for each in await asyncio.wait_for(asyncio.gather(*talking), 60):
        assert hashlib.sha256(each).digest() == right
    assert ends.gateway.traffic.taken_over == 1


async def test_a_half_closed_one_and_one_that_waits_go_on(ends: Ends) -> None:
    await ends.start()
    go = asyncio.Event()

    async def late(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        got = await reader.read()
        await go.wait()
        writer.write(got[::-1])

    reader, writer = await ends.forward(await ends.origin(late))
    writer.write(b"abc")
    writer.write_eof()
    await asyncio.sleep(0.2)
    await ends.succeed()
    go.set()
    assert await asyncio.wait_for(reader.read(), 10) == b"cba"
    writer.close()
    assert not ends.gateway.streams or await asyncio.sleep(0.2) is None
    assert ends.gateway.streams == 0


async def test_who_is_not_reading_keeps_what_came(ends: Ends) -> None:
    """More than all windows is on the way, and nobody reads until the successor is there."""
    await ends.start()
    data = os.urandom(8 * WINDOW_BYTES)

    async def sends(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(data)
        await writer.drain()

    reader, writer = await ends.forward(await ends.origin(sends))
    writer.transport.pause_reading()
    await asyncio.sleep(0.5)
    await ends.succeed()
    await asyncio.sleep(0.2)
    writer.transport.resume_reading()
    got = await asyncio.wait_for(reader.read(), 20)
    assert hashlib.sha256(got).digest() == hashlib.sha256(data).digest()
    writer.close()


async def test_what_was_being_opened_is_opened(ends: Ends, monkeypatch: pytest.MonkeyPatch) -> None:
    await ends.start()
    port = await ends.origin(echo)
    real, asked = type(ends.gateway._terms.origins).connect, asyncio.Event()

    async def slow(self: Any, host: str, number: int, asker: bytes) -> Any:
        if not asked.is_set():
            asked.set()
            await asyncio.sleep(60)
        return await real(self, host, number, asker)

    monkeypatch.setattr(type(ends.gateway._terms.origins), "connect", slow)
    reader, writer = await ends.forward(port)
    writer.write(b"x")
    writer.write_eof()
    await asked.wait()
    await ends.succeed()
    assert await asyncio.wait_for(reader.read(), 10) == b"xend"
    writer.close()


async def test_state_of_another_version_is_refused(tmp_path: Any) -> None:
    file = tmp_path / "state"
    for data in (b"", b"cedos gateway\n", b"cedos gateway\nxxx", os.urandom(200)):
        file.write_bytes(data)
        with pytest.raises(ValueError, match=r"state|truncated|Expected|malformed"):
            read(os.open(file, os.O_RDONLY))


async def test_what_was_carried_is_divided_by_client() -> None:
    """As a restart with another number of processes does."""
    hosts = [KeyPair(os.urandom(32)) for _ in range(40)]
    pairs = [socket.socketpair() for _ in hosts]
    listening = socket.create_server(("127.0.0.1", 0))
    sessions = [
        KeptSession(
            Credentials(
                os.urandom(16), os.urandom(32), host.public, Suite.AES_128_GCM, bytes(28)
            ).to_bytes(),
            b"",
            KeptStreams(0, [], [], []),
            [KeptOrigin.of(1, pair[0], b"")],
            [],
            [],
        )
        for host, pair in zip(hosts, pairs, strict=True)
    ]  # fmt: skip
    left = [each[0].fileno() for each in pairs]
    state = HandOver.make(listening, sessions, left, shared=False)
    handed = Handed(read(state.write()), [os.dup(each) for each in state.descriptors])
    parts = handed.split(3)
    assert sum(len(each.sessions) for each in parts) == len(hosts)
    for number, part in enumerate(parts):
        inodes = {os.fstat(each).st_ino for each in part.descriptors}
        assert inodes == {each.origins[0].inode for each in part.sessions}
        for kept in part.sessions:
            assert process_of(Credentials.from_bytes(kept.credentials).peer_key, 3) == number
        again = read(part.write())
        assert again.sessions == part.sessions
    port = listening.getsockname()[1]
    assert handed.listening(port + 1) is None
    handed.close()
    for each in (*pairs, (listening,)):
        for one in each:
            one.close()

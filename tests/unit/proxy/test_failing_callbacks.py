"""A fault of this program at one connection ends that one: others go on, and the log says so once."""

import asyncio
import os
from contextlib import suppress

import pytest
from kit.waiting import until
from structlog.testing import capture_logs

from cedos import session
from cedos.errors import SessionError
from cedos.proxy.splice import _OneWay
from cedos.proxy.streams.carry import Carry
from cedos.proxy.streams.frames import StreamBytes
from cedos.proxy.streams.multiplexer import Multiplexer
from cedos.session.protocol.channel import Channel
from cedos.session.protocol.crypto import KeyPair
from cedos.session.protocol.session import Session


def fails_of(monkeypatch, owner, name, chosen):
    """Have a method fail where `chosen` says so of its object; return the objects where it did."""
    method, failed = getattr(owner, name), set()

    def called(self, *given, **named):
        if chosen(self):
            failed.add(id(self))
            raise RuntimeError("a fault of this program")
        return method(self, *given, **named)

    monkeypatch.setattr(owner, name, called)
    return failed


async def echo(reader, writer):
    with suppress(ConnectionError):
        while data := await reader.read(1 << 16):
            writer.write(data)


async def says(connection, data):
    reader, writer = connection
    writer.write(data)
    return await asyncio.wait_for(reader.readexactly(len(data)), 5)


def serves(one, program):
    """Tell whether a socket of the proxy is the other end of a program's."""
    with suppress(OSError):
        return one.getpeername() == program
    return False


async def one_of_two_fails(ends, monkeypatch, owner, name, sockets, connect):
    """Have a callback fail at one program's connection, and look at what becomes of others."""
    program = None
    failed = fails_of(
        monkeypatch, owner, name, lambda it: any(serves(each, program) for each in sockets(it))
    )
    port = await ends.origin(echo)
    first, second = await connect(port), await connect(port)
    assert [await says(each, b"one") for each in (first, second)] == [b"one", b"one"]
    with capture_logs() as log:
        program = first[1].get_extra_info("sockname")
        first[1].write(b"again")
        with suppress(OSError):
            first[1].write_eof()
        with suppress(ConnectionError):  # it is reset
            assert len(await asyncio.wait_for(first[0].read(), 5)) < 6
        await until(lambda: [each["event"] for each in log if each["log_level"] == "error"])
        assert await says(second, b"two") == b"two"
        third = await connect(port)
        assert await says(third, b"three") == b"three"
    for _, writer in (first, second, third):
        writer.close()
    assert len(failed) == 1
    assert [each["event"] for each in log if each["log_level"] == "error"] == [
        "a connection failed"
    ]


@pytest.mark.parametrize("name", ["_stream_changed", "_readable", "_go_up", "_down"])
async def test_of_those_through_the_gateway(ends, monkeypatch, nothing_is_near, name):
    """All users' connections share one session: nothing at one breaks it."""
    await ends.start()
    await one_of_two_fails(ends, monkeypatch, Carry, name, lambda it: [it.program], ends.forward)


async def test_of_what_carries_them_all(ends, monkeypatch, nothing_is_near):
    """A fault at a session's frames: what it had brought was lost, and a program waited for ever."""
    await ends.start()
    port = await ends.origin(echo)
    first = await ends.forward(port)
    assert await says(first, b"one") == b"one"
    takes, failed = Multiplexer._give_to_stream, []

    def fails_once(self, frame):
        if isinstance(frame, StreamBytes) and not failed:
            failed.append(frame)
            raise RuntimeError("a fault of this program")
        return takes(self, frame)

    monkeypatch.setattr(Multiplexer, "_give_to_stream", fails_once)
    with capture_logs() as log:
        first[1].write(b"lost")
        with suppress(ConnectionError):  # it is reset
            assert not await asyncio.wait_for(first[0].read(), 5)
        assert [each["event"] for each in log if each["log_level"] == "error"] == [
            "a session's streams failed"
        ]
    second = await ends.forward(port)
    assert await says(second, b"two") == b"two"
    for _, writer in (first, second):
        writer.close()


@pytest.mark.parametrize("name", ["_readable", "_hand_end_on"])
async def test_of_those_that_go_direct(ends, monkeypatch, name):
    """A host nearby is reached without the gateway."""
    await ends.start()

    async def connect(port):
        made = await ends.ask(f"CONNECT 127.0.0.1:{port} HTTP/1.1\r\n\r\n".encode())
        await asyncio.wait_for(made[0].readuntil(b"\r\n\r\n"), 5)
        return made

    await one_of_two_fails(
        ends, monkeypatch, _OneWay, name, lambda it: [it.source, it.sink], connect
    )


@pytest.mark.parametrize(("owner", "name"), [(Channel, "receive"), (Session, "receive")])
async def test_of_sessions(monkeypatch, owner, name):
    key, me = KeyPair(os.urandom(32)), KeyPair(os.urandom(32))
    async with await session.listen(("127.0.0.1", 0), key=key) as listener:
        near = [
            await session.connect(listener.address, server_key=key.public, key=me) for _ in "ab"
        ]
        far = [await listener.accept() for _ in near]
        bad = [path.channel for path in far[0].flow.paths.values()] + [far[0]._core]
        with capture_logs() as log:
            failed = fails_of(monkeypatch, owner, name, lambda it: it in bad)
            await near[0].write(b"fails")
            if owner is Session:
                with pytest.raises(SessionError):
                    await asyncio.wait_for(far[0].read(), 5)
            else:  # the session goes on over another connection
                assert await asyncio.wait_for(far[0].read(), 15) == b"fails"
        assert failed
        words = [each["event"] for each in log if each["log_level"] == "error"]
        assert words == ["a session's connection failed"]
        await near[1].write(b"goes on")
        assert await asyncio.wait_for(far[1].read(), 5) == b"goes on"
        for each in near:
            each.abort("the test is over")

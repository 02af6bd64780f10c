"""Clients that are away and have no connections: their sessions lie in a file, and go on from there."""

import asyncio
import gc
import weakref

import pytest
from kit.waiting import until

from cedos.session.sockets import flow_table


async def echo(reader, writer):
    while data := await reader.read(65_536):
        writer.write(data)
        await writer.drain()


@pytest.fixture
async def sleeping(ends, tmp_path, monkeypatch):
    monkeypatch.setattr(flow_table, "_NOTE_S", 0.1)
    monkeypatch.setattr(flow_table, "_ASLEEP_S", 0.3)
    await ends.start(idle=tmp_path / "idle-sessions", patience_s=10.0)
    return ends


def away(ends):
    """Break the paths to the gateway, and let it answer no more."""
    listener = ends.gateway._listener
    listener._driver.loop.remove_reader(listener._socket.fileno())
    for connection in list(listener._flows._living.values()):
        for path in list(connection.flow.paths.values()):
            path.close("it went away", reset=True)


def asleep(ends):
    return len(ends.gateway._listener._flows._idle) - len(ends.gateway._listener._flows._living)


async def said(ends, port):
    reader, writer = await ends.forward(port)
    writer.write(b"hello")
    assert await asyncio.wait_for(reader.readexactly(5), 20) == b"hello"
    writer.write_eof()
    assert await asyncio.wait_for(reader.read(), 20) == b""
    writer.close()


async def test_one_without_connections_sleeps_and_goes_on(sleeping):
    port = await sleeping.origin(echo)
    for _ in range(3):
        for _ in range(2):
            await said(sleeping, port)
        session = sleeping.link._streams
        await until(lambda: not sleeping.gateway._open)
        await asyncio.sleep(0.3)  # what was said last is acknowledged
        away(sleeping)
        await until(lambda: not sleeping.gateway.sessions)
        assert asleep(sleeping) == 1
        sleeping.gateway._listener._listen()
        await said(sleeping, port)
        assert sleeping.link._streams is session, "the laptop began another one"
    assert sleeping.gateway.sessions == 1


async def test_one_that_sleeps_while_the_gateway_restarts_goes_on(sleeping):
    port = await sleeping.origin(echo)
    await said(sleeping, port)
    session = sleeping.link._streams
    await asyncio.sleep(0.3)
    away(sleeping)
    await until(lambda: not sleeping.gateway.sessions)
    await sleeping.restart_gateway()
    await said(sleeping, port)
    assert sleeping.link._streams is session


async def test_of_one_that_sleeps_nothing_stays_in_memory(sleeping, monkeypatch):
    monkeypatch.setattr(flow_table, "_COLLECTED", 1)
    await said(sleeping, await sleeping.origin(echo))
    await asyncio.sleep(0.3)
    (session,) = map(weakref.ref, sleeping.gateway._sessions.values())
    (connection,) = sleeping.gateway._listener._flows._living.values()
    core, connection = weakref.ref(connection._core), None
    away(sleeping)
    gc.disable()
    try:
        await until(lambda: asleep(sleeping) == 1)
        await until(lambda: session() is None and core() is None)
    finally:
        gc.enable()
    sleeping.gateway._listener._listen()


async def test_one_with_a_connection_stays_awake_and_keeps_it(sleeping):
    reader, writer = await sleeping.forward(await sleeping.origin(echo))
    writer.write(b"first")
    assert await asyncio.wait_for(reader.readexactly(5), 10) == b"first"
    away(sleeping)
    await asyncio.sleep(1.0)
    assert sleeping.gateway.sessions == 1
    assert asleep(sleeping) == 0
    sleeping.gateway._listener._listen()
    writer.write(b"second")
    assert await asyncio.wait_for(reader.readexactly(6), 20) == b"second"
    writer.close()


async def test_a_file_that_cannot_be_used_costs_only_memory(ends, tmp_path):
    (tmp_path / "idle-sessions").write_bytes(b"something else")
    (tmp_path / "idle-sessions").chmod(0o600)
    await ends.start(idle=tmp_path / "idle-sessions")
    await said(ends, await ends.origin(echo))
    assert (tmp_path / "idle-sessions").read_bytes() == b"something else"

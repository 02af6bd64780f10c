"""Programs, clients and servers that mean no good, against proxy and gateway: others are served."""

import asyncio
import contextlib
import errno
import socket
import threading
from pathlib import Path

import pytest

from cedos.proxy.gateway import origin
from cedos.proxy.gateway.admission import DestinationRules
from cedos.proxy.gateway.origin import Origins
from cedos.proxy.local import local_proxy
from cedos.proxy.local.local_proxy import Listening
from cedos.proxy.local.name_stub import NameStub
from tests.unit.proxy.conftest import Ends

pytestmark = pytest.mark.anyio


async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(await reader.read() + b"end")
    await writer.drain()


async def is_served(ends: Ends, port: int) -> bool:
    reader, writer = await ends.ask(b"CONNECT 127.0.0.1:%d HTTP/1.1\r\n\r\n" % port)
    writer.write(b"a")
    writer.write_eof()
    got = await asyncio.wait_for(reader.read(), 5)
    writer.close()
    return got.endswith(b"\r\n\r\naend")


async def test_who_says_nothing_makes_room_for_who_does(
    ends: Ends, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local_proxy, "_MOST", 20)
    await ends.start()
    where = ("127.0.0.1", ends.proxy.addresses[0].port)
    port = await ends.origin(echo)
    kept = await asyncio.open_connection(*where)
    kept[1].write(b"CONNECT 127.0.0.1:%d HTTP/1.1\r\n\r\n" % port)
    assert b"200" in await asyncio.wait_for(kept[0].readuntil(b"\r\n\r\n"), 5)
    silent = [await asyncio.open_connection(*where) for _ in range(200)]
    silent[-1][1].write(b"\x05")  # the beginning of something is nothing yet
    assert await is_served(ends, port)
    assert await asyncio.wait_for(silent[0][0].read(), 5) == b""  # the oldest went
    kept[1].write_eof()
    assert await asyncio.wait_for(kept[0].read(), 5) == b"end"
    for _, writer in (*silent, kept):
        writer.close()


async def test_connections_leave_files_for_the_session(
    ends: Ends, monkeypatch: pytest.MonkeyPatch
) -> None:
    """1,024 are what a terminal's programs may have: a flood of connections took them all."""
    monkeypatch.setattr(local_proxy.open_files, "allow", lambda _wanted=None: 1_024)
    await ends.start()
    assert 2 * ends.proxy._most + 256 <= 1_024


async def test_without_a_file_for_one_more_the_resolver_does_not_spin(
    ends: Ends, monkeypatch: pytest.MonkeyPatch
) -> None:
    await ends.start()
    stub = NameStub(ends.link, fails_open=False)
    stub.open("127.0.0.1", 0)
    ((_, tcp),) = stub._sockets
    turns = 0

    def full(_: socket.socket) -> None:
        nonlocal turns
        turns += 1
        raise OSError(errno.EMFILE, "Too many open files")

    with monkeypatch.context() as used_up, socket.socket() as program:
        program.setblocking(False)
        used_up.setattr(socket.socket, "accept", full)
        program.connect_ex(tcp.getsockname())
        await asyncio.sleep(0.5)
        assert 1 <= turns <= 5
        used_up.undo()
        await asyncio.sleep(0.3)
        assert stub._connections == 1
    await stub.close()


async def test_names_that_nobody_answers_for_keep_only_who_asks_for_them_waiting(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    answer = threading.Event()

    def resolve(host: str, *_: object, **__: object) -> list[object]:
        if host.startswith("stalls"):
            answer.wait(10)
        return [(2, 1, 6, "", ("192.0.2.1", 0))]

    monkeypatch.setattr(origin.socket, "getaddrinfo", resolve)
    origins = Origins(DestinationRules(()))
    floods = [
        asyncio.create_task(origins.addresses(f"stalls{number}.test", 80, b"one"))
        for number in range(500)
    ]
    await asyncio.sleep(0)
    try:
        began_s = asyncio.get_running_loop().time()
        async with asyncio.timeout(5):
            assert await origins.addresses("a.test", 80, b"other") == ["192.0.2.1"]
        assert asyncio.get_running_loop().time() - began_s < 2
        assert threading.active_count() < 40
    finally:
        answer.set()
        await asyncio.gather(*floods, return_exceptions=True)


async def test_a_look_up_that_gets_no_thread_is_refused(
    ends: Ends, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its connection waited for good."""
    await ends.start()

    def start(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", start)
    reader, writer = await ends.ask(b"CONNECT a.test:80 HTTP/1.1\r\n\r\n")
    assert (await asyncio.wait_for(reader.read(), 5)).startswith(b"HTTP/1.1 503")
    writer.close()


def waits_in_the_kernel(port: int, peer: int) -> int:
    """Bytes that a connection over loopback has sent and the other end has not taken."""
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        _, here, there, _, queues, *_ = line.split()
        if (int(here[-4:], 16), int(there[-4:], 16)) == (port, peer):
            return int(queues.partition(":")[0], 16)
    return -1


async def test_a_program_that_does_not_read_takes_little_of_the_kernels_memory(ends: Ends) -> None:
    """300 of them used up all that TCP has (tcp_mem): everybody's connections stood still."""
    await ends.start()

    async def flood(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            while True:
                writer.write(bytes(1 << 16))
                await writer.drain()

    port = await ends.origin(flood)
    ends.proxy.open([Listening("127.0.0.1", 0, ("127.0.0.1", port))])
    where = ends.proxy.addresses[-1].port
    with socket.create_connection(("127.0.0.1", where)) as program:
        waiting = [-1]
        while len(waiting) < 4 or waiting[-1] != waiting[-4] or waiting[-1] <= 0:
            await asyncio.sleep(0.1)
            waiting.append(waits_in_the_kernel(where, program.getsockname()[1]))
            assert len(waiting) < 100
    assert waiting[-1] < 400_000

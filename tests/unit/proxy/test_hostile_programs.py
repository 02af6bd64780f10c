"""Programs, clients and servers that mean no good, against proxy and gateway: others are served."""

import asyncio
import errno
import os
import socket
import threading
import time
import tracemalloc
from collections import Counter
from contextlib import suppress
from functools import partial

import pytest
from kit.proxy_requests import http_connect
from kit.waiting import counting_turns, until

from cedos.host.monitor import dns_message
from cedos.kernel import tcp_info
from cedos.proxy.gateway import gateway, gateway_session, origin
from cedos.proxy.gateway.gateway import LIMITS
from cedos.proxy.gateway.origin import DestinationRules, Origins
from cedos.proxy.http import RefusedError
from cedos.proxy.local import gateway_link, local_proxy
from cedos.proxy.local.direct import LocalNames
from cedos.proxy.local.local_proxy import Fail
from cedos.proxy.local.name_stub import NameStub
from cedos.proxy.streams.multiplexer import Multiplexer
from cedos.session.protocol.crypto import KeyPair
from cedos.session.sockets.sockets import connect


async def echo(reader, writer):
    with suppress(ConnectionError):
        writer.write(await reader.read() + b"end")
        await writer.drain()


async def is_served(ends, port, user=1):
    reader, writer = await ends.ask(http_connect(port), user)
    writer.write(b"a")
    writer.write_eof()
    got = await asyncio.wait_for(reader.read(), 5)
    writer.close()
    return got.endswith(b"\r\n\r\naend")


@pytest.mark.parametrize("limit", ["_MOST", "_MOST_SILENT"])
async def test_who_says_nothing_makes_room_for_who_does(ends, monkeypatch, limit):
    monkeypatch.setattr(local_proxy, limit, 20)
    await ends.start()
    where = ("127.0.0.1", ends.proxy.addresses[0].port)
    port = await ends.origin(echo)
    kept = await asyncio.open_connection(*where)
    kept[1].write(http_connect(port))
    assert b"200" in await asyncio.wait_for(kept[0].readuntil(b"\r\n\r\n"), 5)
    silent = [await asyncio.open_connection(*where) for _ in range(200)]
    silent[-1][1].write(b"\x05")  # the beginning of something is nothing yet
    assert await is_served(ends, port)
    assert await asyncio.wait_for(silent[0][0].read(), 5) == b""  # the oldest went
    kept[1].write_eof()
    assert await asyncio.wait_for(kept[0].read(), 5) == b"end"
    for _, writer in (*silent, kept):
        writer.close()


async def test_programs_that_do_not_read_fill_no_memory(ends, monkeypatch):
    """Break the fullest connections: each of 2,000 kept 1.5 MB of what its program had not read."""
    monkeypatch.setattr(gateway_link, "MOST_OF_ONE_BYTES", 1_000_000)
    await ends.start(patience_s=30)
    sent = []

    async def pours(reader, writer):
        sent.append(writer)
        with suppress(ConnectionError):
            while True:
                writer.write(bytes(100_000))
                await writer.drain()

    port, good = await ends.origin(pours), await ends.forward(await ends.origin(echo))
    programs = [await ends.forward(port) for _ in range(12)]
    for reader, _ in programs:
        reader._transport.pause_reading()
    await until(lambda: len(ends.link._streams) <= 6 and len(sent) == 12)
    assert ends.link._unread.total_bytes <= 1_000_000
    good[1].write_eof()
    assert await asyncio.wait_for(good[0].read(), 10) == b"end"
    for _, writer in (*programs, good):
        writer.transport.abort()


@pytest.mark.usefixtures("nothing_is_near", "users")
async def test_a_user_who_opens_without_end_has_no_other_user_wait(ends, monkeypatch):
    """Let users take turns: one's 4,096 connections had all others wait for eight seconds."""
    monkeypatch.setattr(gateway_link, "OPENS_PER_S", 6)
    monkeypatch.setattr(gateway_link, "OPENS_AT_ONCE", 20)
    await ends.start(patience_s=30)
    opened = []

    async def counts(reader, writer):
        opened.append(writer)
        await echo(reader, writer)

    ask = http_connect(await ends.origin(counts))
    flood = [await ends.ask(ask) for _ in range(100)]
    await until(lambda: len(opened) >= 10)
    assert await is_served(ends, await ends.origin(echo), user=2)
    assert len(opened) < 60
    for _, writer in flood:
        writer.transport.abort()


@pytest.mark.usefixtures("nothing_is_near", "users")
async def test_programs_that_do_not_read_break_no_connection_of_other_users(ends, monkeypatch):
    """Break connections of the user who holds most: the fullest one broke, though it was another's."""
    monkeypatch.setattr(gateway_link, "MOST_OF_ONE_BYTES", 6_000_000)
    await ends.start(patience_s=30)

    async def pours(_reader, writer):
        with suppress(ConnectionError):
            while True:
                writer.write(bytes(100_000))
                await writer.drain()

    async def unread_of(user, reads_bytes):
        reader, writer = await ends.ask(ask, user)
        await reader.readexactly(reads_bytes)
        reader._transport.pause_reading()
        return writer

    ask = http_connect(await ends.origin(pours))
    programs = [await unread_of(2, 2_000_000)]  # its window has grown
    (theirs,) = ends.link._streams.streams.values()
    await until(lambda: theirs.unread_bytes >= 400_000)
    programs += [await unread_of(1, 1) for _ in range(30)]
    await until(lambda: len(ends.proxy._tasks) < 25)
    assert theirs.broken is None
    for writer in programs:
        writer.transport.abort()


@pytest.mark.usefixtures("nothing_is_near", "users")
async def test_a_user_who_says_nothing_takes_no_places_of_others(ends, monkeypatch):
    """Make room among the silent connections of who has most: the oldest went, whose ever it was."""
    monkeypatch.setattr(local_proxy, "_MOST_SILENT", 20)
    await ends.start()
    port = await ends.origin(echo)
    reader, writer = await ends.ask(b"C", user=2)
    silent = [await ends.ask(b"C") for _ in range(60)]
    assert await asyncio.wait_for(silent[39][0].read(), 5) == b""
    writer.write(http_connect(port)[1:])
    writer.write_eof()
    assert (await asyncio.wait_for(reader.read(), 5)).endswith(b"end")
    for _, each in silent:
        each.close()
    writer.close()


@pytest.mark.usefixtures("nothing_is_near", "users")
async def test_a_user_with_all_places_leaves_some_to_others(ends, monkeypatch):
    """End the newest connection of who has most: one user's connections kept all others out."""
    monkeypatch.setattr(local_proxy, "_MOST", 20)
    await ends.start()
    ask = http_connect(await ends.origin(echo))
    greedy, theirs = [], []
    for user, held, count in ((1, greedy, 20), (2, theirs, 5)):
        for _ in range(count):
            held.append(await ends.ask(ask, user))
            await asyncio.wait_for(held[-1][0].readuntil(b"\r\n\r\n"), 5)
    with pytest.raises(ConnectionResetError):
        await asyncio.wait_for((await ends.ask(ask))[0].read(), 5)
    for reader, writer in (*theirs, *greedy[:15]):
        writer.write_eof()
        assert await asyncio.wait_for(reader.read(), 5) == b"end"
    for _, writer in (*greedy, *theirs):
        writer.close()


@pytest.mark.usefixtures("nothing_is_near", "users")
async def test_a_flood_of_connections_takes_no_more_places_than_there_are(ends, monkeypatch):
    """End another connection for each: 300 of one user beside 60 of another held 82 of 60 places."""
    monkeypatch.setattr(local_proxy, "_MOST", 60)
    await ends.start()
    ask = http_connect(await ends.origin(echo))
    theirs = [await ends.ask(ask) for _ in range(60)]
    for reader, _ in theirs:
        await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 5)
    flood = await asyncio.gather(*(ends.ask(ask, user=2) for _ in range(300)))
    for reader, _ in flood:
        with suppress(ConnectionResetError):
            await asyncio.wait_for(reader.read(1), 5)
    await until(lambda: len(ends.proxy._tasks) <= 60)
    assert len(ends.proxy._held[1].carried) >= 29
    for _, writer in (*theirs, *flood):
        writer.transport.abort()


async def test_large_requests_that_wait_for_their_origin_fill_no_memory(ends, monkeypatch):
    """End the oldest: 3,500 with 60 kB, to a silent origin, took 270 MB of the proxy's memory."""
    monkeypatch.setattr(local_proxy, "_MOST_SILENT", 20)

    async def wait(*_, **__):
        await asyncio.Event().wait()

    monkeypatch.setattr(local_proxy.LocalProxy, "connect", wait)
    await ends.start()
    post = b"POST http://a.test/ HTTP/1.1\r\nContent-Length: 5000\r\n\r\n" + bytes(5000)
    small = [await ends.ask(http_connect(80)) for _ in range(30)]
    large = [await ends.ask(post) for _ in range(60)]
    assert await asyncio.wait_for(large[39][0].read(), 5) == b""
    await until(lambda: len(ends.proxy._tasks) == 50)
    for _, writer in (*small, *large):
        writer.transport.abort()


@pytest.mark.usefixtures("nothing_is_near", "users")
async def test_a_user_leaves_some_of_the_gateways_connections_to_others(ends, monkeypatch):
    """Refuse more than a share: one user's 2,000 were all that the gateway allowed the host."""
    monkeypatch.setattr(gateway_link, "MOST_OF_USER", 3)
    await ends.start(most_per_client=4)
    port, kept = await ends.origin(echo), []
    for _ in range(3):
        kept.append(await ends.ask(http_connect(port)))
        await asyncio.wait_for(kept[-1][0].readuntil(b"\r\n\r\n"), 5)
    assert (await ends.answer(http_connect(port))).startswith(b"HTTP/1.1 503")
    with pytest.raises(RefusedError):
        await ends.link.associate(user=1)
    assert await is_served(ends, port, user=2)
    kept[0][1].write_eof()
    await until(lambda: len(ends.link._streams) == 2)
    assert await is_served(ends, port)
    for _, writer in kept:
        writer.close()


@pytest.mark.usefixtures("nothing_is_near", "users")
async def test_a_users_refused_origins_change_nothing_for_others(ends, monkeypatch, closed_port):
    """Remember refusals by user: one's pushed out another's, and had another's programs wait."""
    monkeypatch.setattr(local_proxy, "_MOST_REFUSED", 3)
    await ends.start()
    with pytest.raises(ConnectionResetError):
        await ends.answer(http_connect(closed_port), user=2)
    for number in range(1, 6):
        with pytest.raises(ConnectionResetError):
            await ends.answer(http_connect(closed_port, f"127.0.0.{number}"))
    assert (await ends.answer(http_connect(closed_port), user=2)).startswith(b"HTTP/1.1 502")
    with pytest.raises(ConnectionResetError):
        await ends.answer(http_connect(closed_port), user=3)


async def test_a_connection_that_was_ended_holds_no_place(ends):
    """A program's task may go on for a moment: it failed with an error of its own in the log."""
    await ends.start()
    ends.proxy._on_spoken(12_345, asyncio.current_task())


async def test_a_connection_keeps_no_bytes_of_its_request(ends):
    """Forget the heads of requests: 4,096 connections kept 68 kB each for as long as they lasted."""
    await ends.start()
    got = 0

    async def takes(reader, writer):
        nonlocal got
        while not reader.at_eof():
            got += len(await reader.read(65_536))

    port = await ends.origin(takes)
    head = b"GET http://127.0.0.1:%d/ HTTP/1.1\r\nX: %s\r\n\r\n" % (port, b"a" * 60_000)
    tracemalloc.start()
    try:
        programs = [await ends.ask(head) for _ in range(20)]
        await until(lambda: got >= 20 * 60_000)
        await until(lambda: tracemalloc.get_traced_memory()[0] < 10 * 60_000)
    finally:
        tracemalloc.stop()
    for _, writer in programs:
        writer.close()


async def test_a_program_that_opens_without_end_ends_no_connections_of_others(ends, monkeypatch):
    """Pace what programs open: a flood of one had the gateway end the session of all."""
    for module in (gateway, gateway_link):
        monkeypatch.setattr(module, "OPENS_PER_S", 100)
        monkeypatch.setattr(module, "OPENS_AT_ONCE", 20)
    await ends.start(patience_s=30)
    first = await ends.forward(await ends.origin(echo))
    where = ("127.0.0.1", ends.proxy.addresses[-1].port)
    programs = [first, *[await asyncio.open_connection(*where) for _ in range(60)]]
    for _, writer in programs:
        writer.write_eof()
    got = await asyncio.gather(*(reader.read() for reader, _ in programs), return_exceptions=True)
    assert set(got) == {b"end"}
    for _, writer in programs:
        writer.close()


@pytest.mark.usefixtures("users")
async def test_an_origin_holds_no_places_of_programs_that_have_left(ends, monkeypatch):
    """Free the places of programs that have left: 2,000 took all, as their origin never ended.

    Those of one user end no other user's, whose last bytes may be on their way.
    """
    monkeypatch.setattr(local_proxy, "MOST_LEFT", 2)
    monkeypatch.setattr(local_proxy, "_LEFT_CHECK_S", 0.05)
    await ends.start(patience_s=30)

    async def holds(reader, writer):
        writer.write(b"HTTP/1.1 200 OK\r\n\r\nhi")
        await reader.read()
        await over.wait()

    over, port = asyncio.Event(), await ends.origin(holds)
    asking = b"GET http://127.0.0.1:%d/ HTTP/1.1\r\nCookie: a\r\n\r\n" % port
    for user, words in ((2, asking), *((1, words) for words in (http_connect(port), asking) * 4)):
        reader, writer = await ends.ask(words, user)
        await asyncio.wait_for(reader.readuntil(b"hi"), 10)
        writer.close()
        await writer.wait_closed()
    halves = [await ends.ask(words) for words in (http_connect(port), asking)]
    for reader, writer in halves:
        writer.write_eof()
        await asyncio.wait_for(reader.readuntil(b"hi"), 10)
    await until(lambda: len(ends.proxy._tasks) == 5)
    monkeypatch.setattr(local_proxy, "LEFT_S", 0.0)
    await until(lambda: len(ends.proxy._tasks) == 2)
    assert not any(reader.at_eof() or reader.exception() for reader, _ in halves)
    for _, writer in halves:
        writer.close()
    await until(lambda: not ends.proxy._tasks and ends.proxy._checking is None)
    over.set()


async def test_what_nobody_reads_does_not_fill_the_kernel(ends, monkeypatch):
    """Its own buffers held megabytes each: with 150 such programs the host's TCP had none left."""
    programs = []

    class KnownCarry(local_proxy.Carry):
        def __init__(self, program, *rest, **more):
            programs.append(program)
            super().__init__(program, *rest, **more)

    monkeypatch.setattr(local_proxy, "Carry", KnownCarry)
    await ends.start()

    async def floods(_reader, writer):
        with suppress(ConnectionError):
            while True:
                writer.write(bytes(65_536))
                await writer.drain()

    reader, writer = await ends.forward(await ends.origin(floods))
    reader._transport.pause_reading()
    before = -1
    while not programs or (count := tcp_info.unsent_bytes(programs[0])) != before:
        before = count if programs else -1
        await asyncio.sleep(0.2)
    assert 0 < before < 600_000
    writer.transport.abort()


async def test_uploads_that_no_server_reads_fill_the_gateway_up_to_a_limit(ends, monkeypatch):
    """Each of a client's connections might hold its window, and it may have thousands of them."""
    most, connections = 1_000_000, 30
    await ends.start()
    unread = ends.gateway._terms.unread
    monkeypatch.setattr(unread, "_most_of_one_bytes", most)
    never = socket.create_server(("127.0.0.1", 0), backlog=2 * connections)
    never.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
    port = never.getsockname()[1]
    writers = []
    for _ in range(connections):
        _, writer = await ends.forward(port)
        writer.write(bytes(1 << 23))
        writers.append(writer)
    most_seen = 0
    for _ in range(150):
        await asyncio.sleep(0.01)
        most_seen = max(most_seen, unread.total_bytes)
    assert 0.5 * most < most_seen <= most
    # Somebody who means well is served beside them, and nothing is left of those that ended.
    reader, writer = await ends.forward(await ends.origin(echo))
    writer.write(b"a")
    writer.write_eof()
    assert await asyncio.wait_for(reader.read(), 5) == b"aend"
    writer.close()
    never.close()
    await until(lambda: not unread.total_bytes)
    for each in writers:
        each.transport.abort()


@pytest.mark.usefixtures("nothing_is_near", "users")
async def test_uploads_that_no_server_reads_break_no_connection_of_other_users(ends, monkeypatch):
    """Break uploads of the user who holds most: the fullest one broke, though it was another's."""
    await ends.start(patience_s=30)
    monkeypatch.setattr(ends.gateway._terms.unread, "_most_of_one_bytes", 6_000_000)

    async def reads_some(reader, writer):
        with suppress(ConnectionError):
            await reader.readexactly(int(await reader.readline()))
            reader._transport.pause_reading()
            await on.wait()
            reader._transport.resume_reading()
            writer.write(b"%d" % len(await reader.read()))
            await writer.drain()

    async def upload_of(user, reads_bytes):
        reader, writer = await ends.ask(ask, user)
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"%d\n" % reads_bytes + bytes(reads_bytes + 9_000_000))
        writer.write_eof()
        return reader, writer

    on = asyncio.Event()
    ask = http_connect(await ends.origin(reads_some))
    theirs = await upload_of(2, 9_000_000)  # its window has grown
    unread = ends.gateway._terms.unread
    await until(lambda: unread.total_bytes > 1_000_000)
    flood = [await upload_of(1, 1) for _ in range(60)]
    (session,) = ends.gateway._sessions.values()
    await until(lambda: len(session._streams.streams) < 50)
    assert 1_000_000 < unread.total_bytes <= 6_000_000
    on.set()
    assert await asyncio.wait_for(theirs[0].read(), 10) == b"9000000"
    for _, writer in (theirs, *flood):
        writer.transport.abort()


async def test_connections_leave_files_for_the_session(ends, monkeypatch):
    """1,024 are what a terminal's programs may have: a flood of connections took them all."""
    monkeypatch.setattr(local_proxy.process_limits, "allow", lambda _wanted=None: 1_024)
    await ends.start()
    assert 2 * ends.proxy._most + 256 <= 1_024


async def test_without_a_file_for_one_more_the_resolver_does_not_spin(ends, monkeypatch):
    await ends.start()
    stub = NameStub(ends.link, fails_open=False)
    stub.open("127.0.0.1", 0)
    ((_, tcp),) = stub._sockets
    turns = 0

    def full(_):
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
        assert stub._connections.total() == 1
    await stub.close()


async def test_questions_that_are_answered_at_once_leave_turns_to_other_tasks(ends, tmp_path):
    """A program that sends them without end, over one connection, held up all others."""
    await ends.start()
    hosts = tmp_path / "hosts"
    hosts.write_text("192.0.2.1 known.test\n")
    stub = NameStub(ends.link, fails_open=False, names=LocalNames(hosts))
    stub.open("127.0.0.1", 0)
    asked = dns_message.question(7, "known.test")
    reader, writer = await asyncio.open_connection(*stub.addresses[0])
    async with counting_turns() as turns:
        writer.write((len(asked).to_bytes(2) + asked) * 500)
        for _ in range(500):
            await reader.readexactly(int.from_bytes(await reader.readexactly(2)))
        assert turns() >= 500
    writer.close()
    await stub.close()


@pytest.mark.usefixtures("users")
async def test_names_that_no_server_answers_for_keep_only_their_user_waiting(ends, monkeypatch):
    """Ask for 80 names of one user: another's nearby one waited until their look-ups had failed."""
    answer, resolve = threading.Event(), socket.getaddrinfo

    def stall(host, *rest, **options):
        if host.endswith(".lan"):
            answer.wait(10)
            raise OSError("no server answers")
        return resolve(host, *rest, **options)

    monkeypatch.setattr(origin.socket, "getaddrinfo", stall)
    await ends.start(fail=Fail.OPEN)
    monkeypatch.setattr(LocalNames, "find", lambda *_: [])
    flood = [await ends.ask(http_connect(80, f"x{number}.lan"), 1) for number in range(80)]
    try:
        await until(lambda: threading.active_count() > 16)
        reader, writer = await ends.ask(http_connect(await ends.origin(echo), "localhost"), 2)
        got = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 5)
        assert got.startswith(b"HTTP/1.1 200")
    finally:
        answer.set()
    for _, each in flood:
        each.transport.abort()
    writer.transport.abort()


@pytest.fixture
def answer(monkeypatch):
    """Return what lets the resolver answer for names that begin with "stalls"."""
    answer = threading.Event()

    def resolve(host, *_, **__):
        if host.startswith("stalls"):
            answer.wait(10)
        return [(2, 1, 6, "", ("1.1.1.1", 0))]

    monkeypatch.setattr(origin.socket, "getaddrinfo", resolve)
    yield answer
    answer.set()


async def test_names_that_no_resolver_answers_keep_only_who_asks_for_them_waiting(answer):
    origins = Origins(DestinationRules(()))
    floods = [
        asyncio.create_task(origins.addresses(f"stalls{number}.test", 80, b"one"))
        for number in range(500)
    ]
    await asyncio.sleep(0)
    try:
        began_s = asyncio.get_running_loop().time()
        async with asyncio.timeout(5):
            assert await origins.addresses("a.test", 80, b"other") == ["1.1.1.1"]
        assert asyncio.get_running_loop().time() - began_s < 2
        assert threading.active_count() < 40
    finally:
        answer.set()
        await asyncio.gather(*floods, return_exceptions=True)


async def test_names_that_no_resolver_answers_leave_look_ups_to_one_asker_more(answer):
    origins = Origins(DestinationRules(()))
    askers = (b"one", b"two", b"three", b"four", b"five", b"six")
    floods = [
        asyncio.create_task(origins.addresses(f"stalls{number}.test", 80, asker))
        for asker in askers
        for number in range(20)
    ]
    await asyncio.sleep(0.1)
    try:
        async with asyncio.timeout(3):
            assert await origins.addresses("a.test", 80, b"other") == ["1.1.1.1"]
    finally:
        answer.set()
        assert await asyncio.gather(*floods) == [["1.1.1.1"]] * len(floods)


@pytest.mark.usefixtures("nothing_is_near", "users")
async def test_names_that_no_resolver_answers_keep_only_their_user_waiting_at_a_gateway(
    ends, monkeypatch
):
    """A user's 20 connections to dead names had all look-ups of the host: another's failed for ever."""
    answer = threading.Event()

    def resolve(host, *_, **__):
        if host.startswith("stalls"):
            answer.wait(20)
        return [(2, 1, 6, "", ("127.0.0.1", 0))]

    monkeypatch.setattr(origin.socket, "getaddrinfo", resolve)
    await ends.start(patience_s=30)
    port = await ends.origin(echo)

    def asks(name):
        return b"CONNECT %s:%d HTTP/1.1\r\n\r\n" % (name, port)

    flood = [await ends.ask(asks(b"stalls%d.test" % number)) for number in range(60)]
    packets = ends.proxy.packets(1, lambda *_: None)
    for number in range(40):
        packets.send(f"stalls-too{number}.test", port, b"x")
    await until(lambda: ends.gateway._associations._origins._running.total() >= 16)
    await asyncio.sleep(0.3)
    try:
        reader, writer = await ends.ask(asks(b"answers.test"), user=2)
        writer.write_eof()
        assert (await asyncio.wait_for(reader.read(), 4)).endswith(b"end")
        writer.close()
    finally:
        answer.set()
        await packets.end()
        for _, each in flood:
            each.transport.abort()


@pytest.mark.parametrize("kind", ["connection", "packet"])
async def test_a_gateway_looks_up_names_for_the_user_who_asks(ends, monkeypatch, kind):
    users = []

    async def looks_up(*_):
        users.append(origin.asking_user.get())
        return []

    monkeypatch.setattr(Origins, "look_up", looks_up)
    await ends.start()
    if kind == "packet":
        association = await ends.link.associate(user=263)
        association.send("a.test", 9, b"x")
    else:
        request = b"GET / HTTP/1.1\r\nHost: a.test\r\n\r\n"
        with suppress(RefusedError):
            await ends.link.open("a.test", 80, lambda one: one.write(request), user=263)
    await until(lambda: users)
    assert set(users) == {7}


async def test_look_ups_that_are_given_up_keep_their_share_until_they_end(monkeypatch):
    """Every ten seconds one client had sixteen threads more, and the unit allows 128 in all."""
    answer = threading.Event()

    def resolve(*_, **__):
        answer.wait(20)
        return [(2, 1, 6, "", ("1.1.1.1", 0))]

    monkeypatch.setattr(origin.socket, "getaddrinfo", resolve)
    origins = Origins(DestinationRules(()), timeout_s=0.1)
    before = threading.active_count()
    try:
        for wave in range(4):
            asked = (origins.connect(f"stalls{wave}-{n}.test", 80, b"one") for n in range(30))
            found = await asyncio.gather(*asked, return_exceptions=True)
            assert {getattr(each, "kind", each) for each in found} == {"dns_timeout"}
        assert threading.active_count() - before <= 16
    finally:
        answer.set()
    await until(lambda: not origins._looking_up)
    assert await origins.addresses("answers.test", 80, b"one") == ["1.1.1.1"]


async def test_a_look_up_that_ends_wakes_one_waiting_look_up_of_each_user(monkeypatch):
    """Wake few: each end woke 2,000 look-ups of a hostile client, and others waited."""
    answer = asyncio.Event()

    async def resolve(host):
        await answer.wait()
        return [(2, 1, 6, "", ("1.1.1.1", 0))]

    monkeypatch.setattr(origin, "_getaddrinfo", resolve)
    origins, asking = Origins(DestinationRules(())), []
    for user in range(20):
        origin.asking_user.set(user)
        asking += [
            asyncio.create_task(origins.look_up(f"{user}-{number}.test", b"one"))
            for number in range(30)
        ]
    await asyncio.sleep(0.05)
    assert 20 < origins._running[b"one"] <= 32
    assert 0 < len(origins._freed._waiters) <= 20
    asking.pop().cancel()
    answer.set()
    assert await asyncio.gather(*asking) == [["1.1.1.1"]] * len(asking)
    await asyncio.sleep(0)
    assert not origins._running
    assert not origins._of_user


@pytest.mark.jumping
async def test_a_name_with_thousands_of_silent_addresses_takes_no_file_from_others(monkeypatch):
    """Each took 0.6 s of the gateway, then 40 files: 200 connections of one client had 6,800."""
    answer = [(2, 1, 6, "", (f"8.{n >> 8}.{n & 255}.1", 0)) for n in range(4000)]
    lively = [(2, 1, 6, "", (f"9.9.9.{n}", 0)) for n in range(3)]
    checked = held = most = 0
    check = DestinationRules.check

    def checks(rules, address, port):
        nonlocal checked
        checked += 1
        check(rules, address, port)

    async def dials(_origins, address, _port):
        nonlocal held, most
        if address == "9.9.9.2":
            return socket.socket()
        held += 1
        most = max(most, held)
        try:
            await asyncio.sleep(60)
        finally:
            held -= 1
        raise AssertionError

    async def resolve(host):
        return list(lively if host == "lively.test" else answer)

    monkeypatch.setattr(origin, "_getaddrinfo", resolve)
    monkeypatch.setattr(DestinationRules, "check", checks)
    monkeypatch.setattr(Origins, "_connect_one", dials)
    origins = Origins(DestinationRules(()))
    count = 100
    floods = [asyncio.create_task(origins.connect("many.test", 80, b"one")) for _ in range(count)]
    await asyncio.sleep(5)
    assert count <= most <= count + origin.MOST_SECOND_ATTEMPTS
    assert checked <= count * origin.MOST_ADDRESSES
    # Connections of another client, and of this one's other users, still get to a third address.
    for asker, user in ((b"other", 0), (b"one", 1)):
        origin.asking_user.set(user)
        async with asyncio.timeout(1):
            (await origins.connect("lively.test", 80, asker)).close()
    assert {type(each) for each in await asyncio.gather(*floods, return_exceptions=True)} == {
        RefusedError
    }
    assert held == 0
    assert not origins._second_attempts


async def test_a_look_up_that_gets_no_thread_is_refused(ends, monkeypatch):
    """Its connection waited for good."""
    await ends.start()

    def start(self):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", start)
    assert (await ends.why(http_connect(80, "a.test"))).startswith(b"HTTP/1.1 503")


@pytest.mark.parametrize("asked", ["connection", "packet"])
async def test_what_one_client_asks_for_leaves_the_event_loop_to_others(ends, monkeypatch, asked):
    """Requests that each take 3 ms of a processor had another client wait for 1.8 s."""
    in_turns = []
    async with counting_turns() as turns:

        def cost(*_):
            in_turns.append(turns())
            time.sleep(0.003)

        monkeypatch.setattr(DestinationRules, "check", cost)
        await ends.start()
        async with await connect(
            ends.gateway.address, server_key=ends.me.public, key=ends.client, limits=LIMITS
        ) as connection:
            streams = Multiplexer(connection)
            running = asyncio.create_task(streams.run())
            if asked == "packet":
                association = streams.associate()
                await association.wait_accepted()
            for number in range(60):
                if asked == "packet":
                    association.send(f"127.0.0.{number + 1}", 9, b"x")
                else:
                    streams.open("127.0.0.1", 9)
            await until(lambda: len(in_turns) == 60)
            assert max(Counter(in_turns).values()) <= 3
            running.cancel()


UPLOAD_BYTES = 200_000


class Deaf:
    """A server that ends its side of each connection at once, and reads nothing: `accepted` are these."""

    def __init__(self):
        self.listening = socket.socket()
        self.listening.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2_048)
        self.listening.bind(("127.0.0.1", 0))
        self.listening.listen(64)
        self.listening.setblocking(False)
        self.accepted = []
        asyncio.get_running_loop().add_reader(self.listening, self._accept)

    def _accept(self):
        one, _ = self.listening.accept()
        one.setblocking(False)
        one.shutdown(socket.SHUT_WR)
        self.accepted.append(one)

    async def uploads(self, ends, key, count):
        """Upload, in a session of a client, to this server, and leave; return how many it took."""
        connection = await connect(
            ends.gateway.address, server_key=ends.me.public, key=key, limits=LIMITS, timeout_s=5
        )
        streams = Multiplexer(connection)
        running = asyncio.create_task(streams.run())
        uploads = [streams.open("127.0.0.1", self.listening.getsockname()[1]) for _ in range(count)]
        for stream in uploads:
            stream.watch(partial(self._uploads, stream))
            stream.on_change()
        await until(lambda: all(each.gone for each in uploads))
        took = sum(each.over for each in uploads)
        connection.abort("left")
        await asyncio.gather(running, connection.wait_drained(), return_exceptions=True)
        return took

    def _uploads(self, stream):
        stream.write(bytes(UPLOAD_BYTES - stream.sent_bytes))
        if stream.sent_bytes == UPLOAD_BYTES:
            stream.finish()

    def close(self):
        asyncio.get_running_loop().remove_reader(self.listening)
        for each in (self.listening, *self.accepted):
            each.close()


@pytest.fixture
async def deaf(monkeypatch):
    def holds_little(connection):
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4_096)

    monkeypatch.setattr(origin, "keep_alive", holds_little)
    made = Deaf()
    yield made
    made.close()


async def received(one):
    """Return how many bytes come until the end."""
    count = 0
    while data := await asyncio.get_running_loop().sock_recv(one, 65_536):
        count += len(data)
    return count


async def test_connections_of_an_ended_session_count_until_they_are_closed(ends, deaf, monkeypatch):
    """A client left its sessions and came again: 8,174 connections went on for a day, uncounted."""
    monkeypatch.setattr(gateway_session, "LAST_S", 2.0)
    await ends.start(most=6, most_per_client=4)
    hostile = KeyPair(os.urandom(32))
    ends.clients[hostile.public] = "phone"
    assert await deaf.uploads(ends, hostile, 5) == 4
    assert await deaf.uploads(ends, hostile, 3) == 0
    assert ends.gateway.sessions == 0
    del ends.clients[hostile.public]
    assert await is_served(ends, await ends.origin(echo))
    # Each is closed before its server has read anything, and looks broken there.
    await until(lambda: not ends.gateway._open)
    for one in deaf.accepted:
        with pytest.raises(ConnectionResetError):
            await received(one)


async def test_what_an_ended_session_brought_whole_arrives_whole(ends, deaf):
    await ends.start()
    assert await deaf.uploads(ends, ends.client, 1) == 1
    assert await asyncio.wait_for(received(deaf.accepted[0]), 5) == UPLOAD_BYTES
    await until(lambda: not ends.gateway._open)

"""Programs' connections through the gateway: bytes, ends, refusals, resets, limits."""

import asyncio
import hashlib
import os
import resource
import socket
import struct
import weakref
from contextlib import suppress
from dataclasses import replace
from http import HTTPStatus

import pytest
from kit.proxy_requests import http_connect, socks_connect
from kit.waiting import until

from cedos.errors import HostError, SessionError
from cedos.kernel.process_limits import MemoryRoom
from cedos.proxy.gateway import gateway, gateway_session
from cedos.proxy.gateway.gateway import LIMITS, OPENS_AT_ONCE
from cedos.proxy.gateway.gateway_session import GatewaySession
from cedos.proxy.gateway.origin import Origins
from cedos.proxy.http import RefusedError
from cedos.proxy.local import gateway_link, local_proxy
from cedos.proxy.local.direct import RuleBook, is_near
from cedos.proxy.local.gateway_link import GatewayLink, GatewayUnreachableError
from cedos.proxy.local.gateway_links import GatewayLinks
from cedos.proxy.local.local_proxy import Fail, Listening, LocalProxy
from cedos.proxy.local.redirection import RedirectedTo
from cedos.proxy.splice import reset_on_close
from cedos.proxy.streams.frames import OpenStream, StreamBytes
from cedos.proxy.streams.stream import SMALL, WINDOW_BYTES, ProxiedStream
from cedos.session.io.links import EgressReader
from cedos.session.protocol.channel import Channel
from cedos.session.protocol.crypto import KeyPair
from cedos.session.sockets.connection import Connection
from cedos.session.sockets.sockets import connect


async def echo(reader, writer):
    """Sends back what comes, and after its end one word more."""
    with suppress(ConnectionError):
        while data := await reader.read(65_536):
            writer.write(data)
            await writer.drain()
        writer.write(b"end")
        await writer.drain()
    writer.close()


async def breaks(reader, writer):
    writer.write(b"half")
    await writer.drain()
    await asyncio.sleep(0.1)
    reset_on_close(writer.get_extra_info("socket"))


async def test_bytes_go_both_ways_and_each_end_is_handed_on(ends):
    await ends.start()
    reader, writer = await ends.forward(await ends.origin(echo))
    data = os.urandom(5 * WINDOW_BYTES)
    writer.write(data)
    writer.write_eof()
    got = await asyncio.wait_for(reader.read(), 30)
    assert hashlib.sha256(got[:-3]).digest() == hashlib.sha256(data).digest()
    assert got[-3:] == b"end"
    writer.close()


async def test_many_at_once_are_one_session(ends):
    await ends.start()
    port = await ends.origin(echo)
    pairs = [await ends.forward(port) for _ in range(40)]
    for number, (_, writer) in enumerate(pairs):
        writer.write(b"%d" % number)
        writer.write_eof()
    got = [await asyncio.wait_for(reader.read(), 10) for reader, _ in pairs]
    assert got == [b"%dend" % number for number in range(40)]
    assert len(ends.gateway._sessions) == 1
    for _, writer in pairs:
        writer.close()


async def test_who_does_not_read_holds_nobody_up(ends):
    await ends.start()

    async def floods(reader, writer):
        with suppress(ConnectionError):
            while True:
                writer.write(bytes(65_536))
                await writer.drain()

    _, slow = await ends.forward(await ends.origin(floods))
    await asyncio.sleep(0.3)
    reader, writer = await ends.forward(await ends.origin(echo))
    writer.write(b"quick")
    writer.write_eof()
    assert await asyncio.wait_for(reader.read(), 5) == b"quickend"
    (session,) = ends.gateway._sessions.values()
    assert session.connection.held_bytes < 4 * WINDOW_BYTES
    for each in (slow, writer):
        each.transport.abort()


async def test_a_program_that_resets_while_it_is_connected_never_looks_complete(ends, monkeypatch):
    """The proxy's own word to it took the error: its next read looked like an orderly end."""
    await ends.start()
    heard = asyncio.get_running_loop().create_future()

    async def hears(reader, _writer):
        try:
            heard.set_result(await reader.read())
        except ConnectionError:
            heard.set_result("reset")

    connect = ends.proxy.connect

    async def connect_and_reset(*words, **more):
        made = await connect(*words, **more)
        reset_on_close(writer.get_extra_info("socket"))
        writer.transport.abort()
        await asyncio.sleep(0.05)
        return made

    monkeypatch.setattr(ends.proxy, "connect", connect_and_reset)
    _, writer = await ends.forward(await ends.origin(hears))
    writer.write(b"half of it")
    assert await asyncio.wait_for(heard, 5) == "reset"


class Led:
    """Redirected connections, all to one port of loopback."""

    def __init__(self, port):
        self.to = RedirectedTo("127.0.0.1", port, 1)

    def destination(self, _program):
        return self.to

    def forget(self, to):
        assert to is self.to


@pytest.mark.usefixtures("nothing_is_near")
@pytest.mark.parametrize("led", [True, False])
async def test_a_program_never_takes_the_proxys_death_for_an_empty_answer(ends, monkeypatch, led):
    """Until the gateway had answered, a kill -9 ended the program's connection in good order."""
    await ends.start()
    port, lingers = await ends.origin(echo), []
    opened = GatewayLink.open

    async def looks(*words, **more):
        made = await opened(*words, **more)
        lingers.extend(
            struct.unpack("ii", program.getsockopt(socket.SOL_SOCKET, socket.SO_LINGER, 8))
            for held in ends.proxy._held.values()
            for program in held.carried.values()
        )
        return made

    monkeypatch.setattr(GatewayLink, "open", looks)
    if led:
        ends.proxy.open([Listening("127.0.0.1", 0, redirection=Led(port))])
    where = "127.0.0.1", ends.proxy.addresses[-1].port
    reader, writer = await asyncio.open_connection(*where)
    writer.write(b"" if led else http_connect(port))
    writer.write_eof() if led else await reader.readuntil(b"\r\n\r\n")
    await until(lambda: lingers)
    assert lingers == [(1, 0)]
    writer.transport.abort()


@pytest.mark.parametrize("half_closes", [False, True])
async def test_what_is_dropped_never_looks_complete(ends, half_closes):
    """Break it off: a slow program got a part of what its server had sent, and an end in good order."""
    await ends.start()

    async def sends(_reader, writer):
        writer.write(bytes(400_000))
        await writer.drain()

    one = socket.socket()
    one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
    one.setblocking(False)
    ends.proxy.open([Listening("127.0.0.1", 0, ("127.0.0.1", await ends.origin(sends)))])
    loop = asyncio.get_running_loop()
    with one:
        await loop.sock_connect(one, ("127.0.0.1", ends.proxy.addresses[-1].port))
        await until(lambda: ends.link._streams is not None and ends.link._streams.streams)
        (stream,) = ends.link._streams.streams.values()
        if half_closes:
            one.shutdown(socket.SHUT_WR)
            await until(lambda: stream.over)
        await until(lambda: stream.peer_ended)
        assert stream.unread_bytes
        stream.drop()

        async def read_all():
            while await loop.sock_recv(one, 65_536):
                pass

        with pytest.raises(ConnectionResetError):
            await asyncio.wait_for(read_all(), 5)


@pytest.mark.usefixtures("nothing_is_near")
async def test_a_lost_session_is_kept_for_no_connection_that_goes_direct(ends, monkeypatch):
    """Let it go: a gateway that ended each session had one kept for each connection, for up to 30 s."""
    await ends.start(fail=Fail.OPEN)
    kept = []

    class Lost:
        """A session."""

    async def lost(*_, **__):
        session = Lost()
        kept.append(weakref.ref(session))
        raise GatewayUnreachableError("it ended")

    async def wait(*_):
        await asyncio.Event().wait()

    monkeypatch.setattr(GatewayLinks, "open", lost)
    monkeypatch.setattr(Origins, "connect", wait)
    connecting = asyncio.create_task(ends.proxy.connect("192.0.2.1", 80, far=False))
    await until(lambda: kept and all(each() is None for each in kept))
    connecting.cancel()


@pytest.mark.usefixtures("nothing_is_near")
async def test_what_came_before_a_refusal_is_kept_no_longer(ends, monkeypatch):
    """Forget it: each connection that failed before its answer left it in the proxy's memory."""
    await ends.start()

    async def early(stream, work):
        work.close()
        stream._session.put(
            stream, StreamBytes(stream.number, 0, bytes(9_000)).pack(), SMALL, ordered=True
        )
        raise RefusedError(HTTPStatus.BAD_GATEWAY, "dns_error", "it was not found")

    monkeypatch.setattr(gateway_session, "unless_broken", early)
    for _ in range(3):
        with pytest.raises(RefusedError):
            await ends.proxy.connect("127.0.0.1", 80, far=False)
    assert ends.link._unread.total_bytes == 0


async def test_what_breaks_at_the_origin_breaks_for_the_program(ends):
    await ends.start()
    reader, writer = await ends.forward(await ends.origin(breaks))
    assert await reader.readexactly(4) == b"half"
    with pytest.raises(ConnectionResetError):
        await asyncio.wait_for(reader.read(), 5)
    writer.close()


@pytest.mark.usefixtures("nothing_is_near")
async def test_http_and_socks_on_one_port(ends):
    await ends.start()
    port = await ends.origin(echo)
    assert await _through_or_direct(ends, port) == b"aend"
    reader, writer = await ends.ask(socks_connect(port) + b"b")
    assert await reader.readexactly(2) == b"\x05\x00"
    assert (await reader.readexactly(10))[:2] == b"\x05\x00"
    writer.write_eof()
    assert await asyncio.wait_for(reader.read(), 5) == b"bend"
    writer.close()


async def test_a_program_does_not_lead_the_proxy_to_itself(ends):
    """Refuse it: each byte of a user who did so 2,000 times went through the proxy 4,000 times."""
    await ends.start(fail=Fail.OPEN)
    got = await ends.answer(http_connect(ends.proxy.addresses[0].port))
    assert got.startswith(b"HTTP/1.1 403")
    assert b"proxy_loop_detected" in got


@pytest.mark.usefixtures("nothing_is_near")
@pytest.mark.parametrize("direct", [False, True])
async def test_a_program_that_asks_ahead_has_its_answer_to_the_end(ends, direct):
    """The proxy closed with the next request unread: a reset took what was on the way."""
    await ends.start(fail=Fail.OPEN, direct=lambda *_: direct)

    async def answers(reader, writer):
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\n\r\n" + bytes(1_000_000))
        await writer.drain()

    asked = b"GET http://127.0.0.1:%d/ HTTP/1.1\r\n\r\n" % await ends.origin(answers)
    reader, writer = await ends.ask(asked + b"GET http://other.example/ HTTP/1.1\r\n\r\n")
    got = await reader.readexactly(1)
    while more := await asyncio.wait_for(reader.read(100_000), 5):
        got += more
        writer.write(b"GET http://third.example/ HTTP/1.1\r\n\r\n")
        await asyncio.sleep(0.005)
    writer.close()
    assert len(got.partition(b"\r\n\r\n")[2]) == 1_000_000


@pytest.mark.usefixtures("nothing_is_near")
@pytest.mark.parametrize("direct", [False, True])
async def test_an_origin_cannot_have_a_programs_next_request_on_its_connection(ends, direct):
    """curl sent the request for another host, with its cookie, and took this origin's answer for it."""
    await ends.start(fail=Fail.OPEN, direct=lambda *_: direct)
    behind, begun = b"", asyncio.Event()

    async def keeps_alive(reader, writer):
        nonlocal behind
        await reader.readuntil(b"1\r\nx\r\n")
        begun.set()
        await reader.readuntil(b"0\r\n\r\n")
        head = b"HTTP/1.1 200 OK\r\nConnection: keep-alive\r\nContent-Length: 4\r\n\r\n"
        writer.write(b"HTTP/1.1 100 Continue\r\n\r\n" + head)
        with suppress(TimeoutError):
            behind = await asyncio.wait_for(reader.read(1), 0.05)
        writer.write(b"evil")
        writer.close()

    asked = b"POST http://127.0.0.1:%d/ HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nx\r\n"
    reader, writer = await ends.ask(asked % await ends.origin(keeps_alive))
    await begun.wait()
    # The proxy reads both at once: what it passed on of the next request would come with the body's end.
    writer.write(b"0\r\n\r\nGET http://other.example/ HTTP/1.1\r\nCookie: secret\r\n\r\n")
    got = await asyncio.wait_for(reader.read(), 5)
    assert behind == b""
    assert got == (
        b"HTTP/1.1 100 Continue\r\n\r\n"
        b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 4\r\n\r\nevil"
    )
    writer.close()


@pytest.mark.usefixtures("nothing_is_near")
@pytest.mark.parametrize("direct", [False, True])
@pytest.mark.parametrize(
    "answer", [b"HTTP/1.1 101 Switching\r\n\r\n", b"\r\nHTTP/1.1 200 OK\r\n\r\n"]
)
async def test_what_programs_could_read_in_two_ways_is_no_answer(ends, direct, answer):
    await ends.start(fail=Fail.OPEN, direct=lambda *_: direct)

    async def odd(reader, writer):
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answer)

    reader, writer = await ends.ask(
        b"HEAD http://127.0.0.1:%d/ HTTP/1.1\r\n\r\n" % await ends.origin(odd)
    )
    with pytest.raises(ConnectionResetError):
        await asyncio.wait_for(reader.read(), 5)
    writer.close()


@pytest.mark.usefixtures("nothing_is_near")
async def test_a_closed_port_is_refused_in_each_language(ends, closed_port):
    await ends.start()
    assert b"connection_refused" in await ends.why(http_connect(closed_port))
    assert (await ends.answer(socks_connect(closed_port)))[:4] == b"\x05\x00\x05\x05"
    reader, writer = await ends.forward(closed_port)
    with pytest.raises(ConnectionResetError):
        await asyncio.wait_for(reader.read(), 5)
    writer.close()


@pytest.mark.usefixtures("nothing_is_near")
async def test_the_gateways_own_host_is_closed_to_strangers_requests(ends):
    await ends.start(local=False)
    assert (await ends.why(http_connect(await ends.origin(echo)))).startswith(b"HTTP/1.1 403")


@pytest.mark.usefixtures("nothing_is_near")
async def test_short_of_memory_it_refuses_in_words_and_serves_those_that_live(ends, monkeypatch):
    await ends.start()
    port = await ends.origin(echo)
    living, to_living = await ends.ask(http_connect(port))
    assert (await asyncio.wait_for(living.readuntil(b"\r\n\r\n"), 5)).startswith(b"HTTP/1.1 200")
    monkeypatch.setattr(MemoryRoom, "is_short", lambda _self: True)
    told = await ends.why(http_connect(port))
    assert told.startswith(b"HTTP/1.1 503")
    assert b"no memory left" in told
    to_living.write(b"still there")
    assert await asyncio.wait_for(living.readexactly(11), 5) == b"still there"
    to_living.close()
    monkeypatch.setattr(MemoryRoom, "is_short", lambda _self: False)
    reader, writer = await ends.ask(http_connect(port))
    assert (await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 5)).startswith(b"HTTP/1.1 200")
    writer.close()


async def test_a_record_without_memory_costs_a_path_and_not_its_session(ends, monkeypatch):
    await ends.start()
    reader, writer = await ends.forward(await ends.origin(echo))
    writer.write(b"first")
    assert await asyncio.wait_for(reader.readexactly(5), 5) == b"first"
    session, data, failed = ends.link._streams, os.urandom(2_000_000), []
    receive = Channel.receive

    def short(self, received, now):
        if len(received) > 10_000 and len(failed) < 2:
            failed.append(self)
            raise MemoryError
        return receive(self, received, now)

    monkeypatch.setattr(Channel, "receive", short)
    writer.write(data)
    assert await asyncio.wait_for(reader.readexactly(len(data)), 20) == data
    writer.close()
    assert len(failed) == 2
    assert ends.link._streams is session


@pytest.mark.parametrize(
    ("free", "most"), [(None, 1 << 30), (4 << 30, 1 << 30), (200 << 20, 100 << 20), (-5, 8 << 20)]
)
async def test_what_waits_is_bounded_by_what_its_limits_leave(ends, monkeypatch, free, most):
    monkeypatch.setattr(MemoryRoom, "free_bytes", lambda _self: free)
    await ends.start()
    assert ends.gateway._terms.unread._most_bytes == most
    replay = ends.gateway._listener._driver.memory.limit_bytes
    assert replay == (512 << 20 if free is None else min(512 << 20, most // 2))


async def test_a_flood_of_connections_ends_the_session_and_delays_nobody(ends):
    """A refused OPEN takes 10 bytes and 60 us, and all came before anything of another client."""
    await ends.start()
    other = KeyPair(os.urandom(32))
    ends.clients[other.public] = "phone"
    hostile = await connect(
        ends.gateway.address, server_key=ends.me.public, key=other, limits=LIMITS, timeout_s=5
    )
    flood = [OpenStream(number, "127.0.0.1", 25).pack() for number in range(1, 3 * OPENS_AT_ONCE)]

    async def floods():
        for each in flood:
            await hostile.send(each, SMALL, after=())

    flooding = asyncio.create_task(floods())

    def ended():
        hostile.receive_data_now()
        return hostile.ended

    await until(ended)
    await asyncio.gather(flooding, return_exceptions=True)
    assert "connections a second" in str(hostile.failure)
    reader, writer = await ends.forward(await ends.origin(echo))
    writer.write(b"word")
    assert await asyncio.wait_for(reader.readexactly(4), 5) == b"word"
    writer.close()


async def session(ends, key):
    return await connect(
        ends.gateway.address, server_key=ends.me.public, key=key, limits=LIMITS, timeout_s=5
    )


async def test_one_client_has_a_bounded_number_of_sessions(ends):
    """Each has connections of its own, and a client may open sessions without end."""
    await ends.start(sessions_per_client=3)
    other = KeyPair(os.urandom(32))
    ends.clients[other.public] = "phone"

    kept = [await session(ends, ends.client) for _ in range(3)]
    with pytest.raises(SessionError):
        await session(ends, ends.client)
    kept.append(await session(ends, other))
    for each in kept:
        each.abort("the test is over")
        await each.wait_drained()


async def test_one_clients_paths_leave_files_to_others(ends, monkeypatch):
    """70 sessions of one client, with 16 paths each, took all of 1,024 files as long as it stayed."""
    monkeypatch.setattr(gateway.process_limits, "allow", lambda _wanted=None: 1_024)
    monkeypatch.setattr(gateway, "_SPARE_FILES", 8)
    await ends.start()
    other = KeyPair(os.urandom(32))
    ends.clients[other.public] = "phone"

    kept = [await session(ends, ends.client) for _ in range(16)]
    with pytest.raises(SessionError, match="takes no more flows"):
        await session(ends, ends.client)
    kept.append(await session(ends, other))
    kept[0].abort("left")
    await kept.pop(0).wait_drained()
    kept.append(await session(ends, ends.client))
    for each in kept:
        each.abort("the test is over")
        await each.wait_drained()


async def test_who_was_not_invited_gets_nothing(ends, closed_port):
    ends.clients.clear()
    await ends.start(patience_s=0.5)
    reader, writer = await ends.forward(await ends.origin(echo))
    with pytest.raises(ConnectionResetError):
        await asyncio.wait_for(reader.read(), 5)
    writer.close()


async def test_who_is_not_invited_any_more_opens_nothing_more(ends):
    await ends.start()
    port = await ends.origin(echo)
    reader, writer = await ends.forward(port)
    writer.write(b"x")
    assert await reader.readexactly(1) == b"x"
    ends.clients.clear()
    refused, other = await ends.forward(port)
    with pytest.raises(ConnectionResetError):
        await asyncio.wait_for(refused.read(), 5)
    for each in (writer, other):
        each.close()


@pytest.mark.usefixtures("nothing_is_near")
async def test_without_the_gateway_it_goes_direct_or_is_refused(ends):
    await ends.start(fail=Fail.OPEN, patience_s=0.5)
    port = await ends.origin(echo)
    await ends.stop_gateway()
    assert await _through_or_direct(ends, port) == b"aend"
    ends.proxy._fail = Fail.CLOSED
    assert b"the gateway cannot be reached" in await ends.answer(http_connect(port))


async def test_with_fail_closed_nothing_leaves_that_a_hostile_network_calls_nearby(
    ends, monkeypatch
):
    """Its resolver answers names without a dot and .lan, and it gives this host routes and addresses.

    An address that it leased for seconds, or the end of a VPN, had a flow of datagrams leave in clear.
    """
    here = Origins._connect_one
    world = ["203.0.113.9", "2001:db8::9"]
    answers = []
    dialled = []

    async def resolve(_origins, host, _asker):
        return [*answers] if any(map(str.isalpha, host)) else [host]

    async def dials(origins, address, port):
        dialled.append(address)
        if address in world:
            raise OSError(113, "no route to host")
        return await here(origins, address, port)

    monkeypatch.setattr(Origins, "look_up", resolve)
    monkeypatch.setattr(Origins, "_connect_one", dials)
    monkeypatch.setattr(EgressReader, "has_own", lambda _reader, _address: True)
    await ends.start(fail=Fail.CLOSED, patience_s=0.3)
    port = await ends.origin(echo)
    await ends.stop_gateway()
    packets = ends.proxy.packets(1000, lambda *_: None)
    for host in ("printer", "files.lan", *world):
        answers[:] = world
        with pytest.raises(RefusedError, match=r"nearby|cannot be reached"):
            await ends.proxy.connect(host, port, far=False)
        packets.send(host, port, b"datagram")
        await asyncio.sleep(0)
        assert not packets._direct._peers
    assert dialled == []
    await packets.end()
    # What is nearby goes on, also where the name has other addresses.
    answers[:] = [*world, "127.0.0.1"]
    (await ends.proxy.connect("printer", port, far=False)).close()
    assert dialled == ["127.0.0.1"]
    # With `--fail open` all of them may go direct.
    dialled.clear()
    ends.proxy._fail = Fail.OPEN
    (await ends.proxy.connect("printer", port, far=False)).close()
    assert dialled[0] == world[0]


async def test_with_fail_closed_no_network_makes_a_host_the_gateway(ends, monkeypatch):
    """One whose resolver and router led the gateway's name over any host drew that host's traffic out."""
    await ends.start(fail=Fail.CLOSED)
    await ends.link._session()
    paths, host = Connection.paths, "203.0.113.9"
    monkeypatch.setattr(
        Connection, "paths", lambda one: [replace(each, peer=host) for each in paths(one)]
    )
    ends.link.joined = replace(ends.link.joined, host="gateway.test")
    packets = ends.proxy.packets(1000, lambda *_: None)
    for each in (host, "gateway.test"):
        assert not ends.proxy.goes_direct(each)
        assert not ends.proxy._packets_go_direct(1000, each, 443)
    monkeypatch.setattr(Origins, "look_up", lambda *_: asyncio.sleep(0, [host]))
    assert await ends.proxy._direct_addresses(1000, "gateway.test", 443) == []
    ends.proxy._fail = Fail.OPEN
    assert ends.proxy.goes_direct(host)
    ends.proxy._fail = Fail.CLOSED
    ends.link.joined = replace(ends.link.joined, host=host)
    assert ends.proxy.goes_direct(host), "its user gave that address"
    await packets.end()


async def test_a_kernel_that_tells_no_route_loses_no_packet(ends, monkeypatch):
    """The error ended the reading of all packets that had come together."""

    def unanswered(*_, **__):
        raise HostError("rtnetlink does not answer")

    await ends.start(fail=Fail.OPEN)
    monkeypatch.setattr(EgressReader, "has_own", unanswered)
    assert not ends.proxy.goes_direct("203.0.113.9")
    assert ends.proxy.goes_direct("192.168.1.1")


@pytest.mark.usefixtures("nothing_is_near")
async def test_where_the_gateway_has_no_way_it_goes_direct(ends, monkeypatch):
    """As one without IPv6 does not keep the laptop from its own."""
    await ends.start(fail=Fail.OPEN)
    port = await ends.origin(echo)
    kinds = iter(["destination_ip_unroutable", "connection_refused", "destination_ip_unroutable"])

    async def no_way(*_, **__):
        raise RefusedError(HTTPStatus.BAD_GATEWAY, next(kinds), "no way")

    monkeypatch.setattr(GatewayLink, "open", no_way)
    reader, writer = await ends.ask(http_connect(port))
    writer.write(b"a")
    writer.write_eof()
    assert (await asyncio.wait_for(reader.read(), 5)).endswith(b"\r\n\r\naend")
    writer.close()
    for fail in (Fail.OPEN, Fail.CLOSED):
        ends.proxy._fail = fail
        assert b"no way" in await ends.answer(http_connect(port)), fail


@pytest.mark.parametrize(
    ("host", "near"),
    [
        ("fe80::1%wlan0", True), ("printer", True), ("nas.local", True), ("localhost", True),
        ("1.1.1.1", False), ("example.org.", False),
    ],
)  # fmt: skip
def test_what_is_of_this_place_does_not_take_the_detour(host, near):
    assert is_near(host) is near


async def _through_or_direct(ends, port):
    reader, writer = await ends.ask(http_connect(port))
    assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200")
    writer.write(b"a")
    writer.write_eof()
    got = await asyncio.wait_for(reader.read(), 5)
    writer.close()
    return bytes(got)


async def test_a_proxy_that_ends_leaves_no_session_at_the_gateway(ends):
    """End the session: each one of an ended proxy slept there for an hour; a host may have 128."""
    await ends.start()
    _, writer = await ends.forward(await ends.origin(echo))
    await until(lambda: len(ends.gateway.connections) == 1)
    (session,) = ends.gateway.connections
    await ends.link.close()
    await until(lambda: session.ended)
    assert "the program at this end was ended" in str(session.failure)
    writer.close()


@pytest.mark.usefixtures("nothing_is_near")
async def test_a_gateway_with_another_key_is_not_the_one(ends):
    await ends.start(fail=Fail.OPEN)
    ends.link.joined = replace(ends.link.joined, server_key=KeyPair(os.urandom(32)).public)
    assert await _through_or_direct(ends, await ends.origin(echo)) == b"aend"
    assert ends.gateway.sessions == 0
    ends.proxy._fail = Fail.CLOSED
    assert b"another key" in await ends.answer(http_connect(80))
    assert "another key" in ends.link.problem  # `cedos status` tells it


@pytest.mark.usefixtures("nothing_is_near")
async def test_a_gateway_that_answers_no_request_keeps_no_program_for_ever(ends, monkeypatch):
    """Give up: the session stood, no path was silent, and programs waited, also with another way."""
    monkeypatch.setattr(gateway_link, "_ORIGIN_S", 0.5, raising=False)
    monkeypatch.setattr(GatewaySession, "_on_opened", lambda *_: None)
    await ends.start(fail=Fail.OPEN)
    assert await _through_or_direct(ends, await ends.origin(echo)) == b"aend"
    ends.proxy._fail = Fail.CLOSED
    assert b"does not say" in await ends.why(http_connect(80))


@pytest.mark.usefixtures("nothing_is_near")
async def test_behind_a_captive_portal_it_goes_direct_and_comes_back(ends, monkeypatch):
    """The portal answers in the gateway's place: in HTTP, to whatever was said."""
    monkeypatch.setattr(gateway_link, "AGAIN_S", 0.5)
    await ends.start(fail=Fail.OPEN, patience_s=0.5)
    real, origin = ends.link.joined, await ends.origin(echo)

    async def portal(reader, writer):
        with suppress(ConnectionError):
            await reader.read(1000)
            writer.write(b"HTTP/1.1 302 Found\r\nLocation: http://portal/\r\n\r\n")
            await writer.drain()

    ends.link.joined = replace(real, port=await ends.origin(portal))
    began_s = asyncio.get_running_loop().time()
    assert await _through_or_direct(ends, origin) == b"aend"
    assert await _through_or_direct(ends, origin) == b"aend"
    assert asyncio.get_running_loop().time() - began_s < 3
    assert ends.gateway.sessions == 0
    ends.link.joined = real
    await asyncio.sleep(0.6)
    if ends.link._dialling is not None:  # (the dial to the portal lasts for ten seconds)
        ends.link._dialling.cancel()
        await asyncio.sleep(0)
    assert await _through_or_direct(ends, origin) == b"aend"
    assert ends.gateway.sessions == 1


async def test_without_files_for_more_connections_those_that_live_go_on(ends, monkeypatch):
    """A limit on files leaves some for clients' paths, and half of the rest for other clients."""
    monkeypatch.setattr(gateway, "_SPARE_FILES", resource.getrlimit(resource.RLIMIT_NOFILE)[1] - 6)
    await ends.start()
    port = await ends.origin(echo)
    kept = [await ends.forward(port) for _ in range(3)]
    for reader, writer in kept:
        writer.write(b"x")
        assert await reader.readexactly(1) == b"x"
    refused, other = await ends.forward(port)
    with pytest.raises(ConnectionResetError):
        await asyncio.wait_for(refused.read(), 5)
    for reader, writer in kept:
        writer.write_eof()
        assert await asyncio.wait_for(reader.read(), 5) == b"end"
        writer.close()
    other.close()


async def test_a_gateway_that_ends_each_session_is_dialled_by_programs_alone(ends):
    """The link dialled it twenty times a second by itself, also over metered networks."""
    await ends.start(patience_s=0.5)
    ended = []

    def serve(session):
        ended.append(session)
        session.connection.abort("not now")

    ends.gateway._serve = serve
    reader, writer = await ends.forward(await ends.origin(echo))
    with pytest.raises(ConnectionResetError):
        await asyncio.wait_for(reader.read(), 5)
    writer.close()
    await asyncio.sleep(0.5)
    assert len(ended) <= 3


async def _carried_by_a_gateway_that_is_gone(ends):
    """Return a connection that the gateway carried until it was killed, and the origin's port."""
    await ends.start(fail=Fail.OPEN, patience_s=0.3)
    port = await ends.origin(echo)
    reader, writer = await ends.ask(http_connect(port))
    await reader.readuntil(b"\r\n\r\n")
    writer.write(b"x")
    assert await reader.readexactly(1) == b"x"
    (session,) = ends.gateway._sessions.values()
    session.connection._over = True  # as in a killed process: the laptop is told nothing
    session.connection.flow.end("killed")
    await ends.gateway._listener.close()
    await asyncio.sleep(0.8)
    return reader, writer, port


@pytest.mark.usefixtures("nothing_is_near")
async def test_a_gateway_that_is_gone_lets_go_of_what_it_carried(ends, monkeypatch):
    """A killed gateway says nothing. What went direct since then shows that networks work."""
    monkeypatch.setattr(gateway_link, "GONE_S", 0.5)
    reader, writer, port = await _carried_by_a_gateway_that_is_gone(ends)
    writer.write(b"y")  # nothing went direct yet: there may be no network at all
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(reader.read(), 0.3)
    assert await _through_or_direct(ends, port) == b"aend"
    with pytest.raises(ConnectionResetError):
        await asyncio.wait_for(reader.read(), 5)
    writer.close()


async def test_what_is_near_under_any_name_shows_no_network(ends, monkeypatch):
    """One look at a router's page, in an outage of 10 s, broke all that waited for its end."""
    monkeypatch.setattr(gateway_link, "GONE_S", 0.5)
    monkeypatch.setattr(LocalProxy, "goes_direct", lambda *_: False)
    reader, writer, port = await _carried_by_a_gateway_that_is_gone(ends)
    writer.write(b"y")
    monkeypatch.setattr(LocalProxy, "goes_direct", lambda _proxy, host: host == "127.0.0.1")
    real = Origins.look_up

    async def look_up(origins, host, asker):
        return ["127.0.0.1"] if host == "router.test" else await real(origins, host, asker)

    monkeypatch.setattr(Origins, "look_up", look_up)
    upstream = await ends.proxy.connect("router.test", port, far=False)
    assert isinstance(upstream, socket.socket), "it went direct"
    upstream.close()
    with pytest.raises(TimeoutError):  # it waits on
        await asyncio.wait_for(reader.read(), 2.0)
    writer.close()


@pytest.mark.parametrize(("fail", "there"), [(Fail.OPEN, False), (Fail.CLOSED, True)])
async def test_what_is_not_worth_the_detour_goes_direct_unless_nothing_may(
    ends, fail, there, monkeypatch
):
    asked = []

    def direct(port, _gateway_rtt_s):
        asked.append(port)
        return True

    # (Loopback stands for the world.)
    monkeypatch.setattr(local_proxy.LocalProxy, "goes_direct", lambda _proxy, _host: False)
    await ends.start(fail=fail, direct=direct)
    port = await ends.origin(echo)
    for far in (False, True):
        upstream = await ends.proxy.connect("127.0.0.1", port, far=far)
        through = isinstance(upstream, ProxiedStream)
        assert through is (there or far), "what is meant as the gateway's goes there"
        one, other = socket.socketpair()
        with one as program, other:
            program.setblocking(False)
            other.shutdown(socket.SHUT_WR)
            carried = await asyncio.wait_for(ends.proxy.carry(program, upstream, b"word"), 5)
        assert carried.up_bytes == 4
    assert asked == ([] if there else [port])


class PrefixRule(RuleBook):
    """About one address, by whatever name it is called."""

    async def find(self, host, port, user, look_up):
        return "127.0.0.1" in await look_up(host, port, user)


@pytest.mark.parametrize(("fail", "through"), [(Fail.OPEN, False), (Fail.CLOSED, True)])
async def test_what_is_under_a_rule_goes_direct_by_its_name_too(ends, fail, through, monkeypatch):
    monkeypatch.setattr(local_proxy.LocalProxy, "goes_direct", lambda *_: False)
    await ends.start(fail=fail, rules=PrefixRule())
    port = await ends.origin(echo)
    upstream = await ends.proxy.connect("localhost", port, far=False)
    assert isinstance(upstream, ProxiedStream) is through
    ends.proxy._give_up(upstream)
    with pytest.raises(RefusedError, match="was not found"):  # (the gateway's word)
        await ends.proxy.connect("no.such.host.invalid", port, far=False)

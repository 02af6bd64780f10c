"""A client whose node lives but is not reached by it: another one carries its connections there."""

import asyncio
import os
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from kit.redis_server import RedisServer

from cedos.kernel import tcp_info
from cedos.proxy.gateway.nodes import node_door, node_flows, passed_connections
from cedos.proxy.gateway.nodes.node_flows import NodeFlows
from cedos.proxy.gateway.nodes.redis_target import RedisTarget
from cedos.proxy.splice import reset_on_close
from cedos.session.protocol.handshake.outcome import ConnectionKind
from cedos.session.protocol.handshake.resume import ResumeHandshake
from cedos.session.sockets import flow_table
from cedos.session.sockets.listener import open_listening
from cedos.session.sockets.shared_flows import HeardFlow
from tests.unit.proxy.gateway.test_two_nodes import Nodes, broken, hurried, until

pytestmark = pytest.mark.anyio
_opened: list[Any] = []


@pytest.fixture
def redis(tmp_path: Path) -> Iterator[RedisServer]:
    made = RedisServer(tmp_path)
    made.start()
    yield made
    made.close()


@pytest.fixture
def here() -> str:
    """The address of all nodes."""
    return "127.0.0.1"


@pytest.fixture
async def nodes(
    redis: RedisServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, here: str
) -> AsyncIterator[Nodes]:
    hurried(monkeypatch)
    made = Nodes(redis, tmp_path, (here, 0))
    await made.start()
    await made.origin()
    yield made
    for each in _opened:
        each.transport.abort()
    _opened.clear()
    await made.close()


async def said_through(reader: Any, writer: Any, words: bytes) -> None:
    writer.write(words)
    assert await asyncio.wait_for(reader.readexactly(len(words)), 10) == words


def hello(nodes: Nodes) -> bytes:
    """The next one that the client would say."""
    credentials = nodes.link._streams.connection.flow.credentials
    made = ResumeHandshake(nodes.client, credentials, ConnectionKind.JOIN, os.urandom)
    return made.hello


async def said(nodes: Nodes, number: int, words: bytes) -> tuple[Any, Any]:
    host, port = nodes.gateways[number].address
    reader, writer = await asyncio.open_connection(host, port)
    _opened.append(writer)
    writer.write(words)
    return reader, writer


@pytest.mark.parametrize("here", ["127.0.0.1", "::1"])
async def test_a_tunnel_goes_on_through_the_other_node(nodes: Nodes) -> None:
    reader, writer = await nodes.echoed()
    session = nodes.link._streams
    await nodes.quiet()
    nodes.dies(0)  # for the client; it lives, and the other node reaches it
    data = os.urandom(3_000_000)
    await said_through(reader, writer, data)
    assert nodes.link._streams is session
    assert session.connection.place == nodes.gateways[1].address
    assert nodes.gateways[1].sessions == 0
    assert nodes.gateways[0].sessions == 1
    assert nodes.stores[1].figures.passed_on == 1
    assert nodes.stores[0].figures.passed_in == 1
    assert nodes.gateways[1].figures().passed_on == 1
    await nodes.said()
    writer.close()


async def test_no_client_reaches_a_dead_node_through_another(nodes: Nodes) -> None:
    reader, writer = await nodes.echoed()
    await nodes.quiet()
    nodes.dies(0)
    await nodes.stores[0]._door.close()  # type: ignore[union-attr]
    await broken(reader, writer)
    await nodes.said()
    assert nodes.gateways[1].sessions == 1
    assert nodes.stores[1].figures.passed_on == 0


async def test_a_node_that_says_nothing_is_not_waited_for(nodes: Nodes) -> None:
    reader, writer = await nodes.echoed()
    await nodes.quiet()
    nodes.dies(0)
    door = nodes.stores[0]._door
    assert door is not None
    door._loop.remove_reader(door._socket.fileno())
    began_s = asyncio.get_running_loop().time()
    await broken(reader, writer)
    assert asyncio.get_running_loop().time() - began_s < 2.0
    await nodes.said()


async def test_an_idle_session_is_passed_on_as_long_as_its_node_has_it(nodes: Nodes) -> None:
    await nodes.said()
    session = nodes.link._streams
    await nodes.quiet()
    nodes.dies(0)
    await nodes.said()
    assert nodes.link._streams is session
    assert nodes.stores[0].figures.passed_in + nodes.stores[1].figures.taken == 1


async def test_who_went_on_elsewhere_is_found_there(nodes: Nodes) -> None:
    """The client has moved to the second node, and comes to a third one."""
    await nodes.said()
    await nodes.quiet()
    nodes.dies(0)
    await nodes.stores[0]._door.close()  # type: ignore[union-attr]
    await nodes.said()
    assert nodes.stores[1].figures.taken == 1
    reader, writer = await nodes.echoed()
    await nodes.begin(2, 0)
    await nodes.quiet()
    taker, pushes = await said(nodes, 2, hello(nodes))
    got = await asyncio.wait_for(taker.readexactly(4), 5)
    assert got[3] == 4, "a resumption is answered"
    assert nodes.stores[2].figures.passed_on == 1
    pushes.close()
    await said_through(reader, writer, b"still here")
    writer.close()


async def test_old_hellos_gain_nothing_and_are_bounded(nodes: Nodes) -> None:
    reader, writer = await nodes.echoed()
    await nodes.quiet()
    old = hello(nodes)
    first, used = await said(nodes, 0, old)
    assert (await asyncio.wait_for(first.readexactly(4), 5))[3] == 4
    used.close()
    all_ = [await said(nodes, 1, old) for _ in range(40)]
    answers = []
    for each, _ in all_:
        try:
            answers.append(await asyncio.wait_for(each.read(4), 5))
        except ConnectionResetError:
            answers.append(b"")
    assert {each[3:] for each in answers} == {b"", b"\x05"}, "stale, or closed without a word"
    assert nodes.gateways[1].figures().passed_on <= 8
    # Whoever has a new one still gets through.
    fresh, joins = await said(nodes, 1, hello(nodes))
    assert (await asyncio.wait_for(fresh.readexactly(4), 5))[3] == 4
    for _, each in (*all_, (None, joins)):
        each.close()
    await said_through(reader, writer, b"still here")
    writer.close()


async def test_who_comes_where_nobody_has_time_to_ask_loses_nothing(
    nodes: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader, writer = await nodes.echoed()
    await nodes.quiet()

    async def find(_flow_id: bytes) -> None:
        return None

    monkeypatch.setattr(nodes.stores[1], "find", find)
    got, says = await said(nodes, 1, hello(nodes))
    assert await asyncio.wait_for(got.read(), 5) == b"", "closed without a word"
    says.close()
    await said_through(reader, writer, b"still here")
    writer.close()


async def test_a_client_has_no_more_than_its_share(
    nodes: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(passed_connections, "MOST_OF_A_CLIENT", 3)
    reader, writer = await nodes.echoed()
    await nodes.quiet()
    all_ = []
    for _ in range(6):
        all_.append(await said(nodes, 1, hello(nodes)))
        await asyncio.wait_for(all_[-1][0].readexactly(4), 5)
    await until(lambda: nodes.gateways[1].figures().passed_on == 3)
    with pytest.raises(ConnectionResetError):
        await asyncio.wait_for(all_[0][0].read(), 5)
    monkeypatch.setattr(passed_connections, "MOST", 3)
    more, writes = await said(nodes, 1, hello(nodes))
    assert await asyncio.wait_for(more.read(), 5) == b""
    for _, each in (*all_, (None, writes)):
        each.close()
    await until(lambda: nodes.gateways[1].figures().passed_on == 0)
    assert nodes.stores[1]._passed._of_client == {}  # type: ignore[union-attr]
    await said_through(reader, writer, b"still here")
    writer.close()


async def test_what_is_passed_on_is_never_passed_on_again(
    nodes: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A second hello on the same connection, for a flow that lives elsewhere, is answered there."""
    _reader, writer = await nodes.echoed()
    await nodes.quiet()
    asked = []
    found = nodes.stores[0].find

    async def find(flow_id: bytes) -> Any:
        asked.append(flow_id)
        return await found(flow_id)

    monkeypatch.setattr(nodes.stores[0], "find", find)
    old = hello(nodes)
    first, used = await said(nodes, 0, old)
    await asyncio.wait_for(first.readexactly(4), 5)
    used.close()
    asked.clear()
    got, says = await said(nodes, 1, old)
    await asyncio.wait_for(got.read(1000), 5)
    assert nodes.stores[0].figures.passed_in == 1
    strange = bytearray(hello(nodes))
    strange[20] ^= 1  # another locator: any flow
    for _ in range(3):
        says.write(strange)
    await asyncio.sleep(0.3)
    assert asked == []
    says.close()
    writer.close()


async def test_resets_and_ends_are_passed_on(nodes: Nodes) -> None:
    _reader, writer = await nodes.echoed()
    await nodes.quiet()
    got, says = await said(nodes, 1, hello(nodes))
    await asyncio.wait_for(got.readexactly(4), 5)
    assert nodes.gateways[1].figures().passed_on == 1
    says.transport.abort()
    await until(lambda: nodes.gateways[1].figures().passed_on == 0)
    got, says = await said(nodes, 1, hello(nodes))
    await asyncio.wait_for(got.readexactly(4), 5)
    says.write(b"garbage that is no confirmation at all")
    with suppress(ConnectionResetError):
        await asyncio.wait_for(got.read(), 5)
    await until(lambda: nodes.gateways[1].figures().passed_on == 0)
    writer.close()


async def passed(nodes: Nodes) -> tuple[socket.socket, socket.socket]:
    """A connection that the second node passes on: the client's end, and what the first one got of it."""
    door: Any = nodes.stores[0]._door
    arrived: asyncio.Future[socket.socket] = asyncio.get_running_loop().create_future()
    take, door._take = door._take, lambda there, _address, _hello: arrived.set_result(there)
    here = socket.create_connection(nodes.gateways[1].address)
    here.setblocking(False)
    await asyncio.get_running_loop().sock_sendall(here, hello(nodes))
    there = await asyncio.wait_for(arrived, 5)
    door._take = take
    return here, there


async def heard(one: socket.socket) -> bytes:
    return await asyncio.wait_for(asyncio.get_running_loop().sock_recv(one, 1000), 5)


@pytest.mark.parametrize("by_client", [True, False])
async def test_a_reset_is_passed_on(nodes: Nodes, *, by_client: bool) -> None:
    _reader, writer = await nodes.echoed()
    await nodes.quiet()
    ends = await passed(nodes)
    breaks, sees = ends if by_client else ends[::-1]
    reset_on_close(breaks)
    breaks.close()
    with pytest.raises(ConnectionResetError):
        await heard(sees)
    await until(lambda: nodes.gateways[1].figures().passed_on == 0)
    sees.close()
    writer.close()


@pytest.mark.parametrize("by_client", [True, False])
async def test_an_end_is_passed_on_and_the_other_way_goes_on(
    nodes: Nodes, *, by_client: bool
) -> None:
    _reader, writer = await nodes.echoed()
    await nodes.quiet()
    ends = await passed(nodes)
    ending, sees = ends if by_client else ends[::-1]
    ending.send(b"the last word")
    ending.shutdown(socket.SHUT_WR)
    assert await heard(sees) == b"the last word"
    assert await heard(sees) == b""
    sees.send(b"an answer still")
    assert await heard(ending) == b"an answer still"
    assert nodes.gateways[1].figures().passed_on == 1
    sees.close()
    assert await heard(ending) == b""
    await until(lambda: nodes.gateways[1].figures().passed_on == 0)
    ending.close()
    writer.close()


async def test_strangers_at_the_port_for_nodes(
    nodes: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    door = nodes.stores[0]._door
    assert door is not None
    for words in (b"", b"GET / HTTP/1.1\r\n\r\n", bytes(400), b"\x00\x80" + os.urandom(128),
                  b"\xff\xff" + bytes(100)):  # fmt: skip
        with socket.create_connection(door.address) as one:
            one.setblocking(False)
            loop = asyncio.get_running_loop()
            challenge = await asyncio.wait_for(loop.sock_recv(one, 100), 5)
            assert len(challenge) == 17
            await loop.sock_sendall(one, words)
            one.shutdown(socket.SHUT_WR)
            with suppress(ConnectionResetError):
                assert await asyncio.wait_for(loop.sock_recv(one, 100), 5) == b""
    assert nodes.stores[0].figures.strangers == 5
    assert nodes.gateways[0].figures().node_strangers == 5
    monkeypatch.setattr(node_door, "MOST", 20)
    idle = [socket.create_connection(door.address) for _ in range(80)]
    await asyncio.sleep(0.2)
    assert len(door._asking) == 20
    # A node still gets through.
    _reader, writer = await nodes.echoed()
    await nodes.quiet()
    got, says = await said(nodes, 1, hello(nodes))
    assert (await asyncio.wait_for(got.readexactly(4), 5))[3] == 4
    for each in idle:
        each.close()
    says.close()
    writer.close()


async def test_the_limits_of_strangers_are_by_the_clients_address(nodes: Nodes) -> None:
    """At the node that has the session a client counts as where it is, not where it came by."""
    _reader, writer = await nodes.echoed()
    await nodes.quiet()
    seen = []
    listener: Any = nodes.gateways[0]._listener
    made = listener._acceptor.channel

    def channel(address: str, now: float, **options: Any) -> Any:
        seen.append((address, options))
        return made(address, now, **options)

    listener._acceptor.channel = channel
    source = socket.socket()
    source.bind(("127.0.0.9", 0))
    source.setblocking(False)
    loop = asyncio.get_running_loop()
    await loop.sock_connect(source, nodes.gateways[1].address)
    await loop.sock_sendall(source, hello(nodes))
    assert (await asyncio.wait_for(loop.sock_recv(source, 4), 5))[3] == 4
    assert seen == [("127.0.0.9", {"passed_on": True})]
    source.close()
    writer.close()


async def test_who_begins_anew_has_lost_nothing(nodes: Nodes, redis: RedisServer) -> None:
    """Its clients that come by another node meanwhile come again."""
    reader, writer = await nodes.echoed()
    session = nodes.link._streams
    await nodes.quiet()
    first = nodes.stores[0]
    door, place = first._door, first._place
    assert door is not None
    assert place is not None
    began: Any = door._heard, door._take
    other = NodeFlows(RedisTarget.parse(redis.target), nodes.me, ("127.0.0.1", 0))
    other._place = place  # as the process before it, which says that it ends
    await other.begins_anew()
    await other.close()
    await door.close()
    nodes.dies(0)
    await asyncio.sleep(1.5)
    assert nodes.link._streams is session
    door = first._door = node_door.NodeDoor(place, first._values, first.figures)
    door.begin(*began)
    await first._has_begun()
    await said_through(reader, writer, b"still here")
    assert nodes.link._streams is session
    assert not await nodes.stores[1]._begins_anew(place)
    writer.close()


async def moved(nodes: Nodes, monkeypatch: pytest.MonkeyPatch) -> tuple[Any, Any]:
    """A tunnel at the second node, where the client went; the first one is back, and has not noticed."""
    monkeypatch.setattr(node_flows, "_LOOKS_S", 30.0)
    await nodes.said()
    await nodes.quiet()
    address, door = nodes.gateways[0].address, nodes.stores[0]._door
    nodes.dies(0)
    assert door is not None
    heard, door._heard = door._heard, lambda _hello: HeardFlow(lives=False)
    reader, writer = await nodes.echoed()
    door._heard = heard
    assert nodes.stores[1].figures.taken == 1
    listener: Any = nodes.gateways[0]._listener
    listener._socket.close()
    listener._socket = open_listening(address)
    listener._socket.setblocking(False)
    listener._listen()
    return reader, writer


def seen(nodes: Nodes, number: int) -> list[int]:
    flows: Any = nodes.gateways[number]._listener._flows  # type: ignore[union-attr]
    return [each.flow.credentials.seen for each in flows._living.values()]


async def test_a_further_path_by_the_node_of_before_goes_to_where_the_client_is(
    nodes: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(flow_table, "_ASLEEP_S", 30)
    monkeypatch.setattr(nodes.stores[0], "write", lambda _record: None)
    reader, writer = await moved(nodes, monkeypatch)
    await nodes.quiet()
    assert nodes.gateways[0].sessions == 1, "it has not noticed"
    before = seen(nodes, 0)
    got, says = await said(nodes, 0, hello(nodes))
    assert (await asyncio.wait_for(got.readexactly(4), 5))[3] == 4
    assert nodes.stores[0].figures.passed_on == 1
    assert seen(nodes, 0) == before
    monkeypatch.setattr(node_flows, "_LOOKS_S", 0.2)
    says.close()
    await asyncio.sleep(0.5)
    assert nodes.stores[1].figures.given == 0
    await said_through(reader, writer, b"still here")
    writer.close()


@pytest.mark.parametrize("asleep_s", [0.3, 30])
async def test_without_redis_a_node_takes_no_further_path_of_whom_it_has_not(
    nodes: Nodes, redis: RedisServer, monkeypatch: pytest.MonkeyPatch, asleep_s: float
) -> None:
    """Whether what it had of the client sleeps there, or lives without a path."""
    monkeypatch.setattr(flow_table, "_ASLEEP_S", asleep_s)
    reader, writer = await moved(nodes, monkeypatch)
    redis.kill()
    await asyncio.sleep(1.0)
    await said_through(reader, writer, b"x")
    assert nodes.gateways[0].sessions == (asleep_s > 1)
    await nodes.stores[0].find(bytes(16))
    await until(lambda: nodes.stores[0].away)
    before = seen(nodes, 0)
    got, says = await said(nodes, 0, hello(nodes))
    assert await asyncio.wait_for(got.read(), 5) == b"", "closed without a word"
    says.close()
    assert seen(nodes, 0) == before
    # Where the client has a path it gets another one.
    got, says = await said(nodes, 1, hello(nodes))
    assert (await asyncio.wait_for(got.readexactly(4), 5))[3] == 4
    says.close()
    await said_through(reader, writer, b"still here")
    writer.close()


@pytest.mark.parametrize("late_s", [0.4, 0.7])
async def test_a_node_that_answers_late_loses_nobody_and_shares_nobody(
    nodes: Nodes, monkeypatch: pytest.MonkeyPatch, late_s: float
) -> None:
    """It has the question: who asked never uses the hello itself."""
    monkeypatch.setattr(flow_table, "_ASLEEP_S", 30)
    reader, writer = await nodes.echoed()
    await nodes.quiet()
    exact = node_door.read_exactly
    until_s = asyncio.get_running_loop().time() + 1.5

    async def slow(connection: socket.socket, count: int) -> bytes:
        got = await exact(connection, count)
        if count > 2 and asyncio.get_running_loop().time() < until_s:
            await asyncio.sleep(late_s)
        return got

    monkeypatch.setattr(node_door, "read_exactly", slow)
    nodes.dies(0)
    await said_through(reader, writer, b"still here")
    assert nodes.gateways[1].sessions == 0
    assert nodes.stores[1].figures.taken == 0
    assert nodes.stores[1].figures.passed_on >= 1
    writer.close()


async def test_a_node_that_is_far_away_answers_in_time(
    nodes: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """150 ms, as the kernel has seen it: its challenge and its answer each take that."""
    reader, writer = await nodes.echoed()
    await nodes.quiet()
    exact = node_door.read_exactly

    async def far(connection: socket.socket, count: int) -> bytes:
        got = await exact(connection, count)
        if count > 2:
            await asyncio.sleep(0.15)
        return got

    for module in (node_door, passed_connections):
        monkeypatch.setattr(module, "read_exactly", far)
    monkeypatch.setattr(passed_connections, "_round_trip_s", lambda _connection: 0.15)
    nodes.dies(0)
    await said_through(reader, writer, b"still here")
    assert nodes.stores[1].figures.passed_on == 1
    assert nodes.gateways[1].sessions == 0
    writer.close()


async def test_no_node_is_so_far_that_it_holds_a_question_for_long(nodes: Nodes) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        place = silent.getsockname()[:2]
        passed, ends = nodes.stores[1]._passed, socket.socketpair()
        assert passed is not None
        began_s = asyncio.get_running_loop().time()
        for each in ends:
            each.setblocking(False)
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(tcp_info, "tcp_info", lambda _one: SimpleNamespace(rtt_s=5.0))
            await passed.pass_on(place, ends[0], "127.0.0.1", b"hello")
        assert 0.8 < asyncio.get_running_loop().time() - began_s < 1.2
        for each in ends:
            each.close()


async def test_a_node_that_is_silent_for_a_moment_keeps_its_clients(nodes: Nodes) -> None:
    reader, writer = await nodes.echoed()
    session = nodes.link._streams
    await nodes.quiet()
    nodes.dies(0)
    door = nodes.stores[0]._door
    assert door is not None
    door._loop.remove_reader(door._socket.fileno())
    asyncio.get_running_loop().call_later(0.5, door._listen)
    await said_through(reader, writer, b"still here")
    assert nodes.link._streams is session
    assert nodes.stores[1].figures.passed_on == 1
    writer.close()


async def test_how_long_nodes_were_silent_is_bounded(nodes: Nodes) -> None:
    passed = nodes.stores[1]._passed
    assert passed is not None
    now_s = asyncio.get_running_loop().time()
    for port in range(200):
        assert passed._may_speak(("127.0.0.1", port), now_s)
    assert len(passed._silent) == 64
    place = ("127.0.0.1", 199)
    assert not passed._may_speak(("127.0.0.2", 1), now_s - 1.1)
    passed._silent[place] = now_s - 30.0, now_s - 20.0
    assert passed._may_speak(place, now_s), "that was another time"


async def test_the_mark_of_who_begins_anew_counts_from_its_end(
    nodes: Nodes, redis: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(node_flows, "_ANEW_S", 0.5)
    place = ("127.0.0.1", 7)
    other = NodeFlows(RedisTarget.parse(redis.target), nodes.me, place)
    await other.begins_anew()
    assert await nodes.stores[1]._begins_anew(place)
    await asyncio.sleep(0.7)  # it packs
    assert not await nodes.stores[1]._begins_anew(place)
    await other.close()
    assert await nodes.stores[1]._begins_anew(place)


async def test_a_mark_that_somebody_keeps_in_redis_is_not_believed_for_long(
    nodes: Nodes, redis: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = ("127.0.0.1", 7)
    other = NodeFlows(RedisTarget.parse(redis.target), nodes.me, place)
    await other.begins_anew()
    monkeypatch.setattr(node_flows, "_ANEW_S", 0.3)
    looks = nodes.stores[1]
    assert await looks._begins_anew(place)
    await asyncio.sleep(0.4)  # (in Redis it is for five seconds)
    assert not await looks._begins_anew(place)
    monkeypatch.setattr(node_flows, "_MOST_MARKS", 3)
    for _ in range(10):
        await other.begins_anew()
        assert await looks._begins_anew(place)
    assert len(looks._marks_s) <= 4
    await other.close()

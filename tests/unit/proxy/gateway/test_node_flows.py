"""What nodes write to Redis: bounded, sealed, of one version, and gone when it is over."""

import asyncio
import os
import socket
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import redis.asyncio
from hypothesis import given
from hypothesis import strategies as st
from kit.redis_server import RedisServer
from redis.asyncio.client import Pipeline

from cedos.errors import ConfigError
from cedos.proxy.gateway.nodes import node_flows
from cedos.proxy.gateway.nodes.node_flows import NodeFlows
from cedos.proxy.gateway.nodes.redis_link import RedisLink, StoreAwayError
from cedos.proxy.gateway.nodes.redis_target import RedisTarget, read_password
from cedos.proxy.gateway.nodes.sealed_values import ADDED_BYTES, SealedValues
from cedos.session.io.idle_sessions import RECORD_BYTES, STATE_BYTES
from cedos.session.protocol.crypto import KeyPair, Suite
from cedos.session.protocol.handshake.credentials import Credentials
from cedos.session.protocol.packed import IdleRecord
from cedos.session.sockets.shared_flows import FlowsHere

ME = KeyPair(bytes(range(32)))
LAPTOP = KeyPair(bytes(range(1, 33))).public


def credentials(number: int = 1, *, seen: int = 1, peer: bytes = LAPTOP) -> Credentials:
    flow_id = number.to_bytes(16, "big")
    return Credentials(flow_id, os.urandom(32), peer, Suite.AES_128_GCM, seen=seen)


def record(of: Credentials, keep_alive_s: int = 3600, unix_s: float | None = None) -> bytes:
    idle = IdleRecord.at_the_beginning(keep_alive_s, time.time() if unix_s is None else unix_s)
    return of.to_bytes() + idle.to_bytes() + bytes(STATE_BYTES)


class Store:
    """A node's, with what it was told; `raw` is Redis itself."""

    def __init__(self, server: RedisServer, me: KeyPair = ME) -> None:
        self.flows = NodeFlows(RedisTarget.parse(server.target), me)
        self.living: list[Credentials] = []
        self.written: list[bytes] = []
        self.expired: set[bytes] = set()
        self.renewed: list[bytes] = []
        self.taken: list[bytes] = []

    async def begin(self) -> None:
        await self.flows.open()
        here = FlowsHere(
            lambda: self.living,
            lambda: iter(self.written),
            lambda flow_id: flow_id not in self.expired,
            self.renewed.append,
            self.taken.append,
        )
        self.flows.begin(here)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RedisServer]:
    made = RedisServer(tmp_path)
    made.start()
    yield made
    made.close()


@pytest.fixture
async def make(
    server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Callable[..., Any]]:
    monkeypatch.setattr(node_flows, "_SOON_S", 0.01)
    monkeypatch.setattr(node_flows, "_LOOKS_S", 0.1)
    all_: list[Store] = []

    async def one(me: KeyPair = ME) -> Store:
        all_.append(Store(server, me))
        await all_[-1].begin()
        return all_[-1]

    yield one
    for each in all_:
        await each.flows.close()


@pytest.fixture
async def raw(server: RedisServer) -> AsyncIterator[Any]:
    client = redis.asyncio.Redis(unix_socket_path=str(server.path))
    yield client
    await client.aclose()


async def until(true: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not true():
            await asyncio.sleep(0.01)


async def flow_names(raw: Any) -> list[str]:
    return [each.decode() for each in await raw.keys("*:flow:*")]


@pytest.mark.anyio
async def test_what_one_node_writes_another_one_finds(make: Any, raw: Any) -> None:
    one, other = await make(), await make()
    written = record(credentials())
    one.flows.write(written)
    await until(lambda: one.flows.figures.written == 1)
    assert (await other.flows.find(written[:16])).record == written
    assert (await other.flows.find(bytes(16))).record is None
    (name,) = await flow_names(raw)
    value = await raw.hget(name, "v")
    assert len(value) == RECORD_BYTES + ADDED_BYTES
    for secret in (written[:16], written[16:48], LAPTOP):
        assert secret not in value
        assert secret.hex() not in name
    assert 3590_000 < await raw.pttl(name) <= 3600_000
    one.flows.forget(credentials())
    await asyncio.sleep(0.2)
    assert await flow_names(raw) == []


@pytest.mark.anyio
async def test_it_expires_when_its_session_does(make: Any, raw: Any) -> None:
    one = await make()
    one.flows.write(record(credentials(1), keep_alive_s=2))
    one.flows.write(record(credentials(2), keep_alive_s=10, unix_s=time.time() - 11))
    one.flows.write(record(credentials(3), keep_alive_s=1 << 31))
    await until(lambda: one.flows.figures.written == 2)
    assert (await one.flows.find((2).to_bytes(16, "big"))).record is None
    lives = [await raw.pttl(name) for name in await flow_names(raw)]
    assert all(0 < each <= 31 * 86_400_000 for each in lives)
    await asyncio.sleep(2.1)
    assert len(await flow_names(raw)) == 1


@pytest.mark.anyio
async def test_who_has_seen_more_attempts_has_it(make: Any) -> None:
    one, other = await make(), await make()
    first, second = credentials(seen=5), credentials(seen=6)
    one.living = [first]
    one.flows.write(record(first))
    await until(lambda: one.flows.figures.written == 1)
    other.flows.came(record(second))
    await until(lambda: first.flow_id in one.taken)
    one.living = []
    one.taken.clear()
    one.flows.write(record(first))
    await until(lambda: first.flow_id in one.taken)
    found = (await one.flows.find(first.flow_id)).record
    assert found is not None
    assert Credentials.from_bytes(found[:123]).seen == 6
    one.flows.forget(first)  # it is not its any more
    await asyncio.sleep(0.2)
    assert (await other.flows.find(first.flow_id)).record == found
    assert other.taken == []


@pytest.mark.anyio
async def test_no_client_and_no_node_has_more_than_its_share(
    make: Any, raw: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(node_flows, "MOST", 5)
    monkeypatch.setattr(node_flows, "MOST_OF_A_CLIENT", 3)
    one = await make()
    for number in range(1, 9):
        one.flows.write(record(credentials(number)))
    for number in range(11, 19):
        one.flows.write(record(credentials(number, peer=bytes(31) + bytes([number]))))
    await until(lambda: one.flows.figures.written == 5)
    await asyncio.sleep(0.1)
    assert len(await flow_names(raw)) == 5
    assert one.flows.figures.kept_back == 11
    one.flows.forget(credentials(1))
    one.flows.write(record(credentials(8)))
    await until(lambda: one.flows.figures.written == 6)


@pytest.mark.anyio
async def test_what_has_expired_counts_no_more(make: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node_flows, "MOST_OF_A_CLIENT", 1)
    one = await make()
    one.flows.write(record(credentials(1)))
    one.flows.write(record(credentials(2)))
    assert one.flows.figures.kept_back == 1
    one.expired.add((1).to_bytes(16, "big"))
    await asyncio.sleep(0.5)
    one.flows.write(record(credentials(2)))
    await until(lambda: one.flows.figures.written == 2)


@pytest.mark.anyio
async def test_one_that_lives_counts_though_it_is_not_written_down(make: Any, raw: Any) -> None:
    """The disk is full; another node has it in the end."""
    one, other = await make(), await make()
    mine = credentials(seen=1)
    one.living = [mine]
    one.expired.add(mine.flow_id)
    one.flows.write(record(mine))
    await until(lambda: one.flows.figures.written == 1)
    await asyncio.sleep(0.5)
    other.flows.came(record(credentials(seen=2)))
    await until(lambda: mine.flow_id in one.taken)
    one.living = []
    await until(lambda: one.flows._client_of == {})


@pytest.mark.anyio
async def test_many_questions_at_once_wait_for_their_turn(make: Any) -> None:
    """Strangers may repeat old hellos: a Redis that answers does not seem away by that."""
    one = await make()
    written = record(credentials())
    one.flows.write(written)
    await until(lambda: one.flows.figures.written == 1)
    found = await asyncio.gather(*(one.flows.find(written[:16]) for _ in range(100)))
    assert {each.record for each in found} == {written}
    assert one.flows.answers


@pytest.mark.anyio
@pytest.mark.parametrize("connected", [True, False])
async def test_a_question_to_redis_that_is_cancelled_ends(
    server: RedisServer, *, connected: bool
) -> None:
    """At whatever moment: its task would go on, and its node would never end."""
    for steps in range(40):
        link = RedisLink(RedisTarget.parse(server.target), lambda: None)
        if connected:
            await link.begin()
        asking = asyncio.create_task(link.run("return 1", [("key", ())]))
        for _ in range(steps):
            await asyncio.sleep(0)
        if asking.cancel():
            with pytest.raises(asyncio.CancelledError):
                await asking
        await link.close()


@pytest.mark.anyio
async def test_a_turn_ends_whatever_redis_does(
    server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`wait_for` may lose that it was cancelled; the answers would be read for as long as some come."""
    link = RedisLink(RedisTarget.parse(server.target), lambda: None)
    await link.begin()

    async def deaf(*_words: object, **_options: object) -> list[Any]:
        for _ in range(20):
            with suppress(asyncio.CancelledError):
                await asyncio.sleep(0.3)
        return []

    loop = asyncio.get_running_loop()
    with monkeypatch.context() as patched:
        patched.setattr(Pipeline, "execute", deaf)
        asked = [link.run("return 1", [("key", ())]) for _ in range(8)]
        began_s = loop.time()
        answers = await asyncio.gather(*asked, return_exceptions=True)
        assert {type(each) for each in answers} == {StoreAwayError}
        assert loop.time() - began_s < 1.5
    await until(lambda: not link.away)
    assert await link.run("return 1", [("key", ())]) == [1]
    await link.close()


@pytest.mark.anyio
async def test_nobody_waits_long_for_a_turn(make: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A Redis that is slow, and many who ask: some come again, none hears that nothing is known."""
    one = await make()
    written = record(credentials())
    one.flows.write(written)
    await until(lambda: one.flows.figures.written == 1)
    execute = Pipeline.execute

    async def slow(pipeline: Any, *words: Any, **options: Any) -> Any:
        await asyncio.sleep(0.15)
        return await execute(pipeline, *words, **options)

    monkeypatch.setattr(Pipeline, "execute", slow)
    loop = asyncio.get_running_loop()
    began_s = loop.time()
    found = await asyncio.gather(*(one.flows.find(written[:16]) for _ in range(100)))
    assert loop.time() - began_s < 1.6
    assert 4 <= sum(each is not None and each.record == written for each in found) <= 32
    assert sum(each is None for each in found) >= 68
    assert one.flows.answers


@pytest.mark.anyio
async def test_what_is_being_written_when_a_node_ends_is_written(
    make: Any, raw: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    execute, begun = Pipeline.execute, asyncio.Event()

    async def slow(pipeline: Any, *words: Any, **options: Any) -> Any:
        if any(node_flows._WRITE in words for words, _ in pipeline.command_stack):
            begun.set()
            await asyncio.sleep(0.2)
        return await execute(pipeline, *words, **options)

    one = await make()
    monkeypatch.setattr(Pipeline, "execute", slow)
    one.flows.write(record(credentials(1)))
    await begun.wait()
    one.flows.write(record(credentials(2)))
    await one.flows.close()
    assert len(await flow_names(raw)) == 2


@pytest.mark.anyio
async def test_a_node_ends_whatever_redis_does(
    make: Any, raw: Any, server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is left of many is written for a second at most."""
    execute = Pipeline.execute

    async def slow(pipeline: Any, *words: Any, **options: Any) -> Any:
        await asyncio.sleep(0.2)
        return await execute(pipeline, *words, **options)

    one, other = await make(), await make()
    monkeypatch.setattr(Pipeline, "execute", slow)
    for number in range(1, 4_001):
        one.flows.write(record(credentials(number, peer=(number // 100).to_bytes(32, "big"))))
    loop = asyncio.get_running_loop()
    began_s = loop.time()
    await one.flows.close()
    assert loop.time() - began_s < 2.0
    assert 0 < len(await flow_names(raw)) < 4_000
    other.flows.write(record(credentials(1)))
    server.stop_for_a_while()
    began_s = loop.time()
    await other.flows.close()
    assert loop.time() - began_s < 2.5


@pytest.mark.anyio
async def test_a_redis_that_is_far_away_is_asked_in_one_round_trip(
    server: RedisServer, tmp_path: Path
) -> None:
    """150 ms: to begin takes longer than a question may, so that is done before."""
    copies: set[asyncio.Task[None]] = set()

    async def copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65_536):
            await asyncio.sleep(0.075)
            writer.write(data)
        writer.close()

    async def carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, to = await asyncio.open_unix_connection(server.path)
        for ends in ((reader, to), (there, writer)):
            copies.add(asyncio.create_task(copy(*ends)))

    far = tmp_path / "far.sock"
    way = await asyncio.start_unix_server(carry, far)
    store = NodeFlows(RedisTarget.parse(f"unix://{far}?db=1"), ME)
    await store.open()
    assert store.answers
    written = record(credentials())
    store.write(written)
    store.begin(FlowsHere(list, lambda: iter(()), lambda _id: True, _nothing, _nothing))
    await until(lambda: store.figures.written == 1)
    found = await asyncio.gather(*(store.find(written[:16]) for _ in range(4)))
    assert [each is not None and each.record == written for each in found] == [True] * 4
    assert store.answers
    await store.close()
    way.close()
    await asyncio.wait(copies, timeout=5)


def _nothing(_flow_id: bytes) -> None:
    pass


def bad_values(good: bytes) -> list[bytes]:
    return [
        b"",
        b"x",
        good[:-1],
        good + b"x",
        bytes([2]) + good[1:],
        good[:5] + bytes([good[5] ^ 1]) + good[6:],
        good[:-1] + bytes([good[-1] ^ 1]),
        os.urandom(len(good)),
        bytes(1 << 20),
    ]


@pytest.mark.anyio
async def test_what_no_node_wrote_is_refused_and_written_over(make: Any, raw: Any) -> None:
    one = await make()
    written = record(credentials())
    one.flows.write(written)
    await until(lambda: one.flows.figures.written == 1)
    (name,) = await flow_names(raw)
    good = await raw.hget(name, "v")
    for bad in bad_values(good):
        await raw.hset(name, "v", bad)
        assert (await one.flows.find(written[:16])).record is None
    assert one.flows.figures.refused == len(bad_values(good))
    # Another gateway's, another flow's.
    other = await make(KeyPair(os.urandom(32)))
    other.flows.write(written)
    one.flows.write(record(credentials(2)))
    await until(lambda: other.flows.figures.written == 1 and one.flows.figures.written == 2)
    for each in await flow_names(raw):
        if each != name:
            await raw.hset(name, "v", await raw.hget(each, "v"))
            assert (await one.flows.find(written[:16])).record is None
    # A count that would shut everybody out, and what is no hash.
    one.living = [credentials()]
    await raw.hset(name, mapping={"s": 1 << 50, "v": b"garbage"})
    await until(lambda: one.renewed != [])
    one.flows.write(written)
    await until(lambda: one.flows.figures.written == 3)
    assert (await one.flows.find(written[:16])).record == written
    for nonsense in ("x" * 100, "-1", ""):
        await raw.hset(name, "s", nonsense)
        one.flows.write(written)
        await asyncio.sleep(0.1)
        assert (await one.flows.find(written[:16])).record == written
    await raw.set(name, b"no hash")
    assert (await one.flows.find(written[:16])).record is None
    one.flows.write(written)
    await asyncio.sleep(0.2)
    assert (await one.flows.find(written[:16])).record == written
    assert one.taken == []
    assert one.flows.answers


@pytest.mark.anyio
@pytest.mark.parametrize("away", [True, False], ids=["lost", "refused"])
async def test_what_redis_did_not_delete_is_deleted_later(
    make: Any, raw: Any, monkeypatch: pytest.MonkeyPatch, *, away: bool
) -> None:
    monkeypatch.setattr(node_flows, "_MOST_UNDONE", 3)
    one = await make()
    for number in range(1, 6):
        one.flows.write(record(credentials(number)))
    await until(lambda: one.flows.figures.written == 5)

    async def breaks(_pipeline: Any, **_options: Any) -> Any:
        raise redis.exceptions.ConnectionError

    breaking = pytest.MonkeyPatch()
    if away:
        breaking.setattr(Pipeline, "execute", breaks)
    else:
        await raw.config_set("min-replicas-to-write", 1)
    for number in range(1, 5):
        one.flows.forget(credentials(number))
    if away:
        await until(lambda: one.flows.away)
        one.flows.forget(credentials(5))
        breaking.undo()
        await until(lambda: not one.flows.away)
    else:
        await asyncio.sleep(0.5)
        one.flows.forget(credentials(5))
        await asyncio.sleep(0.5)
        assert one.flows.answers
        assert len(await flow_names(raw)) == 5
        await raw.config_set("min-replicas-to-write", 0)
    async with asyncio.timeout(5):
        while len(await flow_names(raw)) > 2:
            await asyncio.sleep(0.02)
    await asyncio.sleep(0.3)
    assert len(await flow_names(raw)) == 2, "no more than so many are remembered"
    assert one.flows._not_dropped == {}


@pytest.mark.anyio
async def test_what_is_deleted_late_is_not_what_another_node_wrote(make: Any, raw: Any) -> None:
    one, other = await make(), await make()
    one.flows.write(record(credentials(seen=1)))
    await until(lambda: one.flows.figures.written == 1)
    await raw.config_set("min-replicas-to-write", 1)
    one.flows.forget(credentials(seen=1))
    await until(lambda: one.flows._not_dropped != {})
    await raw.config_set("min-replicas-to-write", 0)
    newer = record(credentials(seen=2))
    other.flows.came(newer)
    await asyncio.sleep(0.5)
    assert one.flows._not_dropped == one.flows._to_drop == {}
    assert (await one.flows.find(newer[:16])).record == newer


async def put(raw: Any, name: str, kind: str) -> None:
    await raw.delete(name)
    if kind == "string":
        await raw.set(name, b"nonsense")
    elif kind == "list":
        await raw.rpush(name, b"nonsense")
    else:
        await raw.zadd(name, {b"nonsense": 1.0})


@pytest.mark.anyio
@pytest.mark.parametrize("kind", ["string", "list", "zset"])
async def test_a_key_of_another_kind_is_written_over(
    make: Any, raw: Any, server: RedisServer, kind: str
) -> None:
    one, other = await make(), await make()
    mine = credentials(seen=2)
    written = record(mine)
    one.flows.write(written)
    await until(lambda: one.flows.figures.written == 1)
    (name,) = await flow_names(raw)
    await put(raw, name, kind)
    one.flows.write(written)
    await until(lambda: one.flows.figures.written == 2)
    assert (await one.flows.find(written[:16])).record == written
    assert 0 < await raw.pttl(name) <= 3600_000
    # Who has seen fewer attempts is refused again.
    other.flows.write(record(credentials(seen=1)))
    await until(lambda: other.taken == [mine.flow_id])
    assert (await one.flows.find(written[:16])).record == written
    # One that lives is written again by itself.
    one.living = [mine]
    await asyncio.sleep(0.3)
    one.renewed.clear()
    await put(raw, name, kind)
    await until(lambda: one.renewed != [])
    one.living = []
    one.flows.forget(mine)
    await until(lambda: one.flows._to_drop == {})
    await asyncio.sleep(0.1)
    assert await flow_names(raw) == []


@pytest.mark.anyio
async def test_a_mark_of_another_kind_is_no_mark(make: Any, raw: Any) -> None:
    one = await make()
    one.written = [record(credentials())]
    await until(lambda: one.flows.figures.written >= 1)
    (name,) = await raw.keys("*mark*")
    await raw.delete(name)
    await raw.rpush(name, b"nonsense")
    before = one.flows.figures.written
    await until(lambda: one.flows.figures.written > before)
    assert await raw.type(name) == b"string"


@pytest.mark.anyio
async def test_a_redis_that_was_emptied_gets_everything_again(make: Any, raw: Any) -> None:
    one = await make()
    one.written = [record(credentials(number)) for number in range(1, 4)]
    for each in one.written:
        one.flows.write(each)
    await until(lambda: one.flows.figures.written >= 3)
    await asyncio.sleep(0.2)
    await raw.flushall()
    before = one.flows.figures.written
    await until(lambda: one.flows.figures.written >= before + 3)
    assert len(await flow_names(raw)) == 3


@pytest.mark.anyio
async def test_a_replica_that_was_promoted_gets_everything_again(
    server: RedisServer, tmp_path: Path, make: Any, raw: Any
) -> None:
    """It has the mark, and not what was written last: that was on its way when the other one died."""
    (tmp_path / "replica").mkdir()
    replica = RedisServer(tmp_path / "replica")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = int(free.getsockname()[1])
    await raw.config_set("port", port)
    replica.start("--replicaof", "127.0.0.1", str(port))
    promoted = redis.asyncio.Redis(unix_socket_path=str(replica.path))
    try:
        one = await make()
        first, last = record(credentials(1)), record(credentials(2))
        one.flows.write(first)
        async with asyncio.timeout(20):
            while len(await promoted.keys("*")) < 2:  # the mark is one of them
                await asyncio.sleep(0.05)
        await promoted.replicaof("NO", "ONE")
        one.flows.write(last)
        await until(lambda: one.flows.figures.written == 2)
        one.written = [first, last]
        assert len(await flow_names(promoted)) == 1
        # Its address is the other one's from now on, and nobody sees the change.
        server.path.unlink()
        replica.path.rename(server.path)
        await one.flows._link._client.connection_pool.disconnect()
        await until(lambda: one.flows.figures.written == 4)
        found = await one.flows.find(last[:16])
        assert found is not None
        assert found.record == last
        assert one.flows.answers
        await asyncio.sleep(0.3)
        assert one.flows.figures.written == 4, "once"
    finally:
        await promoted.aclose()
        replica.close()


@pytest.mark.anyio
async def test_an_old_record_of_who_lives_is_written_over(make: Any) -> None:
    """A write that Redis took and lost again: the one before stands there."""
    one = await make()
    one.flows.write(record(credentials(seen=2)))
    await until(lambda: one.flows.figures.written == 1)
    one.living = [credentials(seen=2)]
    await asyncio.sleep(0.3)
    assert one.renewed == []
    one.living = [credentials(seen=3)]
    await until(lambda: one.renewed != [])
    assert one.taken == []


@pytest.mark.anyio
async def test_a_redis_that_does_not_tell_which_one_it_is_is_used(make: Any, raw: Any) -> None:
    await raw.execute_command("ACL SETUSER default -info")
    one = await make()
    one.written = [record(credentials())]
    one.flows.write(one.written[0])
    await until(lambda: one.flows.figures.written >= 1)
    await asyncio.sleep(0.3)
    await raw.flushall()
    before = one.flows.figures.written
    await until(lambda: one.flows.figures.written > before)


@pytest.mark.anyio
@pytest.mark.parametrize("asked", [b"PING", b"EVAL"])
@pytest.mark.parametrize("words", [b":x\r\n", b"$-5\r\n", b"-ASK x\r\n", b"*1\r\n" * 5_000])
async def test_who_answers_nonsense_is_a_redis_that_is_away(
    make: Any, server: RedisServer, asked: bytes, words: bytes
) -> None:
    strangers: list[asyncio.StreamWriter] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        strangers.append(writer)
        while data := await reader.read(65_536):
            hellos, others = data.count(b"HELLO"), data.count(b"SETINFO") + data.count(b"PING")
            writer.write(b"%1\r\n+proto\r\n:3\r\n" * hellos)
            writer.write(words if asked in data else b"+OK\r\n" * others)
        writer.close()

    server.kill()
    server.path.unlink()
    strange = await asyncio.start_unix_server(serve, server.path)
    one = await make()
    one.written = [record(credentials())]
    one.flows.write(one.written[0])
    await until(lambda: one.flows.away)
    assert (await one.flows.find(one.written[0][:16])).record is None
    await asyncio.sleep(1.2)  # it is asked once more
    strange.close()
    for each in strangers:
        each.close()
    server.start()
    await until(lambda: one.flows.figures.written == 1)
    assert (await one.flows.find(one.written[0][:16])).record == one.written[0]


@pytest.mark.anyio
async def test_a_full_redis_is_told_of_and_waited_for(
    make: Any, raw: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(node_flows, "_AGAIN_S", 0.2)
    one = await make()
    first, second = record(credentials(1)), record(credentials(2))
    one.flows.write(first)
    await until(lambda: one.flows.figures.written == 1)
    await raw.config_set("maxmemory", 1)
    one.flows.write(second)
    one.written = [first, second]
    await asyncio.sleep(0.6)
    assert one.flows.answers
    assert one.flows.figures.written == 1
    await raw.config_set("maxmemory", 0)
    await until(lambda: one.flows.figures.written == 3)
    assert (await one.flows.find(first[:16])).record == first
    assert (await one.flows.find(second[:16])).record == second
    await asyncio.sleep(0.6)
    assert one.flows.figures.written == 3, "once"


@pytest.mark.anyio
async def test_what_redis_never_takes_has_all_written_again_now_and_then(
    make: Any, raw: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(node_flows, "_AGAIN_S", 0.5)
    one = await make()
    written = record(credentials())
    one.flows.write(written)
    await until(lambda: one.flows.figures.written == 1)
    all_but_it = one.flows._values.name("flow", (2).to_bytes(16, "big")), "*:mark:*"
    await raw.execute_command("ACL SETUSER default resetkeys", *(f"~{each}" for each in all_but_it))
    one.written = [record(credentials(2)), written]
    one.flows.write(written)
    await asyncio.sleep(1.5)
    before = one.flows.figures.written
    assert 2 <= before <= 4
    await raw.execute_command("ACL SETUSER default allkeys")
    await until(lambda: one.flows.figures.written == before + 2)
    assert (await one.flows.find(written[:16])).record == written


@given(st.binary(max_size=400), st.binary(max_size=64), st.binary(min_size=12, max_size=12))
def test_a_value_is_what_was_sealed_under_its_name(plain: bytes, what: bytes, nonce: bytes) -> None:
    values = SealedValues(ME, lambda _count: nonce)
    name = values.name("flow", what)
    sealed = values.seal(name, plain)
    assert values.open(name, sealed) == plain
    assert name != values.name("mark", what)
    for other in (values.name("flow", what + b"x"), values.name("mark", what)):
        with pytest.raises(ValueError, match="altered"):
            values.open(other, sealed)
    with pytest.raises(ValueError, match="another gateway"):
        SealedValues(KeyPair(bytes(32)), os.urandom).open(name, sealed)


@given(st.binary(max_size=400))
def test_no_other_bytes_are_a_value(data: bytes) -> None:
    values = SealedValues(ME, os.urandom)
    with pytest.raises(ValueError, match=r"short|version|altered"):
        values.open(values.name("flow", b"1"), data)


@given(st.integers(0, 8 * (RECORD_BYTES + ADDED_BYTES) - 1))
def test_no_bit_of_a_value_can_be_changed(bit: int) -> None:
    values = SealedValues(ME, os.urandom)
    name = values.name("flow", b"1")
    sealed = bytearray(values.seal(name, bytes(RECORD_BYTES)))
    sealed[bit // 8] ^= 1 << bit % 8
    with pytest.raises(ValueError, match=r"version|altered"):
        values.open(name, bytes(sealed))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("unix:///run/redis/redis.sock", RedisTarget("/run/redis/redis.sock", "", 6379, 0)),
        ("unix:///run/r%20.sock?db=3", RedisTarget("/run/r .sock", "", 6379, 3)),
        ("redis://10.0.0.7", RedisTarget("", "10.0.0.7", 6379, 0)),
        ("redis://[::1]:7000/2", RedisTarget("", "::1", 7000, 2)),
        ("rediss://redis.test/1", RedisTarget("", "redis.test", 6379, 1, tls=True)),
        ("redis://:a%40b@redis.test:7000/2", RedisTarget("", "redis.test", 7000, 2, "a@b")),
    ],
)
def test_where_a_redis_is(text: str, expected: RedisTarget) -> None:
    assert RedisTarget.parse(text) == expected
    assert "a@b" not in repr(expected)


@pytest.mark.parametrize(
    "text",
    ["", "redis://", "rediss://", "rediss://a?db=1",
     "unix://run/x", "unix:///x?a=1", "http://a", "redis://a:x", "redis://a/b",
     "redis://a:1/-1", "redis://user:secret@a", "redis://a?db=1", "redis://:secret@a:99999"],
)  # fmt: skip
def test_where_none_is(text: str) -> None:
    with pytest.raises(ValueError, match="would be right") as raised:
        RedisTarget.parse(text)
    assert "secret" not in str(raised.value)


def test_a_password_is_in_a_file_or_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CEDOS_REDIS_PASSWORD", raising=False)
    assert read_password(None) is None
    monkeypatch.setenv("CEDOS_REDIS_PASSWORD", "word")
    assert read_password(None) == "word"
    file = tmp_path / "password"
    with pytest.raises(ConfigError, match="No such file"):
        read_password(file)
    file.write_text("secret\n")
    file.chmod(0o640)
    assert read_password(file) == "secret"
    file.chmod(0o644)
    with pytest.raises(ConfigError, match="chmod o="):
        read_password(file)
    file.chmod(0o600)
    file.write_text("\n")
    with pytest.raises(ConfigError, match="no password"):
        read_password(file)

"""A session sleeps, and its record counts, only while its application is between two requests."""

import asyncio
import hashlib
import os
import shutil
from contextlib import asynccontextmanager, suppress

import pytest
from kit.waiting import until

from cedos import session
from cedos.apps.files import serving
from cedos.apps.files.messages import (
    Answer,
    FileRequest,
    PutAnswer,
    PutRequest,
    pack,
    read,
)
from cedos.apps.files.objects.object_serving import ObjectServing
from cedos.apps.files.serving import Serving, Uploads
from cedos.apps.files.tree import Tree
from cedos.errors import SessionError
from cedos.proxy.gateway.gateway import Gateway, GatewaySettings
from cedos.session.io.idle_sessions import IdleSessions
from cedos.session.protocol.crypto import KeyPair
from cedos.session.sockets import flow_table

BODY = os.urandom(400_000)


@pytest.fixture(autouse=True)
def soon(monkeypatch):
    monkeypatch.setattr(flow_table, "_NOTE_S", 0.1)
    monkeypatch.setattr(flow_table, "_ASLEEP_S", 0.3)


class Sleepers:
    """A server whose sessions sleep in `idle`; `away` breaks their paths for a while."""

    def __init__(self, idle, key, listener):
        self.idle, self.key, self.listener, self.client = (
            idle,
            key,
            listener,
            KeyPair(os.urandom(32)),
        )

    @property
    def living(self):
        return list(self.listener._flows._living.values())

    async def connect(self):
        return await session.connect(
            self.listener.address, server_key=self.key.public, key=self.client, timeout_s=5
        )

    async def away(self, seconds=1.0):
        self.listener._driver.loop.remove_reader(self.listener._socket.fileno())
        for connection in self.living:
            for path in list(connection.flow.paths.values()):
                path.close("it went away", reset=True)
        await asyncio.sleep(seconds)

    def back(self):
        self.listener._listen()

    def known_after_a_kill(self, flow_id):
        """Return whether a server that began now, with the file as it is, would know the session."""
        copy = self.idle.with_name("copy")
        shutil.copy(self.idle, copy)
        found = IdleSessions(copy)
        try:
            return found.find(flow_id) is not None
        finally:
            found.close()


@asynccontextmanager
async def serving_files(folder):
    key, idle = KeyPair(os.urandom(32)), folder / "idle"
    root = folder / "tree"
    root.mkdir()
    tree = Tree(root)
    async with await session.listen(("127.0.0.1", 0), key=key, idle=idle) as listener:
        files = Serving(tree, listener, {}, Uploads(tree, 0))
        running = asyncio.create_task(files.run())
        try:
            yield Sleepers(idle, key, listener)
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
            await files.close()


@asynccontextmanager
async def serving_objects(folder):
    key, idle = KeyPair(os.urandom(32)), folder / "idle"
    gateway = Gateway(
        GatewaySettings(("127.0.0.1", 0), local=True, idle=idle),
        key,
        lambda _key: "laptop",
        lambda one: ObjectServing(one, None, lambda: False),
    )
    await gateway.open()
    running = asyncio.create_task(gateway.run())
    try:
        yield Sleepers(idle, key, gateway._listener)
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        await gateway.close()


async def answered(kind, connection):
    return await asyncio.wait_for(read(kind, connection.read_exactly), 10)


def request(size):
    return pack(PutRequest("new", size, "v"))


async def test_half_an_upload_stays_awake_and_goes_on(tmp_path):
    """The rest of its body was read as requests: a file's bytes made the server do things."""
    evil = pack(PutRequest("planted", 5, "x")) + b"hello" + hashlib.sha256(b"hello").digest()
    body = BODY[:200_000] + evil + BODY[200_000:]
    async with serving_files(tmp_path) as server:
        near = await server.connect()
        await near.write(request(len(body)))
        assert (await answered(PutAnswer, near)).start == 0
        await near.write(body[:200_000])
        await until(lambda: near.acknowledged_bytes == near.written_bytes)
        await asyncio.sleep(0.3)
        assert not server.known_after_a_kill(near.flow_id)
        await server.away()
        assert len(server.living) == 1, "it sleeps"
        server.back()
        await near.write(body[200_000:] + hashlib.sha256(body).digest())
        assert (await answered(PutAnswer, near)).start == len(body)
        assert [each.name for each in (tmp_path / "tree").iterdir()] == ["new"]
        assert (tmp_path / "tree" / "new").read_bytes() == body
        near.abort("the test is over")


async def test_between_requests_it_sleeps_and_its_record_goes_with_the_next(tmp_path):
    async with serving_files(tmp_path) as server:
        (tmp_path / "tree" / "file").write_bytes(BODY)
        near = await server.connect()
        for _ in range(2):
            await near.write(pack(FileRequest("file")))
            answer = await answered(Answer, near)
            assert (await near.read_exactly(answer.size + 32))[: answer.size] == BODY
            await until(lambda: server.known_after_a_kill(near.flow_id))
            await server.away()
            assert not server.living, "it does not sleep"
            assert server.known_after_a_kill(near.flow_id)
            server.back()
        await near.write(request(5))
        assert (await answered(PutAnswer, near)).start == 0
        assert not server.known_after_a_kill(near.flow_id), "a request has begun"
        near.abort("the test is over")


async def test_a_digest_that_is_computed_is_owed(tmp_path, monkeypatch):
    """`cedos-get` waited for ever for a digest if its network was away meanwhile."""
    go_on = asyncio.Event()
    digest = Tree.digest

    async def slow(*given):
        await go_on.wait()
        return await digest(*given)

    monkeypatch.setattr(Tree, "digest", slow)
    async with serving_files(tmp_path) as server:
        (tmp_path / "tree" / "file").write_bytes(BODY)
        near = await server.connect()
        await near.write(pack(FileRequest("file")))
        answer = await answered(Answer, near)
        await near.read_exactly(answer.size)
        await asyncio.sleep(0.3)
        assert not server.known_after_a_kill(near.flow_id)
        await server.away()
        go_on.set()
        server.back()
        right = hashlib.sha256(BODY).digest()
        assert await asyncio.wait_for(near.read_exactly(32), 10) == right
        near.abort("the test is over")


async def test_half_a_request_at_a_gateway_stays_awake_and_goes_on(tmp_path):
    async with serving_objects(tmp_path) as server:
        near = await server.connect()
        whole = pack(FileRequest("http://a.example/x"))
        await until(lambda: server.known_after_a_kill(near.flow_id))
        await near.write(whole[:3])
        await until(lambda: near.acknowledged_bytes == near.written_bytes)
        await asyncio.sleep(0.3)
        assert not server.known_after_a_kill(near.flow_id)
        await server.away()
        assert len(server.living) == 1, "it sleeps"
        server.back()
        await near.write(whole[3:])
        assert "invited" in (await answered(Answer, near)).refused
        await until(lambda: server.known_after_a_kill(near.flow_id))
        await near.write(request(1))  # a gateway takes no files
        with pytest.raises(SessionError, match="invalid"):
            await asyncio.wait_for(near.read(1), 5)


async def test_an_application_that_does_not_say_that_it_rests_is_awake(tmp_path):
    key = KeyPair(os.urandom(32))
    async with await session.listen(("127.0.0.1", 0), key=key, idle=tmp_path / "idle") as listener:
        server = Sleepers(tmp_path / "idle", key, listener)
        near = await server.connect()
        far = await listener.accept()
        await near.write(b"hello")
        assert await far.read_exactly(5) == b"hello"
        await asyncio.sleep(0.3)
        assert not server.known_after_a_kill(near.flow_id)
        await server.away()
        assert not far.ended
        server.back()
        await near.write(b"again")
        assert await asyncio.wait_for(far.read_exactly(5), 10) == b"again"
        near.abort("the test is over")


async def test_a_record_is_withdrawn_before_a_byte_is_read_or_sent(tmp_path):
    key = KeyPair(os.urandom(32))
    async with await session.listen(("127.0.0.1", 0), key=key, idle=tmp_path / "idle") as listener:
        server = Sleepers(tmp_path / "idle", key, listener)
        near = await server.connect()
        far = await listener.accept()
        far.on_sleep(lambda: b"")

        async def known():
            await until(lambda: server.known_after_a_kill(near.flow_id))

        reading = asyncio.create_task(far.read())
        await near.write(b"hello")
        await reading
        assert not server.known_after_a_kill(near.flow_id)
        await known()
        sends = far.flow.core.next_record
        seen = []

        def next_record(*given):
            parts = sends(*given)
            if parts:
                seen.append(server.known_after_a_kill(near.flow_id))
            return parts

        far.flow.core.next_record = next_record
        await far.write(b"more")
        assert seen == [False]
        far.flow.core.next_record = sends
        await near.read_exactly(4)
        await known()
        assert far.send_now(b"a message")
        assert not server.known_after_a_kill(near.flow_id)
        await near.receive()
        await known()
        with suppress(TimeoutError):  # nothing moves: it is known all the time
            async with asyncio.timeout(0.5):
                while True:
                    assert server.known_after_a_kill(near.flow_id)
                    await asyncio.sleep(0.01)
        near.abort("the test is over")


async def test_clients_that_were_killed_leave_their_places_to_others(tmp_path, monkeypatch):
    """Their sessions wait for them, a day long; nor is room of the disk kept for their uploads."""
    monkeypatch.setattr(serving, "_AT_ONCE", 2)
    rooms = []
    monkeypatch.setattr(Uploads, "_check_room", lambda _self, _number, more: rooms.append(more))

    async def begin(name, size):
        near = await server.connect()
        await near.write(pack(PutRequest(name, size, "v")) + b"x" * 100)
        return near, await answered(PutAnswer, near)

    async with serving_files(tmp_path) as server:
        for number in range(4):
            near, answer = await begin(f"{number}", 1_000 + number)
            assert not answer.refused
            await near.wait_acknowledged(near.written_bytes)
            near.flow.dialler.close()
            await server.away(0.2)
            server.back()
        assert len(server.living) == 2
        assert {1_000, 1_001, 1_002, 1_003} <= set(rooms)
        for number in range(4, 7):
            near, answer = await begin(f"{number}", 100_000)
        assert "at once" in answer.refused, "clients that are there keep their places"
        for each in server.living:
            each.abort("the test is over")


async def test_an_orderly_stop_keeps_the_sessions_of_who_is_away_alone(tmp_path):
    """A client with a path was told of the end, and the dead record lay there until it expired."""
    async with serving_files(tmp_path) as server:
        (tmp_path / "tree" / "file").write_bytes(BODY)
        away, here = await server.connect(), await server.connect()
        for near in (away, here):
            await near.write(pack(FileRequest("file")))
            answer = await answered(Answer, near)
            await near.read_exactly(answer.size + 32)
            await until(lambda near=near: server.known_after_a_kill(near.flow_id))
        server.listener._driver.loop.remove_reader(server.listener._socket.fileno())
        (left,) = (each for each in server.living if each.flow_id == away.flow_id)
        for path in list(left.flow.paths.values()):
            path.close("it went away", reset=True)
        await asyncio.sleep(0.1)
    assert server.known_after_a_kill(away.flow_id)
    assert not server.known_after_a_kill(here.flow_id)
    away.abort("the test is over")

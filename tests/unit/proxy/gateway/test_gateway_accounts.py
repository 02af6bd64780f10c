"""Clients do this and that at random at a gateway: once they have left, it holds what it held before."""

import asyncio
import errno
import gc
import os
import random
import time
from contextlib import suppress
from dataclasses import replace

import pytest
from kit.accounts import accounts, descriptors, grown

from cedos import web
from cedos.apps.files.messages import FileRequest, PutRequest, pack
from cedos.apps.files.objects import object_fetcher, object_serving, stored_object
from cedos.apps.files.objects.object_fetcher import ObjectFetcher
from cedos.apps.files.objects.object_serving import ObjectServing
from cedos.apps.files.objects.object_store import ObjectStore
from cedos.errors import SessionError
from cedos.proxy.gateway import gateway, gateway_session, origin
from cedos.proxy.gateway.gateway import Gateway, GatewaySettings
from cedos.proxy.streams import carry
from cedos.proxy.streams.frames import GatewayQuestion, OpenStream, StreamBytes, StreamReset
from cedos.proxy.streams.multiplexer import Multiplexer
from cedos.proxy.streams.stream import SMALL
from cedos.session.io.driver import current
from cedos.session.protocol.crypto import KeyPair
from cedos.session.sockets.sockets import connect

HEAD = b"HTTP/1.1 200 OK\r\nCache-Control: max-age=600\r\n"
# What an origin says to a request for that path, before it ends the connection.
SAYS = {
    "good": HEAD + b'ETag: "1"\r\nContent-Length: 3\r\n\r\nabc',
    "large": HEAD + b'ETag: "2"\r\nContent-Length: 3000000\r\n\r\n' + bytes(3_000_000),
    "secret": b"HTTP/1.1 200 OK\r\nCache-Control: no-store\r\nContent-Length: 9\r\n\r\n" + bytes(9),
    "half": HEAD + b'ETag: "3"\r\nContent-Length: 300000\r\n\r\n' + bytes(200_000),
    "chunked": HEAD + b"Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n",
    "endless": b"HTTP/1.1 200 OK\r\n\r\n" + bytes(500_000),
    "redirect": b"HTTP/1.1 302 Found\r\nLocation: /good\r\nContent-Length: 0\r\n\r\n",
    "unchanged": b'HTTP/1.1 304 Not Modified\r\nETag: "1"\r\n\r\n',
    "busy": b"HTTP/1.1 503 Busy\r\nContent-Length: 0\r\n\r\n",
    "odd": b"220 smtp.example\r\n\r\n",
    "nothing": b"",
}  # fmt: skip


class Walk:
    """`step` lets one of three clients do something; `leave` ends all their sessions."""

    def __init__(self, folder, random_, monkeypatch):
        self.folder, self.random = folder, random_
        self.me, self.keys = KeyPair(os.urandom(32)), [KeyPair(os.urandom(32)) for _ in range(3)]
        self.invited = {key.public: f"client {number}" for number, key in enumerate(self.keys)}
        self.sessions, self.tasks, self.fails = [], set(), 0.0
        self.answering = set()  # of the origin
        for module, name, error in (
            (stored_object.os, "dup", errno.EMFILE),
            (stored_object.os, "fdatasync", errno.EIO),
            (stored_object.os, "write", errno.ENOSPC),
            (origin.socket.socket, "connect_ex", errno.EMFILE),
        ):
            monkeypatch.setattr(module, name, self._failing(getattr(module, name), error))

    def _failing(self, call, error):
        def maybe(*args):
            if self.random.random() < self.fails:
                raise OSError(error, os.strerror(error))
            return call(*args)

        return maybe

    async def start(self):
        self.server = await asyncio.start_server(self._answer, "127.0.0.1", 0)
        self.port = self.server.sockets[0].getsockname()[1]
        self.fetcher = ObjectFetcher(ObjectStore(self.folder / "objects", 8_000_000), lambda *_: "")
        limits = {"most": 60, "most_per_client": 25, "idle_s": 1.0, "connect_s": 0.5}
        self.gateway = Gateway(
            GatewaySettings(("127.0.0.1", 0), local=True, **limits), self.me, self.invited.get,
            lambda one: ObjectServing(one, self.fetcher, lambda: True),
        )  # fmt: skip
        unread = self.gateway._terms.unread
        self.unread = [unread.client(key.public) for key in self.keys]
        await self.gateway.open()
        self.running = asyncio.create_task(self.gateway.run())

    async def _answer(self, reader, writer):
        self.answering.add(asyncio.current_task())
        with suppress(ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            head = await reader.readuntil(b"\r\n\r\n")
            path = head.split()[1].decode().strip("/")
            if path == "silent":
                await asyncio.sleep(self.random.choice([0.1, 2.0]))
            writer.write(SAYS.get(path, b""))
            await writer.drain()
        writer.close()

    def _path(self):
        return self.random.choice([*SAYS, "silent"])

    def _url(self):
        return f"http://127.0.0.1:{self.port}/{self._path()}"

    async def come(self, key):
        made = await connect(
            self.gateway.address, server_key=self.me.public, key=key, limits=gateway.LIMITS, timeout_s=5
        )  # fmt: skip
        session = made, Multiplexer(made), []
        self.sessions.append(session)
        self._begin(session[1].run())
        return session

    def _begin(self, work):
        task = asyncio.create_task(work)
        self.tasks.add(task)
        task.add_done_callback(lambda done: done.cancelled() or done.exception())

    def open(self, session, path=None):
        stream = session[1].open("127.0.0.1", self.port)
        if self.random.random() < 0.8:
            stream.watch(lambda: stream.on_read(stream.unread_bytes))
        path = path or self._path()
        stream.write(b"GET /%s HTTP/1.1\r\nHost: 127.0.0.1:%d\r\n\r\n" % (path.encode(), self.port))
        session[2].append(stream)

    async def step(self):
        chance = self.random
        self.sessions = [each for each in self.sessions if not each[0].ended]
        if len(self.sessions) < 2 or chance.random() < 0.1:
            with suppress(SessionError):
                await self.come(chance.choice(self.keys))
            return
        session = chance.choice(self.sessions)
        connection, streams, opened = session
        with suppress(SessionError, OSError):
            match chance.randrange(14):
                case 0:
                    connection.abort("left")
                case 1:  # more than it may, and it leaves at once
                    for _ in range(40):
                        self.open(session)
                    connection.abort("left")
                case 2:
                    self.invited.pop(connection.peer_key, None)
                case 3:
                    self.invited |= {key.public: "again" for key in self.keys}
                case 4 | 5:
                    self.open(session)
                case 6 | 7 | 8:
                    self._begin(connection.write(pack(FileRequest(self._url()))))
                case 9:
                    self._begin(connection.write(pack(PutRequest(self._url(), 9, "v"))))
                case 10:
                    association = streams.associate()
                    for host in ("127.0.0.1", "localhost"):
                        association.send(host, chance.randrange(1, 60_000), b"data")
                    if chance.random() < 0.5:
                        association.drop()
                case 11 if opened:
                    chance.choice(opened).write(bytes(chance.choice([1, 300_000])))
                case 12 if opened:
                    stream = opened.pop(chance.randrange(len(opened)))
                    stream.finish() if chance.random() < 0.5 else stream.drop()
                case 13:
                    number = chance.randrange(1, 100)
                    frame = chance.choice(
                        [OpenStream(number, "::1", 1), StreamBytes(number, 0, b"x"), StreamReset(number),
                         GatewayQuestion(number, b"no question")]
                    )  # fmt: skip
                    connection.send_now(frame.pack(), SMALL)
                case _:
                    self.fails = chance.choice([0.0, 0.0, 0.2])
        await asyncio.sleep(chance.choice([0, 0, 0.01]))

    async def leave(self):
        self.fails = 0.0
        self.invited |= {key.public: "again" for key in self.keys}
        for connection, *_ in self.sessions:
            connection.abort("left")
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)
        self.sessions.clear()
        self.tasks.clear()

    async def held(self):
        """Return all that the gateway holds; what it keeps for a week has expired."""
        later_s = time.time() + 15 * 86_400
        await self.fetcher.store.tidy(later_s)
        self.fetcher.store._tidied_unix_s = 0.0
        gc.collect()
        held = accounts(
            gateway=self.gateway, fetcher=self.fetcher,
            turns=current().turns._waiting, memory=current().memory, unread=self.unread,
        )  # fmt: skip
        held["files"] = sum(each.is_file() for each in self.folder.rglob("*"))
        return held | descriptors()

    async def close(self):
        self.running.cancel()
        await asyncio.gather(self.running, return_exceptions=True)
        await self.gateway.close()
        await self.fetcher.close()
        self.server.close()
        for task in self.answering:
            task.cancel()
        await asyncio.gather(*self.answering, return_exceptions=True)


SEEDS = [1, *(pytest.param(seed, marks=pytest.mark.long) for seed in range(2, 40))]


@pytest.mark.parametrize("seed", SEEDS)
async def test_clients_that_have_left_hold_nothing(tmp_path, monkeypatch, seed):
    """Bursts that were refused, and what followed requests with answers, counted for good."""
    for module, name, seconds in (
        (web, "SILENCE_S", 0.5),
        (object_serving, "_GOODBYE_S", 0.1),
        (carry, "LAST_S", 0.2),
        (gateway_session, "LAST_S", 0.2),
        (object_fetcher, "_AGAIN_S", (0.05,)),
        (gateway, "LIMITS", replace(gateway.LIMITS, keep_alive_s=1)),
    ):
        monkeypatch.setattr(module, name, seconds)
    walk = Walk(tmp_path, random.Random(seed), monkeypatch)
    await walk.start()
    for key in walk.keys:
        session = await walk.come(key)
        walk.open(session, "large")
        await session[0].write(pack(FileRequest(f"http://127.0.0.1:{walk.port}/large")))
    await asyncio.sleep(0.3)
    await walk.leave()
    await asyncio.sleep(1.0)
    while (before := await walk.held())["files"]:
        await asyncio.sleep(0.2)
    for _ in range(200):
        await walk.step()
    await walk.leave()
    for _ in range(40):
        if not (more := grown(before, await walk.held())):
            break
        await asyncio.sleep(0.2)
    assert not more
    await walk.close()

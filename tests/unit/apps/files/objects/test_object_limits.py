"""Clients and origins that hold all they can: others are served, and what they held is given back."""

import asyncio
import os
import time
from contextlib import ExitStack, suppress
from time import process_time

import pytest
from kit.waiting import counting_turns, until
from yarl import URL

from cedos import web
from cedos.apps.files.messages import Answer, FileRequest, pack, read
from cedos.apps.files.objects import object_serving
from cedos.apps.files.objects.object_fetcher import (
    AT_ONCE,
    AT_ONCE_OF_ORIGIN,
    Slots,
    object_url,
)
from cedos.apps.files.objects.object_serving import MOST_AHEAD, ObjectServing, client_of
from cedos.apps.files.objects.object_store import MOST_OPEN
from cedos.apps.files.objects.stored_object import LONGEST_RECORD
from cedos.errors import SessionError, TransferError
from cedos.session.protocol.crypto import KeyPair


class Greedy:
    """A client's session that asks for one object without end, and acknowledges nothing."""

    def __init__(self, url, key):
        self._request = pack(FileRequest(url))
        self._at = 0
        self.peer_key, self.written_bytes, self.acknowledged_bytes = key, 0, 0

    async def first_byte(self):
        return await self.read(1)

    async def read(self, _most):
        await asyncio.sleep(0)
        self._at = 1
        return self._request[:1]

    async def read_exactly(self, count):
        data = self._request[self._at : self._at + count]
        self._at += count
        return data

    async def write(self, data):
        self.written_bytes += len(data)

    async def write_source(self, _source, count):
        self.written_bytes += count

    async def wait_acknowledged(self, up_to_bytes):
        while self.acknowledged_bytes < up_to_bytes:
            await asyncio.sleep(0.01)

    def abort(self, why):
        raise SessionError(why)


class SilentOrigin:
    """Takes requests, and answers none; `brings` is what it says at once."""

    def __init__(self, brings=b""):
        self._brings = brings
        self.asked = self.open = 0

    async def start(self):
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]

    async def _serve(self, reader, writer):
        self.asked += 1
        self.open += 1
        with suppress(ConnectionError):
            writer.write(self._brings)
            while await reader.read(65_536):
                pass
        self.open -= 1
        writer.close()

    def close(self):
        self._server.close()


@pytest.fixture
async def silent():
    made = SilentOrigin()
    await made.start()
    yield made
    made.close()


async def test_who_acknowledges_nothing_holds_a_bounded_number_of_files(fetching):
    """Once a client took all descriptors, 160 a second, and another client could not join."""
    await fetching.start()
    fetching.publish(b"small")
    await fetching.get(fetching.url("/fresh/file"))
    store, key = fetching.fetcher.store, os.urandom(32)
    greedy = [Greedy(fetching.url("/fresh/file"), key) for _ in range(2 * MOST_OPEN // MOST_AHEAD)]
    servings = [ObjectServing(each, fetching.fetcher, lambda: True) for each in greedy]
    tasks = [asyncio.create_task(each.run()) for each in servings]
    client = servings[0]._client
    await until(lambda: store._open[client] == MOST_OPEN, 60.0)
    assert all(len(each._handed_on) <= MOST_AHEAD for each in servings)
    await asyncio.sleep(0.3)
    assert store._open[client] == MOST_OPEN
    assert await fetching.get(fetching.url("/fresh/file")) == b"small"
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert store._open[client] == 0
    assert all(each.users == 0 for _, each in store.all())


async def test_requests_that_wait_leave_the_event_loop_to_others(fetching):
    """Send them over twenty sessions without waiting for answers: all clients waited for 41 s."""
    await fetching.start()

    class Eager(Greedy):
        def __init__(self):
            super().__init__("", os.urandom(32))
            self.waiting = 1_000 * pack(FileRequest("ftp://a/"))

        async def first_byte(self):
            return await self.read(1)

        async def read(self, most):
            data, self.waiting = self.waiting[:most], self.waiting[most:]
            return data

        async def read_exactly(self, size):
            return await self.read(size)

        async def write(self, data):
            self.acknowledged_bytes = self.written_bytes = self.written_bytes + len(data)

    eager = Eager()
    async with counting_turns() as turns:
        await ObjectServing(eager, fetching.fetcher, lambda: not time.sleep(0.001)).run()
        assert turns() > 200


async def test_a_client_that_reads_late_reads_no_other_ones_object(fetching, monkeypatch):
    """The gateway closed its objects, and the session read on by their numbers: another client's."""
    monkeypatch.setattr(object_serving, "_GOODBYE_S", 0.1)
    await fetching.start()
    other = KeyPair(os.urandom(32))
    fetching.invited[other.public] = "other"
    ends = []
    for who, fill in ((other, b"B"), (fetching.client, b"A")):
        fetching.publish(fill * 20_000_000)
        url = fetching.url(f"/fresh/file?{fill}")
        await fetching.get(url, who=who)
        ends.append((await fetching.connect(who), pack(FileRequest(url))))
    (near, request), (late, late_request) = ends
    await late.write(late_request)
    size = (await read(Answer, late.read_exactly)).size
    late.finish()
    await until(lambda: not fetching.fetcher.store._open[client_of(fetching.client.public)], 60.0)
    await near.write(request)
    await read(Answer, near.read_exactly)
    strange = 0
    with suppress(SessionError):
        async with asyncio.timeout(60.0):
            while late.received_bytes < size and (part := await late.read()):
                strange += bytes(part).count(b"B")
    assert strange == 0
    near.abort()


async def ask(fetching, port, count):
    """A session that asks a silent origin for so many objects at once, and its tasks."""
    tasks = [
        asyncio.create_task(fetching.get(f"http://127.0.0.1:{port}/{number}", f"never{number}"))
        for number in range(count)
    ]
    await until(lambda: len(fetching.fetcher._asking) == count)
    return tasks


async def end(tasks):
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def test_an_origin_that_answers_nothing_keeps_no_other_one_waiting(fetching, silent):
    """Eight requests that it left unanswered ended `--via gateway` for that client."""
    await fetching.start()
    fetching.publish(b"here")
    tasks = await ask(fetching, silent.port, 3 * AT_ONCE)
    await until(lambda: silent.open == AT_ONCE_OF_ORIGIN)
    assert await fetching.get(fetching.url("/file")) == b"here"
    await end(tasks)


async def test_what_is_fresh_needs_no_slot(fetching):
    await fetching.start()
    fetching.publish(b"here")
    assert await fetching.get(fetching.url("/fresh/file")) == b"here"
    origins = [SilentOrigin() for _ in range(AT_ONCE // AT_ONCE_OF_ORIGIN)]
    tasks = []
    for number, each in enumerate(origins):
        await each.start()
        tasks += [
            asyncio.create_task(
                fetching.get(f"http://127.0.0.1:{each.port}/{n}", f"never{number}{n}")
            )
            for n in range(AT_ONCE_OF_ORIGIN)
        ]
    await until(lambda: sum(each.open for each in origins) == AT_ONCE)
    assert await fetching.get(fetching.url("/fresh/file"), "again") == b"here"
    await end(tasks)
    for each in origins:
        each.close()


BEGINNING = b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n"


@pytest.mark.parametrize("brings", [b"", BEGINNING, BEGINNING + b"a few bytes"])
async def test_silence_has_an_end(fetching, brings, monkeypatch):
    monkeypatch.setattr(web, "SILENCE_S", 0.3)
    await fetching.start()
    origin = SilentOrigin(brings)
    await origin.start()
    with suppress(TransferError, TimeoutError):
        async with asyncio.timeout(3):
            await fetching.get(f"http://127.0.0.1:{origin.port}/")
    await until(lambda: origin.open == 0 and not fetching.fetcher._tasks)
    origin.close()


async def test_slow_origins_keep_no_slot_from_others(fetching, monkeypatch):
    """16 KiB a minute kept each of a client's slots as long as an origin liked."""
    monkeypatch.setattr(web, "SILENCE_S", 1.0)
    await fetching.start()
    fetching.publish(b"here")

    serving = {}  # how many parts each has sent

    async def drips(reader, writer):
        serving[asyncio.current_task()] = 0
        with suppress(ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            head = await reader.readuntil(b"\r\n\r\n")
            answer = (
                b"206 P\r\nContent-Range: bytes %s9999999/10000000"
                % head.split(b"bytes=")[1].split()[0]
                if b"bytes=" in head
                else b"200 OK\r\nContent-Length: 10000000"
            )
            writer.write(b'HTTP/1.1 %s\r\nETag: "1"\r\n\r\n' % answer)
            while True:
                writer.write(bytes(8_192))
                await writer.drain()
                await asyncio.sleep(0.05)
                serving[asyncio.current_task()] += 1
        writer.close()

    servers = [await asyncio.start_server(drips, "127.0.0.1", 0) for _ in range(2)]
    tasks = [
        asyncio.create_task(
            fetching.get(f"http://127.0.0.1:{each.sockets[0].getsockname()[1]}/{n}", f"s{port}{n}")
        )
        for port, each in enumerate(servers)
        for n in range(AT_ONCE_OF_ORIGIN)
    ]
    await until(lambda: len(fetching.fetcher._tasks) == AT_ONCE)
    await until(lambda: len(serving) == AT_ONCE and min(serving.values()) > 20)  # of 0.05 s each
    assert not any(each.done() for each in tasks), "they go on while no other one waits"
    assert await fetching.get(fetching.url("/file")) == b"here"
    assert not any(each.done() for each in tasks), "they go on behind it"
    await end([*tasks, *serving])
    for each in servers:
        each.close()


@pytest.mark.parametrize(("most", "for_b", "hurries"), [(3, True, "B"), (2, False, "AB")])
async def test_a_request_hurries_only_for_those_that_its_end_lets_go_on(most, for_b, hurries):
    """Count who waits for B for B alone: an object of A's that came at 16 KiB/s was given up for it."""
    slots, taken = Slots(most, 1), ExitStack()
    a, b, c = (URL(f"http://{name}.test/") for name in "abc")
    await slots.take(a, taken)
    await slots.take(b, taken)
    waiting = asyncio.create_task(slots.take(b if for_b else c, taken))
    await asyncio.sleep(0)
    found = {"A": slots.least_bytes(a), "B": slots.least_bytes(b)}
    assert "".join(name for name, least in found.items() if least > web.LEAST_BYTES) == hurries
    taken.close()
    await waiting
    assert slots.least_bytes(a) == slots.least_bytes(b) == web.LEAST_BYTES
    taken.close()


async def test_other_clients_have_slots_of_their_own(fetching, silent):
    await fetching.start()
    fetching.publish(b"here")
    other = KeyPair(os.urandom(32))
    fetching.invited[other.public] = "phone"
    tasks = await ask(fetching, silent.port, 3 * AT_ONCE)
    assert await fetching.get(fetching.url("/file"), who=other) == b"here"
    await end(tasks)


async def test_what_an_origin_adds_to_a_kept_object_is_bounded(fetching):
    """Each confirmation (304) let a record grow to 128 KiB: 440 MB of memory, and as much of the disk."""
    await fetching.start()
    more = b"".join(b"%s: %s\r\n" % (name, b"y" * 900) for name in (b"x-1", b"Expires", b"Age"))

    async def confirms(reader, writer):
        head = await reader.readuntil(b"\r\n\r\n")
        fields = b'ETag: "1"\r\nLast-Modified: ' + b"x" * 1_000 + b"\r\n"
        if b"if-none-match" in head.lower():
            writer.write(b"HTTP/1.1 304 Not Modified\r\n" + fields + more + b"\r\n")
        else:
            writer.write(b"HTTP/1.1 200 OK\r\n" + fields + b"Content-Length: 1\r\n\r\nx")
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(confirms, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/{'a' * 4_000}"
    assert await fetching.get(url) == b"x"
    (kept,) = fetching.fetcher.store.of(client_of(fetching.client.public))
    assert kept.record.headers["etag"] == ['"1"']
    assert kept.path.with_suffix(".json").stat().st_size < LONGEST_RECORD
    assert await fetching.get(url) == b"x"
    assert (kept.record.headers, kept.record.reusable) == ({}, False)
    server.close()


def test_a_url_that_no_name_is_in_takes_no_time_of_others():
    """A client's twelve requests (145 kB) had another one wait for 39 s."""
    letters = "".join(chr(0x4E00 + 7919 * at % 20_900) for at in range(4_000))
    began_s = process_time()
    with pytest.raises(TransferError, match="is no http:// or https:// URL"):
        object_url(f"http://{letters}/")
    assert process_time() - began_s < 0.3
    with pytest.raises(TransferError, match="the URL is longer"):
        object_url("http://a.test/" + "é" * 4_000)

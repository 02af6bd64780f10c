"""Programs' plain requests through the proxy: fetched whole by the gateway, kept by HTTP's rules."""

import asyncio
import hashlib
import os
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path

import pytest
from kit.waiting import counting_turns, until

from cedos.apps.files.objects.object_fetcher import PROGRAMS_AT_ONCE, ObjectFetcher
from cedos.apps.files.objects.object_serving import (
    NoAnswer,
    ProgramRequests,
    client_of,
    program_url,
)
from cedos.apps.files.objects.object_store import ObjectStore
from cedos.proxy.gateway.gateway import LIMITS
from cedos.proxy.gateway.origin import DestinationRules
from cedos.proxy.http import RefusedError
from cedos.proxy.streams.multiplexer import Multiplexer
from cedos.proxy.streams.stream import WINDOW_BYTES
from cedos.session.sockets.sockets import connect

LARGE = 8 * WINDOW_BYTES


class Origin:
    """Serves `body` with `fields` for each GET; `asked` has the requests."""

    def __init__(self):
        self.asked = []
        self.body, self.status, self.length = os.urandom(LARGE), b"200 OK", True
        self.fields = b'ETag: "one"\r\nCache-Control: max-age=600\r\n'
        self.sent = asyncio.Event()
        self.go_on = asyncio.Event()
        self.go_on.set()
        self.half = 0

    async def __call__(self, reader, writer):
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            await self._serve(reader, writer)

    async def _serve(self, reader, writer):
        while head := await reader.readuntil(b"\r\n\r\n"):
            self.asked.append(head)
            if b"if-none-match" in head.lower():
                writer.write(b"HTTP/1.1 304 Not Modified\r\n" + self.fields + b"\r\n")
                continue
            length = b"Content-Length: %d\r\n" % len(self.body) if self.length else b""
            writer.write(b"HTTP/1.1 " + self.status + b"\r\n" + length + self.fields + b"\r\n")
            writer.write(self.body[: self.half])
            await self.go_on.wait()
            writer.write(self.body[self.half :])
            await writer.drain()
            self.sent.set()
            if not self.length:
                return


@pytest.fixture
async def fetching(ends, tmp_path):
    fetcher = ObjectFetcher(ObjectStore(tmp_path / "kept", 100_000_000), lambda _host, _port: "")
    ends.requests = ProgramRequests(fetcher)
    ends.fetcher = fetcher
    await ends.start()
    # (Loopback is this place: the proxy would go there itself.)
    ends.proxy.goes_direct = lambda _host: False
    ends.writers = []
    yield ends
    for each in ends.writers:
        each.close()
        with suppress(ConnectionError):
            await each.wait_closed()
    await ends.fetcher.close()


async def begun(ends, port, fields=b"", method=b"GET"):
    reader, writer = await ends.ask(
        b"%s http://127.0.0.1:%d/file?a=%%20b HTTP/1.1\r\nHost: 127.0.0.1:%d\r\n%s\r\n"
        % (method, port, port, fields)
    )
    ends.writers.append(writer)
    return reader


async def got(ends, port, fields=b""):
    answer = await asyncio.wait_for((await begun(ends, port, fields)).read(), 30)
    head, _, body = answer.partition(b"\r\n\r\n")
    return head.lower(), body


async def test_what_is_fresh_is_asked_for_once(fetching):
    origin = Origin()
    port = await fetching.origin(origin)
    for age in (b"age: 0", b"age: "):
        head, body = await got(fetching, port, b"Accept: text/*\r\n")
        assert head.startswith(b"http/1.1 200 ok\r\n")
        assert age in head
        assert b'etag: "one"' in head
        assert hashlib.sha256(body).digest() == hashlib.sha256(origin.body).digest()
    (asked,) = origin.asked
    assert asked.startswith(b"GET /file?a=%20b HTTP/1.1\r\n")
    assert b"accept: text/*" in asked.lower()
    assert b"via: 1.1 cedos" in asked.lower()
    head, body = await got(fetching, port, b"Accept: text/*\r\nCache-Control: only-if-cached\r\n")
    assert head.startswith(b"http/1.1 200 ok\r\n")
    assert body == origin.body
    origin.fields = b'ETag: "one"\r\n'
    await got(fetching, port, b"Cache-Control: no-cache\r\n")
    assert b'if-none-match: "one"' in origin.asked[1].lower()


@pytest.mark.parametrize("besides", [b"", b"Range: bytes=0-9\r\n", b'If-None-Match: "one"\r\n'])
async def test_what_is_asked_for_only_if_it_is_kept_reaches_no_origin(fetching, besides):
    origin = Origin()
    fields = b"Cache-Control: only-if-cached\r\n" + besides
    head, body = await got(fetching, await fetching.origin(origin), fields)
    assert head.startswith(b"http/1.1 504 ")
    assert body == b""
    assert not origin.asked


async def test_who_has_what_is_fresh_is_told_so_from_there(fetching):
    origin = Origin()
    port = await fetching.origin(origin)
    await got(fetching, port)
    for fields in (b'If-None-Match: "zero", W/"one"\r\n', b"If-None-Match: *\r\n"):
        head, body = await got(fetching, port, fields)
        assert head.startswith(b"http/1.1 304 ")
        assert b'etag: "one"' in head
        assert b"content-length" not in head
        assert body == b""
    assert len(origin.asked) == 1
    origin.length = False  # another version is wanted, or a part of it: that is the origin's to say
    for fields in (b'If-None-Match: "two"\r\n', b'If-None-Match: "one"\r\nRange: bytes=0-1\r\n'):
        reader = await begun(fetching, port, fields)
        await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 10)
    assert len(origin.asked) == 3


async def test_a_part_of_what_is_kept_comes_from_there(fetching):
    """A player that seeks, or `curl -C -` after it was interrupted."""
    origin = Origin()
    port = await fetching.origin(origin)
    await got(fetching, port)
    for wanted, part in (
        (b"bytes=100-", origin.body[100:]),
        (b"bytes=5-9", origin.body[5:10]),
        (b"bytes=-7", origin.body[-7:]),
    ):
        head, body = await got(fetching, port, b"Range: %s\r\n" % wanted)
        assert head.startswith(b"http/1.1 206 ")
        assert b"content-length: %d\r\n" % len(part) in head
        assert body == part
    assert b"content-range: bytes %d-%d/%d" % (LARGE - 7, LARGE - 1, LARGE) in head
    assert len(origin.asked) == 1


@pytest.mark.parametrize(
    ("fields", "stays"), [(b"Cache-Control: no-store\r\n", False), (b"", True)]
)
async def test_what_nobody_else_may_have_is_not_fetched_for_who_has_gone(fetching, fields, stays):
    origin = Origin()
    origin.fields = fields or origin.fields
    origin.half = LARGE // 3
    origin.go_on.clear()
    reader = await begun(fetching, await fetching.origin(origin))
    await asyncio.wait_for(reader.readexactly(100_000), 20)
    client = client_of(fetching.client.public)
    assert len(fetching.fetcher.store.of(client)) == 1
    fetching.writers[-1].transport.abort()
    await asyncio.sleep(1.0)
    origin.go_on.set()
    deadline_s = asyncio.get_running_loop().time() + 20
    while [each.whole for each in fetching.fetcher.store.of(client)] != [True] * stays:
        assert asyncio.get_running_loop().time() < deadline_s
        await asyncio.sleep(0.05)


@pytest.mark.parametrize(
    "fields",
    [
        b"Cookie: a=b\r\n",
        b"Authorization: Basic eDp5\r\n",
        b"Range: bytes=0-9\r\n",
        b'If-Match: "x"\r\n',
    ],
)
async def test_what_is_for_one_user_or_on_a_condition_is_not_kept(fetching, fields):
    origin = Origin()
    origin.body = b"mine"
    port = await fetching.origin(origin)
    for count in (1, 2):
        reader = await begun(fetching, port, fields)
        head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 10)
        assert await reader.readexactly(4) == b"mine"
        assert b"age:" not in head.lower()
        assert len(origin.asked) == count
    assert fetching.fetcher.store.of("") == []


@pytest.mark.parametrize(
    ("said", "more"),
    [
        (b"Cache-Control: private, max-age=600\r\n", b""),
        (b"Cache-Control: max-age=600\r\nSet-Cookie: session=one\r\n", b""),
        (b"Cache-Control: max-age=600\r\n", b"X-Api-Key: one\r\n"),
        (b"Cache-Control: max-age=600\r\n", b"X-Forwarded-Host: other.example\r\n"),
    ],
)
async def test_users_of_a_host_get_no_answers_to_each_other(fetching, said, more):
    """The second one's program asks for the same, and says nothing of the first."""
    origin = Origin()
    origin.fields = said
    port = await fetching.origin(origin)
    for count, fields in enumerate((more, b""), 1):
        origin.body = os.urandom(LARGE)
        reader = await begun(fetching, port, fields)
        head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 10)
        assert head.startswith(b"HTTP/1.1 200 ")
        assert await asyncio.wait_for(reader.readexactly(LARGE), 30) == origin.body
        assert len(origin.asked) == count


@pytest.mark.parametrize("size", [10, LARGE])
async def test_fields_for_one_connection_reach_no_program(fetching, size):
    """Answer with fields for the gateway alone: they were kept, and reached the next user."""
    origin = Origin()
    origin.body = bytes(size)
    origin.fields += (
        b"Connection: close, X-Hop\r\nX-Hop: 1\r\nProxy-Authenticate: Basic\r\nX-End: 2\r\n"
    )
    head, _ = await got(fetching, await fetching.origin(origin))
    assert b"x-end: 2" in head
    assert b"x-hop" not in head
    assert b"proxy-authenticate" not in head


async def test_an_origin_that_refuses_is_told_as_before(fetching, closed_port):
    head, _ = await got(fetching, closed_port)
    assert head.startswith(b"http/1.1 502")


ODD = [
    b"X-Odd: \xe2\x98\x83 snow\r\n",
    b"X-Odd: \xff\xfe\xe9\r\n",
    b'ETag: "\xe9\xe2\x98\x83"\r\nCache-Control: max-age=600\r\n',
    b"Content-Disposition: attachment; filename=\xf0\x9f\x8e\xb5.mp3\r\nCache-Control: max-age=600\r\n",
]


def open_files():
    return len(list(Path("/proc/self/fd").iterdir()))


@pytest.mark.parametrize("fields", ODD)
@pytest.mark.parametrize("body", [os.urandom(100_000), b"small"], ids=["kept", "passed on"])
async def test_fields_outside_latin_1_reach_the_program_as_they_are(fetching, fields, body):
    origin = Origin()
    origin.fields, origin.body = fields, body
    port = await fetching.origin(origin)
    for _ in range(2):
        head, have = await got(fetching, port)
        assert fields.partition(b"\r\n")[0].lower() in head
        assert have == body
    for each in fetching.fetcher.store.of(client_of(fetching.client.public)):
        assert each.users == 0


@pytest.mark.parametrize("reason", [b"\xe2\x98\x83", b"\xff", b"\xc3\xa9t\xc3\xa9"])
@pytest.mark.parametrize("size", [100_000, 5])
async def test_so_do_reason_phrases(fetching, reason, size):
    origin = Origin()
    origin.status, origin.body = b"200 " + reason, bytes(size)
    head, have = await got(fetching, await fetching.origin(origin))
    assert head.startswith(b"http/1.1 200 ")
    assert have == bytes(size)


async def test_what_fails_at_the_gateway_breaks_and_leaves_nothing_open(fetching, monkeypatch):
    """Whatever fails between opening an object and closing it, the program does not wait for it."""
    origin = Origin()
    port = await fetching.origin(origin)
    await got(fetching, port)
    before = open_files()
    (kept,) = fetching.fetcher.store.of(client_of(fetching.client.public))

    def fails(*_):
        raise RuntimeError("not foreseen")

    for where in ("pread", "open"):
        with monkeypatch.context() as patch:
            patch.setattr(f"cedos.apps.files.objects.object_serving.os.{where}", fails)
            for _ in range(5):
                answer = b""
                with suppress(ConnectionError):
                    answer = await asyncio.wait_for((await begun(fetching, port)).read(), 10)
                assert not answer or answer.startswith(b"HTTP/1.1 502 ")
        for each in fetching.writers:
            each.close()
        await until(lambda: open_files() <= before)
        assert kept.users == 0


def asking(ends, port):
    """A stream with a plain request, which is reset when this is cancelled."""
    head = b"GET / HTTP/1.1\r\nHost: 127.0.0.1:%d\r\n\r\n" % port
    opening = ends.link.open("127.0.0.1", port, lambda stream: stream.write(head), fetch=True)
    return asyncio.create_task(opening)


async def test_programs_that_an_origin_leaves_waiting_end_nothing_for_others(fetching):
    """Also what is kept was not given any more; and what waited was not ended with its program."""
    origin, silent = Origin(), asyncio.Event()
    living = 0

    async def never(reader, _writer):
        nonlocal living
        living += 1
        silent.set()
        with suppress(ConnectionError):
            while await reader.read(65_536):
                pass
        living -= 1

    port, silent_port = await fetching.origin(origin), await fetching.origin(never)
    await got(fetching, port)
    tasks = [asking(fetching, silent_port) for _ in range(PROGRAMS_AT_ONCE // 2)]
    await until(lambda: living == PROGRAMS_AT_ONCE // 2)
    further = await asking(fetching, silent_port)  # it goes to its origin as it is
    await until(lambda: living == PROGRAMS_AT_ONCE // 2 + 1)
    head, _ = await got(fetching, port)
    assert b"age: " in head
    assert len(origin.asked) == 1
    # Streams that are reset take along what waits for them.
    further.drop()
    for task in tasks:
        task.cancel()
    await until(lambda: living == 0)
    client = client_of(fetching.client.public)
    assert not fetching.fetcher._programs[client]._all.locked()


async def test_a_session_that_ends_takes_along_what_waits_for_it(fetching):
    living = 0

    async def never(reader, _writer):
        nonlocal living
        living += 1
        with suppress(ConnectionError):
            while await reader.read(65_536):
                pass
        living -= 1

    port = await fetching.origin(never)
    for _ in range(8):
        await begun(fetching, port)
    await until(lambda: living == 8)
    fetching.link._streams.connection.abort("the client goes")
    await until(lambda: living == 0)


async def test_an_answer_that_is_passed_on_ends_with_its_program(fetching):
    """A stream of events, of which none comes for a long time."""
    living = 0

    async def events(reader, writer):
        nonlocal living
        living += 1
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n: first\n\n")
        with suppress(ConnectionError):
            while await reader.read(65_536):
                pass
        living -= 1

    stream = await asking(fetching, await fetching.origin(events))
    await until(lambda: b"".join(stream.waiting).endswith(b": first\n\n"))
    stream.drop()
    await until(lambda: living == 0)


async def test_a_client_that_ends_no_connection_has_only_so_many(ends, tmp_path):
    """Answers were whole and forgotten, their streams were not: they were without number."""
    fetcher = ObjectFetcher(ObjectStore(tmp_path / "kept", 100_000_000), lambda _host, _port: "")
    ends.requests = ProgramRequests(fetcher)
    await ends.start(most_per_client=4)
    origin = Origin()
    origin.body = b"small"
    port = await ends.origin(origin)
    async with await connect(
        ends.gateway.address, server_key=ends.me.public, key=ends.client, limits=LIMITS
    ) as connection:
        streams = Multiplexer(connection)
        running = asyncio.create_task(streams.run())
        for number in range(6):
            stream = streams.open("127.0.0.1", port, fetch=True)
            stream.write(b"GET /%d HTTP/1.1\r\nHost: 127.0.0.1:%d\r\n\r\n" % (number, port))
            await until(lambda one=stream: one.peer_ended or one.broken is not None)
            assert (stream.broken is None) == (number < 4)
        assert isinstance(stream.broken, RefusedError)
        next(iter(streams.streams.values())).finish()
        await until(lambda: sum(map(len, ends.gateway._sessions.values())) == 3)
        running.cancel()
    await fetcher.close()


async def test_a_program_that_does_not_read_makes_room_for_other_clients(fetching):
    """Two clients whose programs read nothing held all that a gateway keeps, for good."""
    port = await fetching.origin(Origin())
    reader = await begun(fetching, port)
    await reader.readuntil(b"\r\n\r\n")
    store, me = fetching.fetcher.store, client_of(fetching.client.public)
    await until(lambda: any(each.whole and each.users for each in store.of(me)))
    (found,) = store.of(me)
    assert store._give_up(me, None)
    assert not store.of(me)
    with pytest.raises((ConnectionResetError, asyncio.IncompleteReadError)):
        await asyncio.wait_for(reader.readexactly(LARGE), 5)
    await until(lambda: not found.users and not store._open[me])


class CostlyRequests:
    """Answers that cost a processor 3 ms each."""

    def __init__(self, cost):
        self.cost = cost

    async def fetch(self, *_):
        self.cost()
        return NoAnswer()


@pytest.mark.parametrize("asked", ["request", "connection", "packet"])
async def test_what_one_client_asks_for_leaves_the_event_loop_to_others(ends, monkeypatch, asked):
    """Requests for an object with long rules for caches had another client wait for 1.8 s."""
    in_turns = []
    async with counting_turns() as turns:

        def cost(*_):
            in_turns.append(turns())
            time.sleep(0.003)

        ends.requests = CostlyRequests(cost)
        if asked != "request":
            monkeypatch.setattr(DestinationRules, "check", cost)
        await ends.start()
        async with await connect(
            ends.gateway.address, server_key=ends.me.public, key=ends.client, limits=LIMITS
        ) as connection:
            streams = Multiplexer(connection)
            running = asyncio.create_task(streams.run())
            if asked == "packet":
                association = streams.associate()
                await association.accepted()
            for number in range(60):
                if asked == "packet":
                    association.send(f"127.0.0.{number + 1}", 9, b"x")
                    continue
                stream = streams.open("127.0.0.1", 9, fetch=asked == "request")
                stream.write(b"GET / HTTP/1.1\r\nHost: 127.0.0.1:9\r\n\r\n")
            await until(lambda: len(in_turns) == 60)
            assert max(Counter(in_turns).values()) <= 3
            running.cancel()


def test_a_target_that_would_be_asked_in_another_form_goes_to_its_origin_as_it_is():
    """The gateway asked for "/a" where a program said "/a?"."""
    with pytest.raises(ValueError, match="another target"):
        program_url("a.example", 80, b"/a?", [])
    for target in (b"/a/../b?x=%zz", b"//c/.//d?e?f", b"/%2e%2E/%00"):
        assert program_url("a.example", 80, target, []).raw_path_qs.encode() == target

"""Origins that answer anything: an object or a TransferError comes of it, and no other exception."""

import asyncio
import gzip
import zlib
from contextlib import asynccontextmanager

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cedos import web
from cedos.apps.files.objects.object_fetcher import ObjectFetcher
from cedos.apps.files.objects.object_store import ObjectStore
from cedos.errors import TransferError

CLIENT = "a" * 32
BODY = b"x" * 70_000


@asynccontextmanager
async def origin(head):
    """A server that answers everything with this head, and a body; yields its URL."""

    async def serve(reader, writer):
        await reader.readuntil(b"\r\n\r\n")
        writer.write(
            head + b"\r\nContent-Length: %d\r\nConnection: close\r\n\r\n" % len(BODY) + BODY
        )
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/x"
    finally:
        server.close()


async def look_up(name, _asker):
    """Find no name, as without a resolver; a real one may take longer than a test. UnicodeError."""
    name.encode("idna")
    return ()


async def fetched(folder, head):
    """Fetch what the origin has, twice: the second request is about the first one's headers."""
    fetcher = ObjectFetcher(ObjectStore(folder, 1 << 30), lambda _address, _port: "", look_up)
    try:
        async with asyncio.timeout(30), origin(head) as url:
            for _ in range(2):
                found = await fetcher.find(CLIENT, url, "")
                await found.wait_beyond(len(BODY))
            return found
    finally:
        await fetcher.close()


@pytest.mark.parametrize(
    ("head", "words"),
    [
        (b"HTTP/1.1 302 Found\r\nLocation: http://[", "leads to what is no URL"),
        (b"HTTP/1.1 302 Found\r\nLocation: http://a:99999999/", "leads to what is no URL"),
        (b"HTTP/1.1 302 Found\r\nLocation: file:///etc/passwd", "leads to what is no URL"),
        (
            b"HTTP/1.1 302 Found\r\nLocation: http://" + b"a" * 64 + b".test/",
            "leads to what is no URL",
        ),
        (b"HTTP/1.1 302 Found\r\nLocation: http://\xff/", "."),
        (b"HTTP/1.1 302 Found\r\nLocation: http://u:p@127.0.0.1/", "password in it"),
        (b"HTTP/1.1 302 Found", "answers 302 Found"),
        (b"HTTP/1.1 404 \xff\xfe\x1b[2J", "."),
        (
            b"HTTP/1.1 200 OK\r\n" + b"\r\n".join(b"x-%d: y" % n for n in range(300)),
            "cannot be read|128 fields",
        ),
        (b"SSH-2.0-OpenSSH", "cannot be read"),
    ],
)
async def test_what_cannot_be_used_is_refused(tmp_path, head, words):
    with pytest.raises(TransferError, match=words):
        await fetched(tmp_path, head)


@pytest.mark.parametrize(
    "field",
    [
        b'ETag: "\xe9"', b"ETag: \xff\xfe", b'ETag: "' + b"x" * 5000 + b'"', b"X-Odd: \xff\x80",
        b"Last-Modified: Fri, 31 Dec 9999 23:59:59 -1200", b"Last-Modified: \xff",
        b"Date: Mon, 01 Jan 0001 00:00:00 +1200", b"Cache-Control: max-age=" + b"9" * 400,
        b"Age: " + b"9" * 400, b"Vary: \xe9", b"Expires: Sun, 99 Foo 2026 00:00:00 GMT",
    ],
)  # fmt: skip
async def test_odd_fields_spoil_nothing(tmp_path, field):
    found = await fetched(tmp_path, b"HTTP/1.1 200 OK\r\n" + field)
    assert found.have == len(BODY)
    assert found.path.read_bytes() == BODY


NAMES = [b"ETag", b"Location", b"Last-Modified", b"Date", b"Age", b"Cache-Control", b"Vary", b"Expires",
         b"Content-Range", b"Content-Encoding", b"Content-Type", b"X"]  # fmt: skip
VALUES = st.one_of(
    st.binary(max_size=40).map(lambda each: each.replace(b"\r", b"").replace(b"\n", b"")),
    st.sampled_from(
        [b"http://[", b"//\xff:0", b'W/"', b"max-age=-1", b"bytes 0-9/5", b"gzip", b"*"]
    ),
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    status=st.sampled_from([200, 203, 206, 301, 304, 307, 404, 416, 500, 999]),
    reason=st.binary(max_size=12).map(lambda each: each.replace(b"\r", b"").replace(b"\n", b"")),
    fields=st.lists(st.tuples(st.sampled_from(NAMES), VALUES), max_size=5),
)
def test_any_head_is_an_object_or_a_transfer_error(tmp_path_factory, status, reason, fields):
    head = b"\r\n".join(
        [b"HTTP/1.1 %d %s" % (status, reason), *(b": ".join(each) for each in fields)]
    )
    try:
        asyncio.run(fetched(tmp_path_factory.mktemp("objects"), head))
    except TransferError as error:
        if "cannot be used" in str(error):  # it was not parsed in its place
            raise


@asynccontextmanager
async def fetching_of(folder, serve):
    """Yield a function that fetches a URL of a server that serves so, and returns its whole body."""
    fetcher = ObjectFetcher(ObjectStore(folder, 1 << 30), lambda _address, _port: "", look_up)
    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/x"

    async def fetch():
        found = await fetcher.find(CLIENT, url, "")
        with found.path.open("rb") as opened:
            await found.wait_beyond(await found.known_size())
            return opened.read()

    try:
        async with asyncio.timeout(30):
            yield fetch
    finally:
        await fetcher.close()
        server.close()


@pytest.mark.parametrize(
    "field", [b"Cache-Control: no-store", b"Cache-Control: private", b"Set-Cookie: a=b"]
)
async def test_what_is_on_its_way_to_one_only_answers_no_later_one(tmp_path, field):
    asked, go_on = [], asyncio.Event()

    async def serve(reader, writer):
        await reader.readuntil(b"\r\n\r\n")
        asked.append(b"%d" % len(asked))
        writer.write(b"HTTP/1.1 200 OK\r\n" + field + b"\r\nContent-Length: 1\r\n\r\n")
        body = asked[-1]
        await go_on.wait()
        writer.write(body)
        writer.close()

    async with fetching_of(tmp_path, serve) as fetch:
        tasks = [asyncio.create_task(fetch())]
        while not asked:
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.1)
        tasks.append(asyncio.create_task(fetch()))
        await asyncio.sleep(0.2)
        go_on.set()
        assert await asyncio.gather(*tasks) == [b"0", b"1"]


async def test_who_waits_for_what_is_for_one_only_asks_beside_the_others(tmp_path):
    """Ask for all at once, though each answer is one transfer's only."""
    asked = []

    async def serve(reader, writer):
        await reader.readuntil(b"\r\n\r\n")
        asked.append(b"%d" % len(asked))
        body = asked[-1]
        await asyncio.sleep(0.5)
        writer.write(
            b"HTTP/1.1 200 OK\r\nCache-Control: no-store\r\nContent-Length: 1\r\n\r\n" + body
        )
        writer.close()

    async with fetching_of(tmp_path, serve) as fetch:
        begun_s = asyncio.get_running_loop().time()
        got = await asyncio.gather(*(fetch() for _ in range(5)))
        assert sorted(got) == [b"%d" % number for number in range(5)]
        assert asyncio.get_running_loop().time() - begun_s < 1.8  # one after the other: 2.5 s


async def test_who_waited_for_a_question_that_failed_gets_its_failure(tmp_path, monkeypatch):
    """Fail all requests for a URL of a silent origin at once; the last of N waited N times as long."""
    monkeypatch.setattr(web, "SILENCE_S", 0.5)
    asked = []

    async def serve(reader, writer):
        await reader.readuntil(b"\r\n\r\n")
        asked.append(1)
        if len(asked) == 1:
            await reader.read()
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\n1")
        writer.close()

    async with fetching_of(tmp_path, serve) as fetch:
        got = await asyncio.gather(*(fetch() for _ in range(6)), return_exceptions=True)
        assert {str(each) for each in got} == {"127.0.0.1 cannot be asked: no answer in time"}
        assert len(asked) == 1
        assert await fetch() == b"1"  # a later one asks anew


def sends_encoded(coding, body):
    """Return an origin that says that its body has this coding."""

    async def serve(reader, writer):
        await reader.readuntil(b"\r\n\r\n")
        writer.write(
            b'HTTP/1.1 200 OK\r\nETag: "1"\r\nContent-Encoding: ' + coding
            + b"\r\nContent-Length: %d\r\n\r\n" % len(body) + body
        )  # fmt: skip
        writer.close()

    return serve


@pytest.mark.parametrize(
    ("coding", "pack"), [(b"gzip", gzip.compress), (b"DEFLATE", zlib.compress)]
)
async def test_an_encoded_body_is_decoded(tmp_path, coding, pack):
    """A gateway stored gzip as the file, where the direct way decoded it."""
    async with fetching_of(tmp_path, sends_encoded(coding, pack(BODY))) as fetch:
        for _ in range(2):
            assert await fetch() == BODY


@pytest.mark.parametrize(
    ("coding", "body", "why"),
    [
        (b"br", BODY, "encoded as br"),
        (b"gzip", BODY, "is no gzip"),
        (b"gzip", gzip.compress(BODY)[:-20], "broke off"),
        (b"gzip", gzip.compress(bytes(50_000_000)), "beyond all measure"),
    ],
    ids=["unknown", "no gzip", "cut off", "a bomb"],
)
async def test_what_is_wrongly_encoded_is_no_file(tmp_path, coding, body, why):
    async with fetching_of(tmp_path, sends_encoded(coding, body)) as fetch:
        with pytest.raises(TransferError, match=why):
            await fetch()

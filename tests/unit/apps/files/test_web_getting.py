"""Faults of web servers, told in plain words: a transfer is refused if trying again cannot help."""

import asyncio
import gzip
import re
import socket
import zlib
from contextlib import nullcontext, suppress

import pytest
from kit.odd_web_server import AUDIO, OddWebServer
from yarl import URL

from cedos import web
from cedos.apps.files import partial as partial_module
from cedos.apps.files import web_getting
from cedos.apps.files.partial import Partial
from cedos.apps.files.web_getting import LeadingNetworks
from cedos.errors import TransferError, WebError
from cedos.model import NetworkKind
from cedos.session.io.advice import KnownNetwork
from cedos.web import Distance, WebWay

REFUSED = [
    ("circle", "the server redirects in circles"),
    ("ftp", "127.0.0.1 leads to what is no URL of a web server"),
    # It ended `cedos-pod`, at each run, before anything of any server came.
    ("brackets", "127.0.0.1 leads to what is no URL of a web server"),
    ("garbage", "what answers there is no web server"),
    ("status/410", "the server says 410 Reason"),
]
TRIED_AGAIN = [
    ("early", "the server broke off before the end"),
    ("silent", "the server does not answer"),
    ("shut", "the server closed the connection without an answer"),
    ("status/503", "the server says 503 Reason"),
    ("status/429", "the server says 429 Reason"),
]


async def failed(url, folder):
    """As an episode and as a feed."""
    found = []
    partial = Partial(folder / "file", url)
    with pytest.raises(TransferError) as caught:
        await web_getting.fetch(url, partial, WebWay())
    partial.close()
    found.append(caught.value)
    with pytest.raises(TransferError) as caught:
        await web_getting.read(url, 1_000_000, WebWay())
    return [*found, caught.value]


@pytest.mark.parametrize(
    ("path", "why", "again"),
    [(*each, False) for each in REFUSED] + [(*each, True) for each in TRIED_AGAIN],
)
async def test_what_a_server_does_wrong(tmp_path, monkeypatch, path, why, again):
    monkeypatch.setattr(web_getting, "_SILENCE_S", 0.3)
    async with OddWebServer().running() as server:
        for error in await failed(server.url(path), tmp_path):
            assert str(error) == why
            assert isinstance(error, WebError) is again


async def test_an_answer_that_nobody_thought_of_fails_alone(tmp_path, monkeypatch):
    """An error of another kind would end the transfers from all other servers."""
    monkeypatch.setattr(web_getting.AnswerHead, "of", lambda _url, answer: answer.fields)
    async with OddWebServer().running() as server:
        for error in await failed(server.url("good"), tmp_path):
            assert str(error) == "the connection to the server failed"


async def test_who_is_not_there(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    for error in await failed(f"http://127.0.0.1:{port}/x", tmp_path):
        assert isinstance(error, WebError)
        assert str(error) == "the server refused the connection"
    for error in await failed("http://nobody.invalid/x", tmp_path):
        assert isinstance(error, WebError)
        assert re.fullmatch(
            r"there is no server nobody\.invalid|the name nobody\.invalid cannot be looked up now",
            str(error),
        )


@pytest.mark.parametrize("url", [f"http://{'a' * 64}.test/x", "http://a.test:99999/", "http://"])
async def test_no_url_is_refused(tmp_path, url):
    for error in await failed(url, tmp_path):
        assert not isinstance(error, WebError)
        assert str(error) == "its URL cannot be fetched"


async def test_what_is_small_has_a_bound(monkeypatch):
    async with OddWebServer().running() as server:
        assert await web_getting.read(server.url("good"), len(AUDIO), WebWay()) == AUDIO
        with pytest.raises(TransferError, match="more than 100 bytes came"):
            await web_getting.read(server.url("good"), 100, WebWay())


@pytest.mark.parametrize(
    ("head", "body", "whole"),
    [
        (f"X-Policy: {'x' * 20_000}", AUDIO, AUDIO),
        ("Content-Encoding: gzip", gzip.compress(AUDIO), AUDIO),
    ],
    ids=["a long field", "a body that is encoded all the same"],
)
async def test_odd_answers(tmp_path, head, body, whole):
    asked = []

    async def answer(reader, writer):
        asked.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(f"HTTP/1.1 200 OK\r\n{head}\r\nContent-Length: {len(body)}\r\n\r\n".encode())
        writer.write(body)
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        partial = Partial(tmp_path / "file", "")
        heard = []
        await web_getting.fetch(
            f"http://127.0.0.1:{port}/", partial, WebWay(), lambda *each: heard.append(each)
        )
        partial.close()
    assert b"User-Agent: cedos\r\n" in asked[0]
    assert (tmp_path / "file").read_bytes() == whole
    assert heard[-1] == (len(whole), len(whole))


@pytest.fixture
async def answering():
    """Return a function that serves one head and body at an address, and returns the URL."""
    servers = []

    async def serve(head, body=b"", address="127.0.0.1"):
        async def answer(reader, writer):
            await reader.readuntil(b"\r\n\r\n")
            writer.write(f"HTTP/1.1 {head}\r\nConnection: close\r\n\r\n".encode() + body)
            writer.close()

        servers.append(await asyncio.start_server(answer, address, 0))
        return f"http://{address}:{servers[-1].sockets[0].getsockname()[1]}/"

    yield serve
    for each in servers:
        each.close()


@pytest.mark.parametrize(
    ("encoding", "body", "why", "again"),
    [
        (
            "gzip", gzip.compress(bytes(64 << 20)), "the body is compressed beyond all measure",
            False,
        ),
        (
            "deflate", zlib.compress(bytes(64 << 20)), "the body is compressed beyond all measure",
            False,
        ),
        ("gzip", gzip.compress(AUDIO)[:-5], "the server broke off before the end", True),
        ("gzip", AUDIO, "the body is no gzip, which the server says that it is", True),
        ("br", AUDIO, "the body is encoded as br, which nothing here reads", False),
    ],
    ids=["a bomb", "another bomb", "cut off", "no gzip", "unknown"],
)  # fmt: skip
async def test_what_is_wrongly_encoded(tmp_path, answering, encoding, body, why, again):
    url = await answering(f"200 OK\r\nContent-Encoding: {encoding}", body)
    partial = Partial(tmp_path / "file", url)
    with pytest.raises(TransferError) as caught:
        await web_getting.fetch(url, partial, WebWay())
    partial.close()
    assert (str(caught.value), isinstance(caught.value, WebError)) == (why, again)
    if not again:
        assert not list(tmp_path.iterdir())
    with pytest.raises(TransferError):
        await web_getting.read(url, 1_000_000, WebWay())


@pytest.mark.parametrize("end", [b"", b"\x1f", b"\n", b"\x1f\x8b\x08"])
@pytest.mark.parametrize(
    "parts", [[AUDIO[:9], AUDIO[9:]], [AUDIO, b""], [AUDIO[:1], AUDIO[1:2], AUDIO[2:]]]
)
async def test_a_body_has_all_members_of_its_gzip(tmp_path, answering, parts, end):
    """The first of several was taken for the whole episode."""
    url = await answering(
        "200 OK\r\nContent-Encoding: gzip", b"".join(map(gzip.compress, parts)) + end
    )
    partial = Partial(tmp_path / "file", url)
    if len(end) > 2:  # a member that was cut off
        with pytest.raises(WebError, match="broke off"):
            await web_getting.fetch(url, partial, WebWay())
    else:
        await web_getting.fetch(url, partial, WebWay())
        assert (tmp_path / "file").read_bytes() == AUDIO
    partial.close()


async def test_after_a_boot_only_what_was_on_the_disk_goes_on(tmp_path, monkeypatch):
    """After a power failure an episode had zeros where its blocks were not written, and was whole."""
    monkeypatch.setattr(web_getting, "_SURE_BYTES", 1 << 17)
    monkeypatch.setattr(web_getting, "_BLOCK_BYTES", 1 << 16)
    whole, asked = bytes(range(1, 251)) * 2_000, []

    async def answer(reader, writer):
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        found = re.search(r"Range: bytes=(\d+)-", head)
        start = int(found[1]) if found else 0
        asked.append(start)
        status = f"206 P\r\nContent-Range: bytes {start}-499999/500000" if start else "200 OK"
        end = 500_000 if start else 400_000
        writer.write(
            f'HTTP/1.1 {status}\r\nETag: "a"\r\nContent-Length: {500_000 - start}\r\n\r\n'.encode()
        )
        writer.write(whole[start:end])
        await writer.drain()
        writer.close()

    async def fetch():
        partial = Partial(tmp_path / "file", "")
        try:
            await web_getting.fetch(url, partial, WebWay())
        finally:
            partial.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/"
        with pytest.raises(WebError):
            await fetch()
        (part,) = tmp_path.glob("*.part")
        with part.open("ab") as written:  # its last blocks did not reach the disk
            written.write(bytes(5_000))
        had = part.stat().st_size
        monkeypatch.setattr(partial_module, "_boot", lambda: "another")
        await fetch()
    assert (tmp_path / "file").read_bytes() == whole
    assert 1 << 17 <= asked[1] < had


@pytest.mark.parametrize("first", ["/moved?1", "/a", "/file?id=a"])
@pytest.mark.parametrize("then", ["/moved?2", "/file?id=b"])
@pytest.mark.parametrize("validator", ['ETag: "1"', "Last-Modified: Mon, 23 Nov 2026 08:00:00 GMT"])
async def test_a_part_goes_on_only_at_its_own_url(tmp_path, first, then, validator):
    """Two episodes with one validator came out as one file: it says nothing of another URL."""
    asked, led = [], {"/moved?1": "/a", "/moved?2": "/b"}

    async def answer(reader, writer):
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        path = head.split()[1]
        body = path[-1].encode() * 200_000
        start = int((re.search(r"Range: bytes=(\d+)-", head) or [0, 0])[1])
        if path in led:
            status, body, start = f"302 Found\r\nLocation: {led[path]}", b"", 0
        else:
            asked.append((path, start > 0))
            status = "200 OK"
            if start:
                status = f"206 Part\r\nContent-Range: bytes {start}-199999/200000"
        writer.write(
            f"HTTP/1.1 {status}\r\n{validator}\r\nContent-Length: {len(body) - start}\r\n"
            "Connection: close\r\n\r\n".encode()
            + body[start:][: 100_000 if len(asked) < 3 else None]
        )
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        at = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        for path, fails in ((first, True), (then, True), (then, False)):
            partial = Partial(tmp_path / "file", "one episode")
            with pytest.raises(WebError) if fails else nullcontext():
                await web_getting.fetch(at + path, partial, WebWay())
            partial.close()
    assert (tmp_path / "file").read_bytes() == b"b" * 200_000
    assert [ranged for _, ranged in asked] == [False, False, True]


def test_a_part_that_nobody_asked_for_is_not_joined(tmp_path):
    partial = Partial(tmp_path / "file", "one episode")
    partial.begin(0, 'http://a.test/a "1"', 10)
    partial.write(b"aaaaa")
    rest = {"content-range": ["bytes 5-9/10"]}
    with pytest.raises(WebError, match="another part"):
        web_getting._begin(web.AnswerHead(URL("http://a.test/b"), 206, "", rest), partial)
    assert partial.have == 0
    partial.close()


EMPTY_BLOCK = b"\0\0\0\xff\xff"
DRIP = b"a"


@pytest.mark.parametrize(
    ("head", "body", "goes_on", "why"),
    [
        ("200 OK\r\nContent-Encoding: gzip\r\n\r\n", gzip.compress(AUDIO), bytes(1 << 16), None),
        (
            "200 OK\r\nContent-Encoding: deflate\r\n\r\n", b"\x78\x9c", EMPTY_BLOCK * 10_000,
            "the body is encoded into more than it is",
        ),
        ("200 OK\r\nContent-Length: 1000000\r\n\r\n", b"", DRIP, "the server does not answer"),
        ("200 OK\r\nX: ", b"", DRIP, "the server does not answer"),
    ],
    ids=["behind its end", "empty blocks", "a body in drops", "a head in drops"],
)  # fmt: skip
async def test_what_has_no_end_ends(tmp_path, monkeypatch, head, body, goes_on, why):
    """A server sent 8.5 GB behind an episode of 1,000 bytes in 34 s; one in drops took days."""
    monkeypatch.setattr(web, "SILENCE_S", 0.5)

    async def answer(reader, writer):
        with suppress(ConnectionError):
            await reader.readuntil(b"\r\n\r\n")
            writer.write(b"HTTP/1.1 " + head.encode() + body)
            while True:
                writer.write(goes_on)
                await writer.drain()
                await asyncio.sleep(0.05 if goes_on == DRIP else 0)
        writer.close()
        ended.set()

    ended = asyncio.Event()
    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/"
        partial = Partial(tmp_path / "file", url)
        error = None
        try:
            await asyncio.wait_for(web_getting.fetch(url, partial, WebWay()), 20)
        except TransferError as raised:
            error = str(raised)
        partial.close()
        await asyncio.wait_for(ended.wait(), 20)
    assert error == why
    assert (tmp_path / "file").exists() is (why is None)


@pytest.mark.parametrize("extension", [50_000, 20])
async def test_what_frames_a_body_is_bounded_and_counted(tmp_path, extension):
    """A server sent 96 MB for an episode of 1,912 bytes: one byte in each chunk of 50 kB."""
    chunk = b"1;" + b"a" * extension + b"\r\nx\r\n"
    sent = 0

    async def answer(reader, writer):
        nonlocal sent
        sent = 0
        with suppress(ConnectionError):
            await reader.readuntil(b"\r\n\r\n")
            writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
            while sent < 40_000_000:
                writer.write(chunk * 4)
                await writer.drain()
                sent += 4 * len(chunk)
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/"
        partial, way = Partial(tmp_path / "file", url), WebWay()
        with pytest.raises(WebError, match="broke off"):
            await web_getting.fetch(url, partial, way)
        assert 1 << 16 < way.received_bytes < 1 << 20
        partial.close()
        with pytest.raises(TransferError):
            await web_getting.read(url, 1_000_000, WebWay())
    assert sent < 20_000_000


async def test_a_head_is_bounded(answering):
    field = "X: " + "a" * 60_000 + "\r\n"
    url = await answering("200 OK\r\n" + field * 50 + "Y: z", b"")
    with pytest.raises(TransferError):
        await web_getting.read(url, 1_000_000, WebWay())


async def test_chunks_of_one_byte_are_a_body(answering):
    url = await answering(
        "200 OK\r\nTransfer-Encoding: chunked", b"1\r\nx\r\n" * 100_000 + b"0\r\n\r\n"
    )
    assert await web_getting.read(url, 1_000_000, WebWay()) == b"x" * 100_000


async def test_a_feed_of_empty_blocks_ends():
    """A server sent 888 MB for a feed of 100 bytes."""
    packer = zlib.compressobj()
    begun = packer.compress(b"<rss>" + bytes(100)) + packer.flush(zlib.Z_SYNC_FLUSH)
    sent = 0

    async def answer(reader, writer):
        nonlocal sent
        with suppress(ConnectionError):
            await reader.readuntil(b"\r\n\r\n")
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Encoding: deflate\r\n\r\n" + begun)
            while sent < 100_000_000:
                writer.write(EMPTY_BLOCK * 10_000)
                await writer.drain()
                sent += 50_000
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/"
        with pytest.raises(TransferError, match="encoded into more than it is"):
            await web_getting.read(url, 8 << 20, WebWay())
    assert sent < 50_000_000


@pytest.mark.parametrize("encoding", ["gzip", "x-gzip", "deflate", "GZIP"])
async def test_a_feed_is_decoded(answering, encoding):
    compress = zlib.compress if encoding == "deflate" else gzip.compress
    url = await answering(f"200 OK\r\nContent-Encoding: {encoding}", compress(AUDIO))
    assert await web_getting.read(url, len(AUDIO), WebWay()) == AUDIO


@pytest.mark.parametrize(
    ("address", "far"),
    [
        ("127.0.0.1", Distance.HOST), ("::1", Distance.HOST), ("0.0.0.0", Distance.HOST),
        ("::ffff:127.0.0.1", Distance.HOST), ("64:ff9b::7f00:1", Distance.HOST),
        ("169.254.169.254", Distance.LINK), ("fe80::1%lo", Distance.LINK),
        ("192.168.1.1", Distance.PRIVATE), ("10.0.0.1", Distance.PRIVATE), ("fd00::1", Distance.PRIVATE),
        ("100.64.0.1", Distance.PRIVATE), ("2002:a00:1::", Distance.PRIVATE),
        ("198.51.100.1", Distance.INTERNET), ("9.9.9.9", Distance.INTERNET),
        ("2620:fe::fe", Distance.INTERNET),
    ],
)  # fmt: skip
def test_how_far_an_address_is(address, far):
    assert web.distance(address) is far


async def test_no_server_leads_to_what_is_nearer(tmp_path, answering, monkeypatch):
    """127.0.0.2 plays a private address, 127.0.0.3 the internet."""
    monkeypatch.setattr(web, "distance", lambda text: Distance(int(text[-1])))
    bodies = {n: await answering("200 OK", AUDIO, f"127.0.0.{n}") for n in (1, 2, 3)}
    for first in (1, 2, 3):
        for second, there in bodies.items():
            redirect = await answering(f"302 Found\r\nLocation: {there}", b"", f"127.0.0.{first}")
            if second >= first:
                assert await web_getting.read(redirect, len(AUDIO), way := WebWay()) == AUDIO
                assert way.least == second, "what this feed names is as far"
                continue
            why = f"127.0.0.{second} is nearer to this host than the server that leads there"
            for error in await failed(redirect, tmp_path):
                assert (str(error), isinstance(error, WebError)) == (why, False)
    back = await answering(f"302 Found\r\nLocation: {bodies[1]}", b"", "127.0.0.3")
    over = await answering(f"302 Found\r\nLocation: {back}", b"", "127.0.0.1")
    with pytest.raises(TransferError, match="nearer to this host"):
        await web_getting.read(over, len(AUDIO), WebWay())
    with pytest.raises(TransferError, match="nearer to this host"):
        await web_getting.read(bodies[1], len(AUDIO), WebWay(least=Distance.PRIVATE))


class Daemon:
    """Says that loopback is a phone."""

    async def learn(self): ...

    def network(self, interface):
        return KnownNetwork(NetworkKind.CELLULAR, metered=True)

    def forget(self): ...

    async def choose(self, question):
        return None

    def last_decision(self, label):
        return None


@pytest.mark.parametrize("there", [True, False])
async def test_a_network_is_metered_where_the_daemon_says_so(there):
    networks = LeadingNetworks(Daemon() if there else None)
    (egress,) = await networks.to("http://127.0.0.1/")
    assert egress.metered is there
    assert (egress.kind is NetworkKind.CELLULAR) is there
    networks.close()


async def test_networks_that_rules_forbid_lead_to_no_server():
    """Podcasts came over them: a socket that is bound to an interface passes the daemon's own rules."""
    asked = []

    def forbids(*about):
        asked.append(about)
        return "your rule 1 for 127.0.0.1: never metered"

    networks = LeadingNetworks()
    networks.forbids = forbids
    with pytest.raises(WebError, match=r"forbidden \(your rule 1"):
        await networks.to("http://127.0.0.1:8001/feed")
    assert set(asked) == {("lo", ("127.0.0.1", 8001), "127.0.0.1")}
    networks.close()


async def test_each_connection_of_a_forbidden_network_is_refused(answering):
    """The rule is for the server that the first one leads to."""
    there = await answering("200 OK\r\nContent-Length: 7", AUDIO[:7], "127.0.0.2")
    redirect = await answering(f"302 Found\r\nLocation: {there}", b"", "127.0.0.1")
    port = int(there.split(":")[2].strip("/"))

    def forbids(interface, server, address):
        asked.append((interface, server, address))
        return "your rule 1" if server == ("127.0.0.2", port) else ""

    asked = []
    with pytest.raises(WebError, match=r"forbidden \(your rule 1\)"):
        await web_getting.read(redirect, 100, WebWay("lo", forbids=forbids))
    assert asked[-1] == ("lo", ("127.0.0.2", port), "127.0.0.2")


@pytest.mark.parametrize("drips", [b"", b"a"])
async def test_a_connection_that_a_rule_forbids_by_now_ends(drips, tmp_path):
    """No byte tells that the rule came: the server may be silent, or slow."""
    asked, ended = [], asyncio.Event()

    async def answer(reader, writer):
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n")
        with suppress(ConnectionError):
            while not reader.at_eof():
                writer.write(drips)
                with suppress(TimeoutError):
                    async with asyncio.timeout(0.1):
                        await reader.read(1)
        writer.close()
        ended.set()

    def forbids(*about):
        asked.append(about)
        return "your rule 1" if len(asked) > 2 else ""

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/"
    partial = Partial(tmp_path / "a", "source")
    async with asyncio.timeout(6.0):
        with pytest.raises(WebError, match="forbidden"):
            await web_getting.fetch(url, partial, WebWay("lo", forbids=forbids))
        await ended.wait()
    partial.close()
    server.close()


async def test_an_unknown_name_is_not_waited_for(monkeypatch):
    async def getaddrinfo(*_arguments, **_options):
        await asyncio.Event().wait()
        return []

    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", getaddrinfo)
    monkeypatch.setattr(web_getting, "_LOOK_UP_S", 0.02)
    networks = LeadingNetworks()
    async with asyncio.timeout(5.0):
        assert "lo" not in {each.interface for each in await networks.to("http://slow.test/")}
    networks.close()


def test_a_way_that_led_on_was_not_refused():
    way = WebWay(least=Distance.PRIVATE)
    with pytest.raises(OSError, match="nearer to this host"):
        way.socket((socket.AF_INET, socket.SOCK_STREAM, 0, "", ("127.0.0.1", 80)))
    way.socket((socket.AF_INET, socket.SOCK_STREAM, 0, "", ("192.168.1.1", 80))).close()
    assert not way.refused


@pytest.mark.parametrize(
    ("url", "good"),
    [
        ("http://[]@/", False), ("http://xn--ss/", False),
        ("https://b\u00fccher.test:8080/a b?c", True), ("http://[2001:db8::1]/", True),
        ("http:///a", False), ("ftp://a.test/", False), ("http://a.test:99999/", False),
        # The look-up of such a host took 0.2 s of a processor, every five seconds for each episode.
        ("http://" + "".join(chr(0x4E00 + 7 * at) for at in range(990)), False),
    ],
)  # fmt: skip
def test_what_cannot_be_asked_for_is_no_url_of_the_web(url, good):
    assert web_getting.is_web(url) is good

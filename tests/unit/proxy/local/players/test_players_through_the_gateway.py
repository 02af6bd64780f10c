"""Players' requests go over a session of their own, others do not; what is carried stays what it is."""

import asyncio
import gzip
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest

from cedos.proxy.local.gateway_link import GatewayLink, GatewayUnreachableError
from cedos.proxy.local.joined_gateway import JoinedGateway
from cedos.proxy.local.local_proxy import Fail, LocalProxy
from cedos.proxy.local.players.known_player import HEAD_BYTES, PATIENCE_S, KnownPlayer
from cedos.proxy.local.players.players import Players
from cedos.session.io import links
from cedos.session.io.path import SessionPath
from cedos.session.sockets.connection import Connection
from tests.unit.proxy.conftest import Ends

pytestmark = pytest.mark.anyio

PLAYLIST = b"#EXTM3U\n#EXT-X-TARGETDURATION:2\n" + b"".join(
    b"#EXTINF:2,\nseg%d.ts\n" % n for n in range(20)
)

MANIFEST = b"""<?xml version="1.0"?>
<MPD xmlns="urn:mpeg:dash:schema:mpd:2011" type="static" mediaPresentationDuration="PT40S"><Period>
  <AdaptationSet mimeType="video/mp4"><SegmentTemplate duration="2" media="seg$Number$.m4s"/>
    <Representation id="v" bandwidth="160000"/></AdaptationSet></Period></MPD>"""


def _packed() -> bytes:
    """A playlist as many servers send it, packed and in chunks."""
    packed = gzip.compress(PLAYLIST, mtime=0)
    parts = [packed[at : at + 30] for at in range(0, len(packed), 30)]
    return b"".join(b"%x\r\n%s\r\n" % (len(each), each) for each in parts) + b"0;last\r\n\r\n"


PACKED = _packed()
CHUNKS = b"7d0\r\n%s\r\n" % (b"c" * 2_000) * 4 + b"0;last\r\n\r\n"
_FULL = b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\nX: %s\r\n\r\n"
ODD = {
    b"/chunks": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + CHUNKS,
    b"/never": b"",
    b"/plain": b"HTTP/1.1 200 OK\r\nContent-Length: 8000\r\n\r\n" + b"p" * 8_000,
    b"/none": b"HTTP/1.1 204 No Content\r\n\r\n",
    b"/same": b"HTTP/1.1 304 Not Modified\r\nContent-Length: 8000\r\n\r\n",
    b"/lost": b"HTTP/1.1 404 Not Found\r\nContent-Length: 4\r\n\r\nlost",
    # To the last byte that may come.
    b"/full": _FULL % (b"y" * (HEAD_BYTES - 1_000 - len(_FULL % b""))) + b"x" * 1_000,
    b"/wide": b"HTTP/1.1 200 OK\r\nX: %s\r\nContent-Length: 10\r\n\r\n0123456789" % (b"y" * 5_000),
}


class Player:
    """A program on one connection, which waits for each answer."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    async def get(self, path: str, said: str = "", method: str = "GET", body: bytes = b"") -> bytes:
        fields = f"CMCD-Request: {said}\r\n" if said else ""
        fields += f"Content-Length: {len(body)}\r\n" if body else ""
        head = f"{method} {path} HTTP/1.1\r\nHost: video.example\r\n{fields}\r\n"
        self.writer.write(head.encode() + body)
        return await self.answer()

    async def answer(self) -> bytes:
        head = await asyncio.wait_for(self.reader.readuntil(b"\r\n\r\n"), 15)
        if b"chunked" in head:
            return await asyncio.wait_for(self.reader.readuntil(b"0;last\r\n\r\n"), 15)
        length = int(head.partition(b"Content-Length: ")[2].partition(b"\r\n")[0])
        return await asyncio.wait_for(self.reader.readexactly(length), 15)


async def origin(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answers with the path, many times; playlists and manifests with one."""
    with suppress(OSError, asyncio.IncompleteReadError):
        while head := await reader.readuntil(b"\r\n\r\n"):
            path = head.split(b" ")[1]
            length = head.partition(b"Content-Length: ")[2].partition(b"\r\n")[0]
            if length:
                await reader.readexactly(int(length))
            if path in ODD:
                writer.write(ODD[path])
                continue
            body = PLAYLIST if path.endswith(b".m3u8") else path * 4_000
            kind = b"video/mp4"
            if path.partition(b"?")[0].endswith((b".mpd", b"/manifest")):
                body, kind = MANIFEST, b"text/xml" if b".mpd" in path else b"application/dash+xml"
            fields = b"Content-Type: %s\r\nContent-Length: %d" % (kind, len(body))
            if path == b"/film/packed":
                fields = b"Content-Type: Audio/MPEGURL; charset=utf-8\r\nContent-Encoding: gzip\r\n"
                fields, body = fields + b"Transfer-Encoding: chunked", PACKED
            body = b"" if head.startswith(b"HEAD ") else body
            writer.write(b"HTTP/1.1 200 OK\r\n%s\r\n\r\n" % fields + body)
            await writer.drain()


class Setting:
    def __init__(self, ends: Ends) -> None:
        self.ends = ends
        self.own: list[GatewayLink] = []
        self.may_use = True

    async def start(self) -> None:
        await self.ends.start()
        gateway = self.ends.gateway
        joined = JoinedGateway(*gateway.address, self.ends.me.public, self.ends.client)

        def make(ready: Callable[[Connection], None], unused_s: float) -> GatewayLink:
            link = GatewayLink(
                joined, None, lambda _: self.may_use, PATIENCE_S, ready=ready, unused_s=unused_s
            )
            self.own.append(link)
            return self.own[-1]

        await self.ends.proxy.close()
        clock = asyncio.get_running_loop().time
        self.players = Players(make, clock)
        self.ends.proxy = LocalProxy(self.ends.link, Fail.CLOSED, players=self.players)

    async def player(self) -> Player:
        return Player(*await self.ends.forward(await self.ends.origin(origin)))

    def known(self) -> KnownPlayer:
        (known,) = self.players
        return known

    def streams(self) -> tuple[int, int]:
        """Those of the common session, and of the first player's own."""
        common = self.ends.link._streams
        own = self.own[0]._streams if self.own else None
        return len(common or ()), len(own or ())

    async def own_stands(self) -> None:
        for _ in range(100):
            if self.own and self.own[0].stands:
                return
            await asyncio.sleep(0.02)
        raise AssertionError("a player has no session of its own")


@pytest.fixture
async def setting(ends: Ends) -> Setting:
    made = Setting(ends)
    await made.start()
    return made


@pytest.fixture
def metered(monkeypatch: pytest.MonkeyPatch) -> None:
    """The only network there is costs something."""
    egress = links.EgressReader._egress

    def found(self: links.EgressReader, link: Any, addresses: set[str]) -> links.Egress:
        return replace(egress(self, link, addresses), metered=True)

    monkeypatch.setattr(links.EgressReader, "_egress", found)


SAID = 'bl=%d,br=400,d=500,ot=v,sid="a"'


async def test_requests_change_the_session_between_two_answers(setting: Setting) -> None:
    player = await setting.player()
    assert await player.get("/page") == b"/page" * 4_000
    assert setting.streams() == (1, 0)
    assert not setting.own
    assert await player.get("/1", SAID % 0) == b"/1" * 4_000  # it does not wait for a session
    await setting.own_stands()
    for n in range(2, 5):
        path = f"/{n}"
        assert await player.get(path, SAID % 9_000) == path.encode() * 4_000
        assert setting.streams() == (0, 1)
    # What changes something is none of a player's; it goes back, and again there.
    assert await player.get("/p", method="POST", body=b"x" * 50) == b"/p" * 4_000
    assert setting.streams() == (1, 0)
    player.writer.close()


async def test_a_players_session_leaves_a_network_that_a_new_rule_forbids(setting: Setting) -> None:
    player = await setting.player()
    await player.get("/1", SAID % 0)
    await setting.own_stands()
    streams = setting.own[0]._streams
    assert streams is not None
    assert streams.connection.paths()
    setting.may_use = False
    setting.players.check_networks()
    async with asyncio.timeout(5):
        while streams.connection.paths():
            await asyncio.sleep(0.02)
    player.writer.close()


@pytest.mark.usefixtures("metered")
async def test_a_phone_may_take_its_time(setting: Setting, monkeypatch: pytest.MonkeyPatch) -> None:
    player = await setting.player()
    await player.get("/1", SAID % 0)
    await setting.own_stands()
    await asyncio.sleep(1.5)
    start = SessionPath.start

    def later(path: SessionPath, first: bytes = b"") -> None:
        after_s = 1.5 if path.facts.metered else 0.0  # at the end that dials
        asyncio.get_running_loop().call_later(after_s, start, path, first)

    monkeypatch.setattr(SessionPath, "start", later)
    assert await player.get("/2", SAID % 0) == b"/2" * 4_000
    assert setting.streams() == (0, 1)
    player.writer.close()


@pytest.mark.usefixtures("metered")
async def test_what_precedes_segments_does_not_bring_them(setting: Setting) -> None:
    player = await setting.player()
    await player.get("/1", SAID % 0)
    await setting.own_stands()
    await asyncio.sleep(0.3)
    await player.get("/2", SAID % 0)
    await asyncio.sleep(1.3)  # it has enough by now
    assert await player.get("/init", 'ot=i,sid="a"') == b"/init" * 4_000
    assert setting.streams() == (1, 0)
    own = setting.own[0]._streams
    assert own is not None
    assert own.connection.waits
    began_s = time.monotonic()
    await player.get("/3", SAID % 6_000)
    assert time.monotonic() - began_s > 1.0
    player.writer.close()


async def test_a_new_connection_of_a_known_player_goes_there_at_once(setting: Setting) -> None:
    first = await setting.player()
    await first.get("/1", SAID % 0)
    await setting.own_stands()
    second = await setting.player()
    assert await second.get("/2", SAID % 9_000) == b"/2" * 4_000
    assert setting.streams() == (1, 1)
    for each in (first, second):
        each.writer.close()


async def test_without_a_session_of_its_own_the_common_one_carries_it(
    setting: Setting, monkeypatch: pytest.MonkeyPatch
) -> None:
    player = await setting.player()
    await player.get("/1", SAID % 0)
    await setting.own_stands()

    async def unreachable(*_: object) -> None:
        raise GatewayUnreachableError("it has gone")

    monkeypatch.setattr(setting.own[0], "open", unreachable)
    for n in range(2, 4):
        path = f"/{n}"
        assert await player.get(path, SAID % 9_000) == path.encode() * 4_000
        assert setting.streams() == (1, 0)
    player.writer.close()


async def test_many_requests_at_once_stay_where_they_are(setting: Setting) -> None:
    player = await setting.player()
    await player.get("/1", SAID % 0)
    await setting.own_stands()
    head = f"GET /%d HTTP/1.1\r\nHost: v\r\nCMCD-Request: {SAID % 9_000}\r\n\r\n"
    player.writer.write((head % 2 + head % 3).encode())
    assert [await player.answer(), await player.answer()] == [b"/2" * 4_000, b"/3" * 4_000]
    assert setting.streams() == (1, 0)
    player.writer.close()


@pytest.mark.usefixtures("metered")
async def test_what_has_enough_waits_and_what_has_not_goes_at_once(setting: Setting) -> None:
    player = await setting.player()
    began_s = time.monotonic()
    await player.get("/1", SAID % 0)
    assert time.monotonic() - began_s < 0.5
    await setting.own_stands()
    await asyncio.sleep(0.3)
    began_s = time.monotonic()
    assert await player.get("/2", SAID % 6_000) == b"/2" * 4_000
    waited_s = time.monotonic() - began_s
    assert 1.5 < waited_s < 6.0 - 1.0
    began_s = time.monotonic()
    await player.get("/3", SAID % 500)
    assert time.monotonic() - began_s < 0.5
    player.writer.close()


class Waiting:
    """A player with enough in store; what it asked for waits, but for the head."""

    def __init__(self, player: Player, setting: Setting) -> None:
        self.player, self.setting = player, setting
        self.asked_s = time.monotonic()

    async def head(self) -> bytes:
        head = await asyncio.wait_for(self.player.reader.readuntil(b"\r\n\r\n"), 5)
        assert 0.4 < time.monotonic() - self.asked_s < 1.5
        return head

    async def nothing_but(self, count: int) -> None:
        """No more comes, nor is there a network for it."""
        await asyncio.wait_for(self.player.reader.readexactly(count), 0.5)
        await asyncio.sleep(0.3)
        streams = self.setting.own[0]._streams
        assert streams is not None
        assert not streams.connection.paths()
        assert streams.connection.waits
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(self.player.reader.read(1), 0.1)


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Heads are due after half a second."""
    monkeypatch.setattr("cedos.proxy.local.players.player._HEAD_DUE_S", 0.5)


async def waiting(setting: Setting, path: str, method: str = "GET") -> Waiting:
    player = await setting.player()
    await player.get("/1", SAID % 0)
    await setting.own_stands()
    await asyncio.sleep(0.3)
    await player.get("/2", SAID % 0)
    await asyncio.sleep(0.1)
    head = f"{method} {path} HTTP/1.1\r\nHost: v\r\nCMCD-Request: {SAID % 8_000}\r\n\r\n"
    player.writer.write(head.encode())
    return Waiting(player, setting)


@pytest.mark.usefixtures("metered", "soon")
async def test_the_head_comes_while_the_body_waits(setting: Setting) -> None:
    found = await waiting(setting, "/3")
    assert b"Content-Length: 8000" in await found.head()
    assert await asyncio.wait_for(found.player.reader.read(10), 0.5) == b"/"  # for Chromium
    streams = setting.own[0]._streams
    assert streams is not None
    (stream,) = streams.streams.values()
    assert stream.received_bytes == HEAD_BYTES
    await found.nothing_but(0)
    assert setting.known().waits
    body = await asyncio.wait_for(found.player.reader.readexactly(7_999), 8)
    assert b"/" + body == b"/3" * 4_000
    assert 1.5 < time.monotonic() - found.asked_s < 8.0
    assert await found.player.get("/4", SAID % 0) == b"/4" * 4_000
    found.player.writer.close()


@pytest.mark.usefixtures("metered", "soon")
async def test_what_is_of_no_type_comes_as_far_as_it_may(setting: Setting) -> None:
    found = await waiting(setting, "/plain")
    head = await found.head()
    await found.nothing_but(HEAD_BYTES - len(head))
    assert await asyncio.wait_for(
        found.player.reader.readexactly(8_000 - HEAD_BYTES + len(head)), 8
    )
    found.player.writer.close()


@pytest.mark.usefixtures("metered", "soon")
async def test_chunks_wait_behind_the_head_too(setting: Setting) -> None:
    found = await waiting(setting, "/chunks")
    assert b"chunked" in await found.head()
    chunks = await asyncio.wait_for(found.player.reader.readuntil(b"0;last\r\n\r\n"), 8)
    assert chunks == CHUNKS
    assert 1.5 < time.monotonic() - found.asked_s < 8.0
    found.player.writer.close()


@pytest.mark.usefixtures("metered", "soon")
@pytest.mark.parametrize(
    ("path", "method", "status", "rest"),
    [
        ("/none", "GET", b"204", b""),
        ("/same", "GET", b"304", b""),
        ("/lost", "GET", b"404", b"lost"),
        ("/full", "GET", b"200", b"x" * 1_000),
        ("/3", "HEAD", b"200", b""),
    ],
)
async def test_what_is_short_comes_whole(
    setting: Setting, path: str, method: str, status: bytes, rest: bytes
) -> None:
    found = await waiting(setting, path, method)
    assert (await found.head()).split(b" ")[1] == status
    assert await asyncio.wait_for(found.player.reader.readexactly(len(rest)), 0.5) == rest
    assert await found.player.get("/4", SAID % 0) == b"/4" * 4_000
    found.player.writer.close()


@pytest.mark.usefixtures("metered", "soon")
async def test_a_head_longer_than_what_may_come_comes_once_the_network_is_there(
    setting: Setting,
) -> None:
    found = await waiting(setting, "/wide")
    head = await asyncio.wait_for(found.player.reader.readuntil(b"\r\n\r\n"), 8)
    assert len(head) > HEAD_BYTES
    assert await asyncio.wait_for(found.player.reader.readexactly(10), 1) == b"0123456789"
    found.player.writer.close()


@pytest.mark.usefixtures("metered", "soon")
async def test_who_gives_up_after_the_head_leaves_nothing_behind(setting: Setting) -> None:
    found = await waiting(setting, "/3")
    await found.head()
    found.player.writer.close()
    await asyncio.sleep(0.3)
    assert setting.streams() == (0, 0)
    assert not setting.known().player.asks


@pytest.mark.usefixtures("metered")
async def test_who_gives_up_leaves_nothing_behind(setting: Setting) -> None:
    player = await setting.player()
    await player.get("/1", SAID % 0)
    await setting.own_stands()
    await asyncio.sleep(0.3)
    asking = asyncio.create_task(player.get("/2", SAID % 60_000))
    await asyncio.sleep(0.3)
    known = setting.known()
    assert known.waits
    assert known.player.asks
    asking.cancel()
    player.writer.close()
    await asyncio.sleep(0.3)
    assert setting.streams() == (0, 0)
    assert not known.waits
    assert not known.player.asks


@pytest.mark.usefixtures("metered")
async def test_who_gives_up_what_is_under_way_leaves_nothing_behind(setting: Setting) -> None:
    player = await setting.player()
    await player.get("/1", SAID % 0)
    await setting.own_stands()
    await asyncio.sleep(0.3)
    await player.get("/2", SAID % 0)  # on its own session from here on
    asking = asyncio.create_task(player.get("/never", SAID % 0))
    await asyncio.sleep(0.3)
    known = setting.known()
    assert known.player.asks
    assert setting.streams() == (0, 1)
    asking.cancel()
    player.writer.close()
    await asyncio.sleep(0.3)
    assert setting.streams() == (0, 0)
    assert not known.player.asks


@pytest.mark.usefixtures("metered")
@pytest.mark.parametrize(
    ("address", "playlist"), [("/film/list.m3u8", PLAYLIST), ("/film/packed", PACKED)]
)
async def test_a_listed_stream_waits_without_a_word(
    setting: Setting, address: str, playlist: bytes
) -> None:
    player = await setting.player()
    assert await player.get(address) == playlist
    for n in range(4):
        await player.get(f"/film/seg{n}.ts")
        if n == 1:
            await setting.own_stands()
            await asyncio.sleep(0.3)
    began_s = time.monotonic()
    await player.get("/film/seg4.ts")
    assert 1.0 < time.monotonic() - began_s < 8.0 - 1.0
    player.writer.close()


@pytest.mark.usefixtures("metered")
@pytest.mark.parametrize("address", ["/film/all.mpd?x=1", "/film/manifest"])
async def test_a_stream_with_a_manifest_waits_without_a_word(
    setting: Setting, address: str
) -> None:
    player = await setting.player()
    assert await player.get(address) == MANIFEST
    for n in range(1, 4):
        await player.get(f"/film/seg{n}.m4s")
        if n == 2:
            await setting.own_stands()
            await asyncio.sleep(0.3)
    known = setting.known()
    began_s = time.monotonic()
    asking = asyncio.create_task(player.get("/film/seg4.m4s"))
    await asyncio.sleep(0.3)
    assert known.waits
    # Three segments of 2 s, less what was played.
    assert 4.0 < known.player.buffered_s(asyncio.get_running_loop().time()) < 6.0
    assert await asking == b"/film/seg4.m4s" * 4_000
    assert 1.0 < time.monotonic() - began_s < 6.0
    player.writer.close()

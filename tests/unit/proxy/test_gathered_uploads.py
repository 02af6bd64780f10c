"""Programs' plain uploads through the proxy: whole at the gateway before their origin sees them."""

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from yarl import URL

from cedos.files.objects.origin_client import OriginClient
from cedos.files.web_uploads.program_uploads import LEAST_BYTES, ProgramUploads
from cedos.files.web_uploads.upload_sender import UploadSender
from cedos.files.web_uploads.upload_store import UploadStore

pytestmark = pytest.mark.anyio

Ends = Any
ANSWER = b"HTTP/1.1 201 Created\r\nX-Own: 1\r\nContent-Length: 2\r\n\r\nok"


class Origin:
    """`begun` counts connections that brought a byte; `got` has whole requests."""

    def __init__(self) -> None:
        self.begun, self.got, self.answer = 0, [], ANSWER
        self.got: list[tuple[bytes, bytes]]

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            head = await reader.readuntil(b"\r\n\r\n")
            self.begun += 1
            if b"chunked" in head.lower():
                body = await reader.readuntil(b"0\r\n\r\n")
            else:
                length = int(head.lower().partition(b"content-length:")[2].split(b"\r\n")[0])
                body = await reader.readexactly(length)
            self.got.append((head, body))
            writer.write(self.answer)
            await writer.drain()


@pytest.fixture
async def uploading(ends: Ends, tmp_path: Path) -> AsyncIterator[Ends]:
    ends.changed = []
    sender = UploadSender(OriginClient(lambda *_: "", fresh=True))
    store = UploadStore(tmp_path / "uploads", 40_000_000)
    ends.store = store

    def changed(_client: str, url: URL) -> None:
        ends.changed.append(url.path)

    ends.uploads = ProgramUploads(store, sender, changed)
    await ends.start()
    # (Loopback is this place: the proxy would go there itself.)
    ends.proxy.goes_direct = lambda _host: False
    yield ends
    await sender.close()
    store.close()


async def asked(ends: Ends, port: int, fields: bytes, method: bytes = b"PUT") -> Any:
    return await ends.ask(
        b"%s http://127.0.0.1:%d/a HTTP/1.1\r\nHost: 127.0.0.1:%d\r\n%s\r\n"
        % (method, port, port, fields)
    )


def length(data: bytes) -> bytes:
    return b"Content-Length: %d\r\n" % len(data)


async def test_the_origin_sees_it_once_it_is_whole(uploading: Ends) -> None:
    origin, data = Origin(), os.urandom(3_000_000)
    port = await uploading.origin(origin)
    reader, writer = await asked(uploading, port, length(data) + b"Cookie: a=b\r\n")
    writer.write(data[:2_900_000])
    await asyncio.sleep(0.4)
    assert origin.begun == 0
    writer.write(data[2_900_000:])
    answer = await asyncio.wait_for(reader.read(), 10)
    writer.close()
    assert answer.startswith(b"HTTP/1.1 201 Created\r\n")
    assert b"\r\nX-Own: 1\r\n" in answer
    assert answer.endswith(b"\r\n\r\nok")
    ((head, body),) = origin.got
    assert head.startswith(b"PUT /a HTTP/1.1\r\n")
    assert b"cookie: a=b\r\n" in head.lower()
    assert head.lower().count(b"via: 1.1 cedos") == 1
    assert body == data
    assert uploading.changed == ["/a"]
    assert not uploading.store._spooled.total()


async def test_who_asks_whether_to_go_on_is_told_by_the_gateway(uploading: Ends) -> None:
    origin, data = Origin(), os.urandom(200_000)
    port = await uploading.origin(origin)
    reader, writer = await asked(uploading, port, length(data) + b"Expect: 100-continue\r\n")
    said = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 10)
    assert said == b"HTTP/1.1 100 Continue\r\n\r\n"
    assert origin.begun == 0
    writer.write(data)
    assert (await asyncio.wait_for(reader.read(), 10)).startswith(b"HTTP/1.1 201 ")
    writer.close()
    assert b"expect" not in origin.got[0][0].lower()
    assert origin.got[0][1] == data


async def test_what_is_small_or_of_unknown_length_goes_on_as_it_comes(uploading: Ends) -> None:
    origin = Origin()
    port = await uploading.origin(origin)
    small = b"x" * (LEAST_BYTES - 1)
    for fields, body in (
        (length(small), small),
        (b"Transfer-Encoding: chunked\r\n", b"3\r\nabc\r\n0\r\n\r\n"),
        (length(bytes(30_000_000)), bytes(30_000_000)),  # more than a client may have here
    ):
        reader, writer = await asked(uploading, port, fields, b"POST")
        writer.write(body[:1])
        while not origin.begun:
            await asyncio.sleep(0.01)  # before it is whole
        origin.begun = 0
        writer.write(body[1:])
        assert (await asyncio.wait_for(reader.read(), 20)).startswith(b"HTTP/1.1 201 ")
        writer.close()
        assert origin.got.pop()[1] == body
    assert uploading.changed == ["/a"] * 3


@pytest.mark.parametrize("goes", ["resets", "ends"])
async def test_a_program_that_ends_in_the_middle_sends_nothing(uploading: Ends, goes: str) -> None:
    origin = Origin()
    reader, writer = await asked(
        uploading, await uploading.origin(origin), b"Content-Length: 200000\r\n"
    )
    writer.write(bytes(150_000))
    await asyncio.sleep(0.2)
    assert uploading.store._spooled.total() == 200_000
    if goes == "resets":
        writer.transport.abort()
    else:
        writer.write_eof()
        with suppress(ConnectionResetError):
            assert await asyncio.wait_for(reader.read(), 10) == b""
    deadline_s = asyncio.get_running_loop().time() + 10
    while uploading.store._spooled.total():
        assert asyncio.get_running_loop().time() < deadline_s
        await asyncio.sleep(0.02)
    writer.close()
    assert origin.begun == 0


async def test_a_gateway_that_begins_anew_goes_on_where_it_was(uploading: Ends) -> None:
    origin, data = Origin(), os.urandom(3_000_000)
    port = await uploading.origin(origin)
    reader, writer = await asked(uploading, port, length(data))
    for begin in range(0, len(data), 1_000_000):
        writer.write(data[begin : begin + 1_000_000])
        await writer.drain()
        await asyncio.sleep(0.2)
        if begin < 2_000_000:
            await uploading.succeed()
            await asyncio.sleep(0.1)
            assert uploading.store._spooled.total() == len(data)
    answer = await asyncio.wait_for(reader.read(), 10)
    writer.close()
    assert answer.startswith(b"HTTP/1.1 201 Created\r\n")
    ((head, body),) = origin.got
    assert head.startswith(b"PUT /a HTTP/1.1\r\n")
    assert body == data
    assert uploading.changed == ["/a"]
    assert not uploading.store._spooled.total()


@pytest.mark.parametrize("method", [b"PUT", b"POST"])
async def test_one_that_was_being_sent_goes_again_if_it_may(uploading: Ends, method: bytes) -> None:
    data, heard, answers = os.urandom(200_000), asyncio.Event(), asyncio.Event()
    origin = Origin()

    async def slow(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if heard.is_set():
            await origin(reader, writer)
        elif await reader.read(100):  # (The first connection only tries whether there is one.)
            heard.set()
            await answers.wait()
        writer.close()

    port = await uploading.origin(slow)
    reader, writer = await asked(uploading, port, length(data), method)
    writer.write(data)
    await asyncio.wait_for(heard.wait(), 10)
    await uploading.succeed()
    answer = await asyncio.wait_for(reader.read(), 10)
    writer.close()
    answers.set()
    if method == b"PUT":
        assert answer.startswith(b"HTTP/1.1 201 Created\r\n")
        assert [body for _, body in origin.got] == [data]
    else:
        assert answer.startswith(b"HTTP/1.1 502 ")
        assert b"whether it has the upload is not known" in answer
        assert not origin.got


async def test_an_origin_that_hangs_up_is_not_asked_twice(uploading: Ends) -> None:
    origin, data = Origin(), bytes(200_000)
    origin.answer = b""
    reader, writer = await asked(uploading, await uploading.origin(origin), length(data), b"POST")
    writer.write(data)
    answer = await asyncio.wait_for(reader.read(), 10)
    writer.close()
    assert answer.startswith(b"HTTP/1.1 502 ")
    assert b"whether it has the upload is not known" in answer
    assert len(origin.got) == 1


async def test_a_refused_port_is_told_before_the_body_is_sent(
    uploading: Ends, closed_port: int
) -> None:
    reader, writer = await asked(uploading, closed_port, b"Content-Length: 9000000\r\n")
    assert (await asyncio.wait_for(reader.read(), 10)).startswith(b"HTTP/1.1 502 ")
    writer.close()

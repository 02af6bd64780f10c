"""An origin with faults drawn by chance: what a client takes for whole was whole there once."""

import asyncio
import gzip
import os
import random
import socket
import struct
from contextlib import suppress

import pytest

from cedos.apps.files import web_getting
from cedos.apps.files.objects import object_fetcher
from cedos.apps.files.objects.object_fetcher import ObjectFetcher
from cedos.apps.files.objects.object_store import ObjectStore
from cedos.apps.files.partial import Partial
from cedos.errors import TransferError
from cedos.web import WebWay

ATTEMPTS = 20
PACKED = b"\x1f\x8b\x08\x00"


class FaultyOrigin:
    """A server of one file in `versions`, which a validator tells apart, or their sizes."""

    def __init__(self, draw):
        self._draw, self.versions = draw, []
        self._tag, self._one_tag = 0, draw.random() < 0.3
        self._kind = draw.choice(["ETag", "ETag", "weak", "Last-Modified", ""])
        self._change()

    def _change(self):
        draw, last = self._draw, len(self.versions[-1]) if self.versions else 0
        sizes = [1, 100, 150_000] if self._one_tag else [0, 1, 100, 150_000, last]
        size = draw.choice(sizes)
        if self._one_tag:  # the same validator for all, of sizes that all differ
            size += 3 * len(self.versions)
        else:
            self._tag += 1
        self.versions.append(draw.randbytes(size))

    def _validator(self):
        if self._kind == "Last-Modified":
            return "Last-Modified", f"Mon, 02 Jan 2023 00:00:{self._tag:02} GMT"
        return "ETag", f'{"W/" * (self._kind == "weak")}"{self._tag}"'

    async def answer(self, reader, writer):
        with suppress(ConnectionError, asyncio.IncompleteReadError, OSError):
            await self._answer((await reader.readuntil(b"\r\n\r\n")).decode(), writer)
        writer.close()

    async def _answer(self, asked, writer):
        draw, honest = self._draw, self._draw.random() < 0.25
        if draw.random() < 0.15 and self._tag < 50:
            self._change()
        body = self.versions[-1]
        name, validator = self._validator()
        fields, status, first, end = (
            [f"{name}: {validator}"] * bool(self._kind),
            "200 OK",
            0,
            len(body),
        )
        packed = not honest and draw.random() < 0.1
        had = int(asked.partition("bytes=")[2].partition("-")[0] or 0)
        fault = (
            "" if honest else draw.choice(["", "", "first", "size", "end", "tag", "all", "gzip"])
        )
        if had and had < len(body) and f"If-Range: {validator}\r\n" in asked and fault != "all":
            packed, status, first, size = fault == "gzip", "206 Partial Content", had, len(body)
            if fault == "first":
                first = min(max(0, had + draw.choice([-100, -1, 1])), size - 1)
            elif fault == "end":
                end = min(size, first + draw.randint(1, 60_000))
            elif fault == "size":
                size += draw.choice([-1, 1, 500])
            elif fault == "tag":
                fields = draw.choice([[], ['ETag: "other"']])
            fields.append(f"Content-Range: bytes {first}-{end - 1}/{size}")
        sent = body[first:end]
        if packed:
            at = draw.randint(0, len(sent))
            sent = gzip.compress(sent[:at]) + gzip.compress(sent[at:])
            fields.append("Content-Encoding: gzip")
        framing = "length" if self._one_tag else draw.choice(["length", "chunked", "connection"])
        if framing == "length":
            fields.append(f"Content-Length: {len(sent) + (draw.random() < 0.1 and not honest)}")
        elif framing == "chunked":
            coded = not honest and draw.random() < 0.1
            sent = gzip.compress(sent) if coded else sent
            fields.append(f"Transfer-Encoding: {'gzip, ' * coded}chunked")
        writer.write("\r\n".join([f"HTTP/1.1 {status}", *fields, "", ""]).encode())
        cut = draw.randrange(len(sent)) if sent and not honest and draw.random() < 0.6 else None
        if framing == "chunked":
            piece = sent[:cut]
            writer.write(
                f"{len(piece):x}\r\n".encode() * bool(piece) + piece + b"\r\n" * bool(piece)
            )
            writer.write(b"0\r\n\r\n" if cut is None else b"")
        else:
            writer.write(sent[:cut])
        await writer.drain()
        if cut is not None and (framing == "connection" or draw.random() < 0.5):
            await asyncio.sleep(0.01)
            one = writer.get_extra_info("socket")
            one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            writer.transport.abort()


async def into_a_file(url, folder):
    for _ in range(ATTEMPTS):
        partial = Partial(folder / "file", "source")
        partial.hash_all()
        with suppress(TransferError):
            await web_getting.fetch(url, partial, WebWay())
        partial.close()
        if (folder / "file").exists():
            yield (folder / "file").read_bytes()
            (folder / "file").unlink()


async def at_a_gateway(url, folder):
    fetcher = ObjectFetcher(ObjectStore(folder / "store", 10**9), lambda *_: "")
    for _ in range(ATTEMPTS):
        number = -1
        with suppress(TransferError, FileNotFoundError):
            found = await fetcher.find("a" * 32, url, "")
            number = os.open(found.path, os.O_RDONLY)
            size = await found.known_size()
            await found.wait_beyond(size)
            body = os.pread(number, size, 0)
            if not body.startswith(PACKED):  # it is passed on as it came
                yield body
        if number >= 0:
            os.close(number)
            fetcher.store.remove("a" * 32, found)
    await fetcher.close()


@pytest.mark.parametrize("seeds", [range(8), pytest.param(range(8, 400), marks=pytest.mark.long)])
@pytest.mark.parametrize("client", [into_a_file, at_a_gateway])
async def test_what_is_whole_is_one_version(client, seeds, tmp_path, monkeypatch):
    """An episode's start, the first member of its gzip and two halves were all taken for whole."""
    monkeypatch.setattr(object_fetcher, "_AGAIN_S", (0.0,) * 6)
    whole = 0
    for seed in seeds:
        origin = FaultyOrigin(random.Random(seed))
        (tmp_path / str(seed)).mkdir()
        async with await asyncio.start_server(origin.answer, "127.0.0.1", 0) as server:
            url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/file"
            async for body in client(url, tmp_path / str(seed)):
                whole += 1
                assert body in origin.versions, seed
    assert whole > 20

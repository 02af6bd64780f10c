"""A gateway that takes uploads, a client of it, and origins that note what they get, over loopback."""

import asyncio
import os

import pytest

from cedos.apps.files.objects.object_fetcher import ObjectFetcher
from cedos.apps.files.objects.object_serving import ObjectServing
from cedos.apps.files.objects.object_store import ObjectStore
from cedos.apps.files.objects.origin_client import OriginClient
from cedos.apps.files.putting import Putting
from cedos.apps.files.server_link import ServerLink
from cedos.apps.files.web_uploads import UploadSender, UploadStore, WebUploads
from cedos.commands.console.waiting_files import WebTarget
from cedos.proxy.gateway.gateway import LIMITS, Gateway, GatewaySettings
from cedos.session.protocol.crypto import KeyPair
from cedos.session.sockets.sockets import connect


class Origin:
    """Notes each request's head and body, and gives the next of `answers`; empty: it hangs up."""

    def __init__(self):
        self.got = []
        self.answers = []
        self.answers_first = False
        self.waits = asyncio.Event()
        self.waits.set()

    async def start(self):
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = int(self._server.sockets[0].getsockname()[1])

    async def _serve(self, reader, writer):
        try:
            head = await reader.readuntil(b"\r\n\r\n")
            (length,) = [
                int(line.partition(b":")[2])
                for line in head.split(b"\r\n")
                if line.lower().startswith(b"content-length:")
            ]
            if self.answers_first:
                writer.write(self.answers.pop(0))
            body = await reader.readexactly(length)
            self.got.append((head, body))
            await self.waits.wait()
            if not self.answers_first:
                writer.write(self.answers.pop(0))
            await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    async def close(self):
        self._server.close()


CREATED = (
    b"HTTP/1.1 201 Created\r\nLocation: /a\r\nContent-Type: text/plain\r\n"
    b"Content-Length: 2\r\n\r\nok"
)


class Uploading:
    """`put` a file as `cedos-put` does; `begin_anew` is what a gateway does that was killed."""

    def __init__(self, folder):
        self.folder = folder
        self.me, self.client = KeyPair(os.urandom(32)), KeyPair(os.urandom(32))
        self.origin = Origin()
        self.most_bytes, self.invited = 1 << 30, True

    def start_gateway(self):
        folder = self.folder
        self.fetcher = ObjectFetcher(ObjectStore(folder / "objects", 1 << 30), lambda *_: "")
        self.store = UploadStore(folder / "uploads", self.most_bytes)
        sender = UploadSender(OriginClient(lambda *_: ""), (0.05, 0.05))
        self.uploads = WebUploads(
            self.store, sender, self.fetcher.invalidate, lambda _client: self.invited
        )
        self.uploads.begin()
        self.gateway = Gateway(
            GatewaySettings(("127.0.0.1", 0), local=True),
            self.me,
            lambda _key: "laptop",
            lambda one: ObjectServing(one, self.fetcher, lambda: True, self.uploads),
        )
        return asyncio.create_task(self._run())

    async def _run(self):
        await self.gateway.open()
        await self.gateway.run()

    async def start(self):
        await self.origin.start()
        self.running = self.start_gateway()
        await asyncio.sleep(0.05)

    async def begin_anew(self):
        for each in self.uploads._sending:
            each.cancel()
        await self.stop()
        self.running = self.start_gateway()
        await asyncio.sleep(0.05)

    async def connect(self, who=None):
        return await connect(
            self.gateway.address, server_key=self.me.public, key=who or self.client, limits=LIMITS,
            timeout_s=5,
        )  # fmt: skip

    def file(self, data, name="photo.jpg"):
        path = self.folder / name
        path.write_bytes(data)
        return path

    @property
    def url(self):
        return f"http://127.0.0.1:{self.origin.port}/in"

    def putting(self, source, *, headers=(), keep_s=60.0, who=None, url=None):
        url = url or self.url
        target = WebTarget(url, [*headers], keep_s)
        body, web = target.prepared(source, url)
        link = ServerLink(lambda: self.connect(who))
        return Putting(body, url, link, 20.0, web), link

    async def put(self, source, **more):
        """TransferError: what became of it, or why not."""
        putting, link = self.putting(source, **more)
        try:
            await asyncio.wait_for(putting.run(), 40)
        finally:
            putting.close()
            await link.close()
        return putting

    async def stop(self):
        self.running.cancel()
        await asyncio.gather(self.running, return_exceptions=True)
        await self.gateway.close()
        await self.uploads.close()
        await self.fetcher.close()

    async def close(self):
        await self.stop()
        await self.origin.close()


@pytest.fixture
async def uploading(tmp_path):
    made = Uploading(tmp_path)
    await made.start()
    yield made
    await made.close()

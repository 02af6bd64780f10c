"""A web server of one process with the test: paths for what goes well and for what does not."""

import asyncio
import re
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

AUDIO = bytes(range(256)) * 400


class OddWebServer:
    """`/good`, `/circle`, `/ftp`, `/brackets`, `/early`, `/silent`, `/shut`, `/garbage`, `/status/503`.

    Others are in `files`.
    """

    def __init__(self) -> None:
        self.port = 0
        self.files: dict[str, bytes] = {"good": AUDIO}
        self.requests: Counter[str] = Counter()
        self.came: list[str] = []
        self._open: set[asyncio.Task[None]] = set()

    def url(self, path: str) -> str:
        return f"http://127.0.0.1:{self.port}/{path}"

    @asynccontextmanager
    async def running(self) -> AsyncIterator["OddWebServer"]:
        server = await asyncio.start_server(self._serve, "127.0.0.1", self.port)
        self.port = server.sockets[0].getsockname()[1]
        try:
            yield self
        finally:
            server.close()
            for each in list(self._open):
                each.cancel()
            await asyncio.gather(*self._open, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._open.add(task)
        try:
            await self._answer(reader, writer)
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass
        finally:
            self._open.discard(task)
            writer.close()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        path = head.split()[1].partition("/")[2]
        self.requests[path] += 1
        self.came.append(path)
        if path in self.files:
            writer.write(_head("200 OK", len(self.files[path])) + self.files[path])
        elif path == "early":
            writer.write(_head("200 OK", len(AUDIO)) + AUDIO[:5000])
        elif path == "circle":
            writer.write(_head("302 Found", 0, "Location: /circle"))
        elif path == "ftp":
            writer.write(_head("302 Found", 0, "Location: ftp://127.0.0.1/file"))
        elif path == "brackets":
            writer.write(_head("302 Found", 0, "Location: http://[]@/file"))
        elif path == "garbage":
            writer.write(b"220 smtp.example ESMTP\r\n\r\n")
        elif path == "silent":
            await asyncio.sleep(1000)
        elif known := re.fullmatch(r"status/(\d+)", path):
            writer.write(_head(f"{known[1]} Reason", 0))
        elif path != "shut":
            writer.write(_head("404 Not Found", 0))
        await writer.drain()


def _head(status: str, size_bytes: int, *more: str) -> bytes:
    fields = [f"HTTP/1.1 {status}", f"Content-Length: {size_bytes}", "Connection: close", *more]
    return "".join(f"{each}\r\n" for each in [*fields, ""]).encode()


def feed_of(*episodes: tuple[str, str]) -> bytes:
    """A feed with such titles and URLs."""
    items = "".join(
        f'<item><title>{title}</title><enclosure url="{url}"/></item>' for title, url in episodes
    )
    return f"<rss><channel><title>Feed</title>{items}</channel></rss>".encode()

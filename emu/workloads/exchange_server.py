"""A server of requests and responses over kept connections, with work to do in between if asked.

    python -m emu.workloads.exchange_server PORT [PASSES]      prints "ready", serves until it is ended

A request says how long the response is to be and how many seconds of recorded speech are to be worked
through first (`emu.meatballs.speech`). A cancelled request is answered only if its response had begun.
All work shares one core, as Python's threads do: that is what server load means here.
"""

import asyncio
import struct
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

from emu.meatballs.speech import RECORDINGS, recognise, recorded

REQUEST = struct.Struct("!BIIIf")
"""Kind, number, bytes that follow, bytes of the response, seconds of speech."""

RESPONSE = struct.Struct("!IIf")
"""Number, bytes that follow, seconds that the work took."""

ASK, CANCEL = 1, 2
_AT_ONCE = 64
_LARGEST_BYTES = 64 << 20


async def serve(port: int, passes: int = 1, host: str = "0.0.0.0") -> None:  # noqa: S104
    """Serves on all addresses until cancelled; each recognition is done `passes` times over."""
    if passes > 1:
        for number in range(RECORDINGS):
            recorded(number)  # what is timed is their recognition
    with ThreadPoolExecutor(_AT_ONCE, "work") as pool:

        async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await _Connection(reader, writer, pool, passes).run()

        server = await asyncio.start_server(handle, host, port)
        print("ready", flush=True)
        async with server:
            await server.serve_forever()


class _Connection:
    def __init__(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        pool: ThreadPoolExecutor,
        passes: int,
    ) -> None:
        self._reader, self._writer, self._pool, self._passes = reader, writer, pool, passes
        self._wanted: dict[int, threading.Event] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        try:
            while True:
                head = await self._reader.readexactly(REQUEST.size)
                kind, number, follows, response_bytes, work_s = REQUEST.unpack(head)
                if kind not in (ASK, CANCEL) or max(follows, response_bytes) > _LARGEST_BYTES:
                    break
                await self._reader.readexactly(follows)
                if kind == CANCEL:
                    if (stop := self._wanted.pop(number, None)) is not None:
                        stop.set()
                    continue
                stop = self._wanted[number] = threading.Event()
                task = asyncio.create_task(self._answer(number, response_bytes, work_s, stop))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)
        except (asyncio.IncompleteReadError, OSError):
            pass  # the client's network has gone
        finally:
            for stop in self._wanted.values():
                stop.set()
            self._writer.close()

    async def _answer(
        self, number: int, response_bytes: int, work_s: float, stop: threading.Event
    ) -> None:
        began_s = time.monotonic()
        if work_s > 0:
            loop = asyncio.get_running_loop()
            passes = self._passes
            await loop.run_in_executor(self._pool, recognise, work_s, number, stop.is_set, passes)
        if stop.is_set():
            return
        self._wanted.pop(number, None)
        took_s = time.monotonic() - began_s if work_s > 0 else 0.0
        self._writer.write(RESPONSE.pack(number, response_bytes, took_s) + bytes(response_bytes))


if __name__ == "__main__":
    asyncio.run(serve(int(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 1))

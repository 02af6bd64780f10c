"""A server of requests and responses over kept connections, with work to do in between if asked.

    python -m emu.workloads.exchange_server PORT [PASSES [CPU]]   prints "ready", serves until it is ended

A request says how long the response is to be and how many seconds of recorded speech are to be worked
through first (`emu.workloads.speech`), by a process of its own, as at the dissertation's server
(4.5.5.2): the kernel shares the processor fairly among them. All are bound to processor CPU where one is
named. A cancelled request's process is ended, and it is answered only if its response had begun.
"""

import asyncio
import multiprocessing
import os
import signal
import struct
import sys
import time
from contextlib import suppress
from multiprocessing.process import BaseProcess

from emu.workloads.speech import RECORDINGS, recognise, recorded

REQUEST = struct.Struct("!BIIIf")
"""Kind, number, bytes that follow, bytes of the response, seconds of speech."""

RESPONSE = struct.Struct("!IIf")
"""Number, bytes that follow, seconds that the work took."""

ASK, CANCEL = 1, 2
_LARGEST_BYTES = 64 << 20
_FORK = multiprocessing.get_context("fork")


async def serve(port: int, passes: int = 1, host: str = "0.0.0.0") -> None:  # noqa: S104
    """Serves until it is told to end; each recognition is done `passes` times over."""
    if (task := asyncio.current_task()) is not None:
        # So that no process outlives it.
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    if passes > 1:
        for number in range(RECORDINGS):
            recorded(number)  # what is timed is their recognition

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await _Connection(reader, writer, passes).run()

    server = await asyncio.start_server(handle, host, port)
    print("ready", flush=True)
    async with server:
        await server.serve_forever()


class _Connection:
    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, passes: int
    ) -> None:
        self._reader, self._writer, self._passes = reader, writer, passes
        self._working: dict[int, BaseProcess] = {}
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
                    if (process := self._working.pop(number, None)) is not None:
                        process.kill()
                elif work_s > 0:
                    task = asyncio.create_task(self._work(number, response_bytes, work_s))
                    self._tasks.add(task)
                    task.add_done_callback(self._tasks.discard)
                else:
                    self._answer(number, response_bytes, 0.0)
        except (asyncio.IncompleteReadError, OSError, asyncio.CancelledError):
            pass  # the client's network has gone, or the server ends
        finally:
            for process in self._working.values():
                process.kill()
            self._working.clear()
            self._writer.close()

    async def _work(self, number: int, response_bytes: int, work_s: float) -> None:
        began_s = time.monotonic()
        process = _FORK.Process(target=recognise, args=(work_s, number, self._passes), daemon=True)
        process.start()
        self._working[number] = process
        ended = asyncio.Event()
        loop = asyncio.get_running_loop()
        loop.add_reader(process.sentinel, ended.set)
        try:
            await ended.wait()
        finally:
            # Cancelled, it is not in there any more.
            wanted = self._working.pop(number, None) is process
            loop.remove_reader(process.sentinel)
            process.kill()
            process.join()
            process.close()
        if wanted:
            self._answer(number, response_bytes, time.monotonic() - began_s)

    def _answer(self, number: int, response_bytes: int, took_s: float) -> None:
        self._writer.write(RESPONSE.pack(number, response_bytes, took_s) + bytes(response_bytes))


def _main(port: int, passes: int = 1, cpu: int | None = None) -> None:
    if cpu is not None:
        os.sched_setaffinity(0, {cpu})
    with suppress(asyncio.CancelledError):
        asyncio.run(serve(port, passes))


if __name__ == "__main__":
    _main(*map(int, sys.argv[1:]))

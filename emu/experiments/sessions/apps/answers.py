"""Requests that are answered: what the three applications have in common.

A request is 16 bytes of head (number, bytes of the answer) and whatever it carries. The answer has the
urgency of the request, and is large where it has more than 4 KB (dissertation, 2.4.1 and 2.4.2).
"""

import asyncio
import struct
from collections.abc import Callable
from typing import Final

from cedos.model import Bulk, Label
from emu.experiments.sessions.apps.link import Link

HEAD: Final = struct.Struct("!QQ")
SMALL_BYTES: Final = 4096 + HEAD.size
_ZEROS: Final = bytes(1 << 24)


class Asking:
    """The client's side: requests by number, answers whenever they come."""

    def __init__(self, link: Link) -> None:
        self._link = link
        self._waiting: dict[int, asyncio.Future[None]] = {}
        self._number = 0
        self._reader = asyncio.get_running_loop().create_task(self._read())

    async def ask(
        self,
        answer_bytes: int,
        label: Label,
        up_bytes: int = 0,
        after: tuple[int, ...] = (),
        thunk: Callable[[], None] | None = None,
    ) -> tuple[int | None, asyncio.Future[None]]:
        """Sends a request; its message's id (see `Link.send`), and a future of the answer."""
        self._number += 1
        number = self._number
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting[number] = done
        data = HEAD.pack(number, answer_bytes) + _ZEROS[:up_bytes]
        irob = await self._link.send(data, label, after, thunk)
        if irob is None:
            self._waiting.pop(number)
        return irob, done

    async def _read(self) -> None:
        while True:
            _, data = await self._link.receive()
            number, _ = HEAD.unpack_from(data)
            done = self._waiting.pop(number)
            if not done.done():
                done.set_result(None)

    def close(self) -> None:
        self._reader.cancel()


async def answer(link: Link) -> None:
    tasks: set[asyncio.Task[None]] = set()

    async def one(label: Label, number: int, size: int) -> None:
        bulk = Bulk.SMALL if size + HEAD.size <= SMALL_BYTES else Bulk.LARGE
        await link.send(HEAD.pack(number, size) + _ZEROS[:size], Label(label.urgency, bulk))

    while True:
        label, data = await link.receive()
        number, size = HEAD.unpack_from(data)
        task = asyncio.get_running_loop().create_task(one(label, number, size))
        tasks.add(task)
        task.add_done_callback(tasks.discard)

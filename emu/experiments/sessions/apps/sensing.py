"""A vehicle's sensors (dissertation, 2.4.3 and 2.5.2.3).

Each second brings 25 KB of raw data and a summary of 4 KB. The vehicle keeps nothing: what cannot be
sent before the next second's data is dropped, the summary then covers both. Three times, five urgent
messages come within seven seconds.

Over a session, raw data are sent after their summary, both in the background; where no network is there
a thunk says when one is. Over TCP, `select` says whether the socket takes data.
"""

import asyncio
import random
import time
from collections.abc import Callable
from typing import Any, Final

from cedos.model import Label
from emu.experiments.sessions.apps.link import (
    BACKGROUND_LARGE,
    BACKGROUND_SMALL,
    FOREGROUND_SMALL,
    Asking,
    Link,
    SessionLink,
    answer,
    connected,
    serving,
)

RAW_BYTES, SUMMARY_BYTES, URGENT_BYTES = 25_000, 4_096, 512
EPISODES, PER_EPISODE, EPISODE_S = 3, 5, 7.0
_ACK_BYTES: Final = 16
_OUTSTANDING: Final = 4
"""Messages of a session on their way at most, two for each second: more would come too late."""


async def server(transport: str, host: str, port: int, key: str) -> None:
    await serving(transport, host, port, key, answer)


def urgent_at_s(duration_s: float, seed: int) -> list[float]:
    """Return when urgent messages come."""
    drawn = random.Random(seed)
    part_s = duration_s / EPISODES
    found = []
    for episode in range(EPISODES):
        begin_s = part_s * episode + drawn.uniform(0.1, 1.0) * max(0.5, part_s - EPISODE_S - 2.0)
        found += sorted(begin_s + drawn.uniform(0.0, EPISODE_S) for _ in range(PER_EPISODE))
    return sorted(found)


async def client(
    transport: str,
    host: str,
    port: int,
    server_key: str,
    seed: int,
    duration_s: float = 60.0,
    scale: float = 1.0,
    parts: tuple[str, ...] = ("urgent", "bulk"),
) -> dict[str, Any]:
    """Return seconds of each urgent message until its answer; bytes of bulk data acknowledged."""
    async with connected(transport, host, port, server_key) as link:
        asking = Asking(link)
        began_s = time.monotonic()
        waits: list[float] = []
        bulk = _Bulk(link, asking, scale)
        tasks = []
        if "urgent" in parts:
            tasks.append(_urgent(asking, began_s, urgent_at_s(duration_s, seed), waits))
        if "bulk" in parts:
            tasks.append(bulk.run(began_s, duration_s))
        await asyncio.gather(*tasks)
        asking.close()
    return {
        "foreground_s": waits,
        "background_s": duration_s,
        "background_bytes": bulk.arrived_bytes,
        "offered_bytes": round(duration_s) * (RAW_BYTES + SUMMARY_BYTES) * scale,
        "deferred": bulk.deferred,
    }


async def _urgent(asking: Asking, began_s: float, at_s: list[float], waits: list[float]) -> None:
    async def one(due_s: float) -> None:
        await asyncio.sleep(max(0.0, began_s + due_s - time.monotonic()))
        sent_s = time.monotonic()
        _, answered = await asking.ask(_ACK_BYTES, FOREGROUND_SMALL, URGENT_BYTES)
        await answered
        waits.append(time.monotonic() - sent_s)

    await asyncio.gather(*map(one, at_s))


class _Bulk:
    def __init__(self, link: Link, asking: Asking, scale: float) -> None:
        self._link, self._asking = link, asking
        self._raw, self._summary = round(RAW_BYTES * scale), round(SUMMARY_BYTES * scale)
        self._outstanding: set[asyncio.Future[None]] = set()
        self._thunk: Callable[[], None] | None = None
        # (TCP's own bound is the socket's buffer.)
        self._most = _OUTSTANDING if isinstance(link, SessionLink) else 1 << 30
        self._late: asyncio.Task[None] | None = None
        self.arrived_bytes = 0
        self.deferred = 0

    async def run(self, began_s: float, duration_s: float) -> None:
        """Run one round a second; messages that arrived by the end count."""
        for second in range(1, round(duration_s) + 1):
            await asyncio.sleep(max(0.0, began_s + second - time.monotonic()))
            if self._thunk is None and self._takes():
                await self._round()

    def _takes(self) -> bool:
        return self._link.ready() and len(self._outstanding) < self._most

    async def _round(self) -> None:
        """Send this second's data, or leave a thunk that sends the newest when a network is there."""
        self._thunk = self._again
        summary = await self._ask(BACKGROUND_SMALL, self._summary, (), self._again)
        if summary is None:
            return
        self._thunk = None
        await self._ask(BACKGROUND_LARGE, self._raw, (summary,))

    def _again(self) -> None:
        self._thunk = None
        self._late = asyncio.get_running_loop().create_task(self._round())

    async def _ask(
        self,
        label: Label,
        size: int,
        after: tuple[int, ...],
        thunk: Callable[[], None] | None = None,
    ) -> int | None:
        irob, done = await self._asking.ask(_ACK_BYTES, label, size, after, thunk)
        if irob is None:
            self.deferred += 1
            return None
        self._outstanding.add(done)

        def arrived(_: asyncio.Future[None]) -> None:
            self._outstanding.discard(done)
            self.arrived_bytes += size

        done.add_done_callback(arrived)
        return irob

"""Three applications (dissertation, 2.4): a remote file system, e-mail, and a vehicle's sensors.

A remote file system under a compiler: each step reads a source file block by block on demand, computes,
and writes a result, which is sent in the background; the server sees modifications in their order. The
paper rebuilds lighttpd on BlueFS; here a script of the same kind of operations with drawn sizes stands
for it. E-mail after a time without network: the headers of all messages first; then a proxy fetches all
messages in the background, while the person chooses five of them and waits for each. Sizes are drawn
evenly over their logarithm; the paper gives only their range. A vehicle's sensors: each second brings
25 KB of raw data and a summary of 4 KB. What cannot be sent before the next second's data is dropped;
the next summary covers both. Three times, five urgent messages come within seven seconds. Over a
session a thunk says when a network is there; over TCP `select` says whether the socket takes data.
"""

import asyncio
import math
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

BLOCK_BYTES: Final = 4096
_ACK_BYTES: Final = 16


async def serve_answers(transport: str, host: str, port: int, key: str) -> None:
    await serving(transport, host, port, key, answer)


async def files(
    transport: str,
    host: str,
    port: int,
    server_key: str,
    seed: int,
    steps: int = 30,
    blocks: tuple[int, int] = (2, 8),
    compute_s: tuple[float, float] = (0.05, 0.15),
    result_bytes: tuple[int, int] = (20_000, 80_000),
    scale: float = 1.0,
) -> dict[str, Any]:
    """Return seconds until the last step is through, and until the server has all results."""
    drawn = random.Random(seed)
    async with connected(transport, host, port, server_key) as link:
        asking = Asking(link)
        began_s = time.monotonic()
        written: list[asyncio.Future[None]] = []
        before: tuple[int, ...] = ()
        total = 0
        for _ in range(steps):
            # The compiler reads one block after the other: a person waits for each.
            for _ in range(drawn.randint(*blocks)):
                _, block = await asking.ask(BLOCK_BYTES, FOREGROUND_SMALL)
                await block
            await asyncio.sleep(drawn.uniform(*compute_s))
            # The result is written in the background, behind the one before.
            size = round(scale * drawn.randint(*result_bytes))
            total += size
            irob, done = await asking.ask(_ACK_BYTES, BACKGROUND_LARGE, size, before)
            assert irob is not None
            before = (irob,)
            written.append(done)
        interactive_s = time.monotonic() - began_s
        await asyncio.gather(*written)
        took_s = time.monotonic() - began_s
        asking.close()
    return {"foreground_s": [interactive_s], "background_s": took_s, "background_bytes": total}


HEADER_BYTES: Final = 400
LEAST_BYTES, MOST_BYTES = 50, 256 * 1024


def sizes(messages: int, scale: float, seed: int) -> list[int]:
    """Return bytes of each message."""
    drawn = random.Random(seed)
    low, high = math.log(LEAST_BYTES), math.log(MOST_BYTES)
    return [round(scale * math.exp(drawn.uniform(low, high))) for _ in range(messages)]


def choices(messages: int, picked: int, seed: int) -> list[int]:
    """Return the messages that the person reads: of the latter two thirds, which are fetched late."""
    return random.Random(seed + 1).sample(range(messages // 3, messages), picked)


async def mail(
    transport: str,
    host: str,
    port: int,
    server_key: str,
    seed: int,
    messages: int = 100,
    picked: int = 5,
    scale: float = 1.0,
    think_s: tuple[float, float] = (0.5, 1.5),
) -> dict[str, Any]:
    """Return seconds of each read, and until all messages are here."""
    bodies, thinking = sizes(messages, scale, seed), random.Random(seed + 2)
    async with connected(transport, host, port, server_key) as link:
        asking = Asking(link)
        # The headers are fetched first, then all messages in the background.
        _, headers = await asking.ask(messages * HEADER_BYTES, FOREGROUND_SMALL)
        await headers
        began_s = time.monotonic()
        here = [(await asking.ask(size, BACKGROUND_SMALL))[1] for size in bodies]
        everything = asyncio.gather(*here)
        ended: list[float] = []
        everything.add_done_callback(lambda _: ended.append(time.monotonic()))
        waits = []
        for number in choices(messages, picked, seed):
            await asyncio.sleep(thinking.uniform(*think_s))
            asked_s = time.monotonic()
            # The person opens a message: ask for it in the foreground, if it is not here yet.
            if not here[number].done():
                _, read = await asking.ask(bodies[number], FOREGROUND_SMALL)
                await asyncio.wait([read, here[number]], return_when=asyncio.FIRST_COMPLETED)
            waits.append(time.monotonic() - asked_s)
        await everything
        await asyncio.sleep(0)
        asking.close()
    return {
        "foreground_s": waits,
        "background_s": ended[0] - began_s,
        "background_bytes": sum(bodies),
    }


RAW_BYTES, SUMMARY_BYTES, URGENT_BYTES = 25_000, 4_096, 512
EPISODES, PER_EPISODE, EPISODE_S = 3, 5, 7.0
# The most pending messages of a session, two for each second. More would arrive too late.
_OUTSTANDING: Final = 4


def urgent_at_s(duration_s: float, seed: int) -> list[float]:
    """Return when urgent messages come."""
    drawn = random.Random(seed)
    part_s = duration_s / EPISODES
    found = []
    for episode in range(EPISODES):
        begin_s = part_s * episode + drawn.uniform(0.1, 1.0) * max(0.5, part_s - EPISODE_S - 2.0)
        found += sorted(begin_s + drawn.uniform(0.0, EPISODE_S) for _ in range(PER_EPISODE))
    return sorted(found)


async def sensing(
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
            return None
        self._outstanding.add(done)

        def arrived(_: asyncio.Future[None]) -> None:
            self._outstanding.discard(done)
            self.arrived_bytes += size

        done.add_done_callback(arrived)
        return irob

"""E-mail after a time without network (dissertation, 2.4.2 and 2.5.2.2).

The headers of all messages first; then a proxy fetches all messages in the background, while the
person chooses five of them by their headers and waits for each. The sizes of messages are drawn evenly
over their logarithm; the paper gives only their range.
"""

import asyncio
import math
import random
import time
from typing import Any, Final

from emu.experiments.sessions.apps.link import (
    BACKGROUND_SMALL,
    FOREGROUND_SMALL,
    Asking,
    answer,
    connected,
    serving,
)

HEADER_BYTES: Final = 400
LEAST_BYTES, MOST_BYTES = 50, 256 * 1024


async def server(transport: str, host: str, port: int, key: str) -> None:
    await serving(transport, host, port, key, answer)


def sizes(messages: int, scale: float, seed: int) -> list[int]:
    """Return bytes of each message."""
    drawn = random.Random(seed)
    low, high = math.log(LEAST_BYTES), math.log(MOST_BYTES)
    return [round(scale * math.exp(drawn.uniform(low, high))) for _ in range(messages)]


def choices(messages: int, picked: int, seed: int) -> list[int]:
    """Return the messages that the person reads: of the latter two thirds, which are fetched late."""
    return random.Random(seed + 1).sample(range(messages // 3, messages), picked)


async def client(
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
        began_s = time.monotonic()
        _, headers = await asking.ask(messages * HEADER_BYTES, FOREGROUND_SMALL)
        await headers
        headers_s = time.monotonic() - began_s
        began_s = time.monotonic()
        here = [(await asking.ask(size, BACKGROUND_SMALL))[1] for size in bodies]
        everything = asyncio.gather(*here)
        ended: list[float] = []
        everything.add_done_callback(lambda _: ended.append(time.monotonic()))
        waits = []
        for number in choices(messages, picked, seed):
            await asyncio.sleep(thinking.uniform(*think_s))
            asked_s = time.monotonic()
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
        "headers_s": headers_s,
    }

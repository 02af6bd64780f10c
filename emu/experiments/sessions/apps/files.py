"""A remote file system under a compiler (dissertation, 2.4.1 and 2.5.2.1).

Each step reads a source file, block by block on demand, computes, and writes a result, which is sent
asynchronously in the background; the server sees modifications in their order. The paper rebuilds
lighttpd on BlueFS; here a script of the same kind of operations with drawn sizes stands for it.
"""

import asyncio
import random
import time
from typing import Any, Final

from emu.experiments.sessions.apps.link import (
    BACKGROUND_LARGE,
    FOREGROUND_SMALL,
    Asking,
    answer,
    connected,
    serving,
)

BLOCK_BYTES: Final = 4096
_ACK_BYTES: Final = 16


async def server(transport: str, host: str, port: int, key: str) -> None:
    await serving(transport, host, port, key, answer)


async def client(
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
        reads: list[float] = []
        total = 0
        for _ in range(steps):
            for _ in range(drawn.randint(*blocks)):
                asked_s = time.monotonic()
                _, block = await asking.ask(BLOCK_BYTES, FOREGROUND_SMALL)
                await block
                reads.append(time.monotonic() - asked_s)
            await asyncio.sleep(drawn.uniform(*compute_s))
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
    return {
        "foreground_s": [interactive_s],
        "background_s": took_s,
        "background_bytes": total,
        "reads_s": [sum(reads) / len(reads), max(reads)],
    }

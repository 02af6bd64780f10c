"""Connections to the control socket: who asks nothing for long makes room for others."""

import asyncio
import time
from collections.abc import Callable, Iterable
from typing import Final

from aiohttp import web
from aiohttp.typedefs import Handler

IDLE_S: Final = 30.0
MOST: Final = 128
_PERIOD_S: Final = 1.0


class OpenConnections:
    """Closes connections without a request under way: after 30 s, or at once beyond 128 of all.

    `living` are the server's own; to be told of requests, it is one of the application's middlewares.
    """

    def __init__(
        self,
        living: Callable[[], Iterable[asyncio.BaseProtocol]],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._living = living
        self._clock = clock
        self._asking: set[object] = set()
        self._idle_since_s: dict[object, float] = {}

    @web.middleware
    async def during(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        await request.read()  # who never sends all of it asks nothing
        protocol = request.protocol
        self._asking.add(protocol)
        try:
            return await handler(request)
        finally:
            self._asking.discard(protocol)
            self._idle_since_s.pop(protocol, None)

    def close_idle(self) -> None:
        now_s = self._clock()
        there = [each for each in self._living() if isinstance(each, web.RequestHandler)]
        idle = [each for each in there if each not in self._asking]
        self._idle_since_s = {each: self._idle_since_s.get(each, now_s) for each in idle}
        idle.sort(key=self._idle_since_s.__getitem__)
        superfluous = max(0, len(there) - MOST)
        for number, each in enumerate(idle):
            if number < superfluous or now_s - self._idle_since_s[each] >= IDLE_S:
                each.force_close()

    async def run(self) -> None:
        while True:
            await asyncio.sleep(_PERIOD_S)
            self.close_idle()

"""DNS questions of clients, which the gateway puts to its own resolvers."""

import asyncio
from collections import Counter
from collections.abc import Callable
from typing import Final

from cedos.proxy.names import NobodyAnswersError, Resolver, failed, read
from cedos.proxy.streams.frames import LARGEST_PACKET, GatewayAnswer, GatewayQuestion

# The lifetime of an answer. After this time the client has asked another resolver.
ANSWER_S: Final = 2.0

MOST: Final = 512
MOST_PER_CLIENT: Final = 64

# Sends a datagram; after so many seconds it is dropped instead.
Say = Callable[[bytes, float], None]


class NameService:
    """A resolver for clients. It drops questions beyond its limits; clients then ask another resolver."""

    def __init__(
        self,
        resolver: Resolver | None = None,
        *,
        most: int = MOST,
        most_per_client: int = MOST_PER_CLIENT,
    ) -> None:
        self._resolver = resolver or Resolver()
        self._most, self._most_per_client = most, most_per_client
        self._tasks: set[asyncio.Task[None]] = set()
        self._per_client: Counter[bytes] = Counter()

    def answer(self, client: bytes, asked: GatewayQuestion, say: Say) -> None:
        if len(self._tasks) >= self._most or self._per_client[client] >= self._most_per_client:
            return
        self._per_client[client] += 1
        task = asyncio.get_running_loop().create_task(self._ask(asked, say))
        self._tasks.add(task)
        task.add_done_callback(lambda done: self._over(done, client))

    def close(self) -> None:
        for task in self._tasks:
            task.cancel()

    async def _ask(self, asked: GatewayQuestion, say: Say) -> None:
        question = read(asked.message)
        if question is None:
            return
        try:
            answer = await self._resolver.ask(asked.message, question)
        except NobodyAnswersError:
            answer = failed(asked.message, question)
        if len(answer) > LARGEST_PACKET:
            answer = failed(asked.message, question)
        say(GatewayAnswer(asked.number, answer).pack(), ANSWER_S)

    def _over(self, task: asyncio.Task[None], client: bytes) -> None:
        self._tasks.discard(task)
        self._per_client[client] -= 1
        if not self._per_client[client]:
            del self._per_client[client]

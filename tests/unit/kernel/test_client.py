"""A pyroute2 socket that failed is closed and replaced; its errors are the system's."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from pyroute2.netlink.exceptions import NetlinkError

from cedos.kernel.netlink_client import Client

pytestmark = pytest.mark.anyio


class PlayedSocket:
    def __init__(self) -> None:
        self.closed = False

    def close(self) -> None:
        self.closed = True


class Sockets(list[PlayedSocket]):
    def __call__(self) -> PlayedSocket:
        self.append(PlayedSocket())
        return self[-1]


async def listed(kernel: Any) -> list[int]:
    return [1, 2]


async def streamed(kernel: Any) -> AsyncIterator[int]:
    async def stream() -> AsyncIterator[int]:
        yield 3
        yield 4

    return stream()


async def refused(kernel: Any) -> list[int]:
    raise NetlinkError(19, "No such device")


async def overflowed(kernel: Any) -> AsyncIterator[int]:
    async def stream() -> AsyncIterator[int]:
        yield 3
        raise OSError(105, "No buffer space available")

    return stream()


async def silent(kernel: Any) -> list[int]:
    await asyncio.sleep(60)
    return []


async def test_one_socket_answers_question_after_question() -> None:
    sockets = Sockets()
    client = Client(sockets)
    assert sockets == []
    assert await client.ask(listed) == [1, 2]
    assert await client.ask(streamed) == [3, 4]
    client.close()
    assert [one.closed for one in sockets] == [True]


@pytest.mark.parametrize(
    ("question", "words"),
    [(refused, "No such device"), (overflowed, "No buffer space"), (silent, "^$")],
)
async def test_a_socket_that_failed_is_replaced(question: Any, words: str) -> None:
    sockets = Sockets()
    client = Client(sockets)
    with pytest.raises(OSError, match=words):  # TimeoutError is one
        await client.ask(question, 0.02)
    assert await client.ask(listed) == [1, 2]
    assert [one.closed for one in sockets] == [True, False]
    client.close()

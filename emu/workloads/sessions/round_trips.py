"""Round trips of one small message at a time: sessions and plain TCP, each used in two ways.

The ways are `callbacks` of the event loop and tasks that `await`. What a way of programming costs is the
same on both sides of a comparison only if both are used in the same way.
"""

import asyncio
import socket
import time
from collections.abc import Callable
from typing import Any, Final

from cedos import session
from emu.workloads.sessions.pair import Peer

SIZE: Final = 100
WAYS: Final = ("callbacks", "await")


async def ask(
    peer: Peer, mode: str, way: str, to: str, port: int, key: str, rounds: int
) -> dict[str, Any]:
    data = bytes(SIZE)
    times: list[float] = []
    if mode == "raw":
        with socket.create_connection((to, port)) as plain:
            made = _CallbackSocket if way == "callbacks" else _AwaitedSocket
            await made(_plain(plain)).ask(data, rounds, times)
        return {"times": times}
    connection = await peer.connect(mode, to, port, key)
    await asyncio.sleep(0.1)  # a new session's own frames are sent by then
    if way == "callbacks":
        await _ask_in_callbacks(connection, data, rounds, times)
    else:
        for _ in range(rounds):
            began_s = time.perf_counter()
            await connection.send(data)
            await connection.receive()
            times.append(time.perf_counter() - began_s)
    await connection.close()
    return {"times": times}


async def answer(peer: Peer, mode: str, way: str, rounds: int) -> dict[str, Any]:
    if mode == "raw":
        plain, _ = await asyncio.get_running_loop().sock_accept(peer.plain)
        with plain:
            made = _CallbackSocket if way == "callbacks" else _AwaitedSocket
            await made(_plain(plain)).answer(rounds)
        return {}
    connection = await peer.accept()
    if way == "callbacks":
        done = asyncio.get_running_loop().create_future()

        def came() -> None:
            while (message := connection.receive_now()) is not None:
                connection.send_now(message.data, message.label)
            if connection.peer_closed and not done.done():
                done.set_result(None)

        connection.on_change(came)
        came()
        await done
        connection.on_change(None)
    else:
        for _ in range(rounds):
            message = await connection.receive()
            assert message is not None
            await connection.send(message.data, message.label)
    await connection.close()
    return {}


async def _ask_in_callbacks(
    connection: session.Connection, data: bytes, rounds: int, times: list[float]
) -> None:
    done = asyncio.get_running_loop().create_future()
    began_s = time.perf_counter()

    def came() -> None:
        nonlocal began_s
        if connection.receive_now() is None or done.done():
            return
        now_s = time.perf_counter()
        times.append(now_s - began_s)
        began_s = now_s
        if len(times) < rounds:
            connection.send_now(data)
        else:
            done.set_result(None)

    connection.on_change(came)
    connection.send_now(data)
    await done
    connection.on_change(None)


def _plain(connection: socket.socket) -> socket.socket:
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setblocking(False)
    return connection


class _CallbackSocket:
    """A plain socket in callbacks, with nothing in between: whole messages are one segment here."""

    def __init__(self, plain: socket.socket) -> None:
        self._plain = plain
        self._loop = asyncio.get_running_loop()
        self._done: asyncio.Future[None] = self._loop.create_future()

    async def ask(self, data: bytes, rounds: int, times: list[float]) -> None:
        got, began_s = 0, time.perf_counter()

        def came() -> None:
            nonlocal got, began_s
            got += len(self._plain.recv(1 << 16))
            if got < SIZE:
                return
            got = 0
            now_s = time.perf_counter()
            times.append(now_s - began_s)
            began_s = now_s
            if len(times) < rounds:
                self._plain.send(data)
            else:
                self._done.set_result(None)

        await self._until(came, data)

    async def answer(self, _rounds: int) -> None:
        def came() -> None:
            data = self._plain.recv(1 << 16)
            if data:
                self._plain.send(data)
            else:
                self._done.set_result(None)

        await self._until(came, b"")

    async def _until(self, came: Callable[[], None], first: bytes) -> None:
        self._loop.add_reader(self._plain.fileno(), came)
        if first:
            self._plain.send(first)
        await self._done
        self._loop.remove_reader(self._plain.fileno())


class _AwaitedSocket:
    """A plain socket as a task awaits it: a reader that stays, a future for each message.

    The least that asyncio allows; its streams and `sock_recv` take twice as long.
    """

    def __init__(self, plain: socket.socket) -> None:
        self._plain = plain
        self._loop = asyncio.get_running_loop()
        self._came = bytearray()
        self._waiting: asyncio.Future[None] | None = None
        self._loop.add_reader(plain.fileno(), self._readable)

    def _readable(self) -> None:
        self._came += self._plain.recv(1 << 16)
        if self._waiting is not None and len(self._came) >= SIZE:
            waiting, self._waiting = self._waiting, None
            waiting.set_result(None)

    async def _receive(self) -> bytes:
        if len(self._came) < SIZE:
            self._waiting = self._loop.create_future()
            await self._waiting
        data = bytes(self._came[:SIZE])
        del self._came[:SIZE]
        return data

    async def ask(self, data: bytes, rounds: int, times: list[float]) -> None:
        for _ in range(rounds):
            began_s = time.perf_counter()
            self._plain.send(data)
            await self._receive()
            times.append(time.perf_counter() - began_s)
        self._loop.remove_reader(self._plain.fileno())

    async def answer(self, rounds: int) -> None:
        for _ in range(rounds):
            self._plain.send(await self._receive())
        self._loop.remove_reader(self._plain.fileno())

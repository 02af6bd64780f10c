"""Small messages: round trips, and how many a second."""

import asyncio
import socket
import time
from typing import TYPE_CHECKING, Any, Final

from cedos import session
from cedos.model import Label

if TYPE_CHECKING:
    from emu.sessions_bench.peer import Peer

COMMANDS: Final = ("answer", "ask", "count", "flood")
SIZE: Final = 100
_LABEL: Final = Label()


async def ask(peer: "Peer", mode: str, to: str, port: int, key: str, rounds: int) -> dict[str, Any]:
    """Round trips of one message at a time: the seconds of each."""
    data = bytes(SIZE)
    times: list[float] = []
    if mode == "raw":
        with socket.create_connection((to, port)) as plain:
            plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            plain.setblocking(False)
            trip = _Trip(asyncio.get_running_loop(), plain, data, rounds, times)
            await trip.done
        return {"times": times}
    connection = await session.connect(
        (to, port), server_key=bytes.fromhex(key), key=peer.key, clear=mode == "clear"
    )
    for _ in range(rounds):
        began_s = time.perf_counter()
        await connection.send(data, _LABEL)
        await connection.receive()
        times.append(time.perf_counter() - began_s)
    await connection.close()
    return {"times": times}


async def answer(peer: "Peer", mode: str, rounds: int) -> dict[str, Any]:
    """Sends each message back."""
    if mode == "raw":
        assert peer.raw is not None
        plain, _ = await asyncio.get_running_loop().sock_accept(peer.raw)
        with plain:
            plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            await _Echo(asyncio.get_running_loop(), plain).done
        return {}
    assert peer.listener is not None
    connection = await peer.listener.accept()
    for _ in range(rounds):
        message = await connection.receive()
        assert message is not None
        await connection.send(message.data, message.label)
    await connection.close()
    return {}


class _Trip:
    """Round trips over a plain socket, on the loop as a session's are: callbacks, no task in between."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        plain: socket.socket,
        data: bytes,
        rounds: int,
        times: list[float],
    ) -> None:
        self._loop, self._plain, self._data, self._left = loop, plain, data, rounds
        self._times = times
        self._got = 0
        self.done: asyncio.Future[None] = loop.create_future()
        loop.add_reader(plain.fileno(), self._readable)
        self._send()

    def _send(self) -> None:
        self._began_s = time.perf_counter()
        self._plain.send(self._data)

    def _readable(self) -> None:
        self._got += len(self._plain.recv(1 << 16))
        if self._got < len(self._data):
            return
        self._got = 0
        self._times.append(time.perf_counter() - self._began_s)
        self._left -= 1
        if self._left:
            self._send()
        else:
            self._loop.remove_reader(self._plain.fileno())
            self.done.set_result(None)


class _Echo:
    """Sends back what comes."""

    def __init__(self, loop: asyncio.AbstractEventLoop, plain: socket.socket) -> None:
        self._loop, self._plain = loop, plain
        self.done: asyncio.Future[None] = loop.create_future()
        plain.setblocking(False)
        loop.add_reader(plain.fileno(), self._readable)

    def _readable(self) -> None:
        data = self._plain.recv(1 << 16)
        if data:
            self._plain.send(data)
        else:
            self._loop.remove_reader(self._plain.fileno())
            self.done.set_result(None)


async def flood(
    peer: "Peer", mode: str, to: str, port: int, key: str, number: int, batch: int
) -> dict[str, Any]:
    """Sends messages as fast as they are taken, `batch` at a time (1: one by one)."""
    connection = await session.connect(
        (to, port), server_key=bytes.fromhex(key), key=peer.key, clear=mode == "clear"
    )
    data = bytes(SIZE)
    many = [data] * batch
    began_s = time.perf_counter()
    if batch == 1:
        for _ in range(number):
            await connection.send(data, _LABEL)
    else:
        for _ in range(number // batch):
            await connection.send_many(many, _LABEL)
    await connection.receive()
    seconds = time.perf_counter() - began_s
    await connection.close()
    return {"seconds": seconds}


async def count(peer: "Peer", number: int) -> dict[str, Any]:
    """Takes so many messages, then says so."""
    assert peer.listener is not None
    connection = await peer.listener.accept()
    left = number
    while left:
        left -= len(await connection.receive_many(4096))
    await connection.send(b"all", _LABEL)
    await connection.close()
    return {}

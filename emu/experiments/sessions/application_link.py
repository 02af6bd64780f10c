"""The link over which an application of the experiments sends: a session, or TCP.

Over TCP a message is its length, its label and its bytes, one after the other, as the dissertation's
unmodified applications ignore networks. A request is 16 bytes of head (number, bytes of the answer) and
its data. The answer has the urgency of the request, and is large where it has more than 4 KB
(dissertation, 2.4.1 and 2.4.2).
"""

import asyncio
import os
import socket
import struct
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any, Final, Protocol

from cedos.errors import SessionError
from cedos.model import Bulk, Label, Urgency
from cedos.session import Connection, connect, listen
from cedos.session.protocol.crypto import KeyPair
from cedos.session.protocol.life import SessionLimits

FOREGROUND_SMALL: Final = Label(Urgency.FOREGROUND, Bulk.SMALL)
FOREGROUND_LARGE: Final = Label(Urgency.FOREGROUND, Bulk.LARGE)
BACKGROUND_SMALL: Final = Label(Urgency.BACKGROUND, Bulk.SMALL)
BACKGROUND_LARGE: Final = Label(Urgency.BACKGROUND, Bulk.LARGE)
LABELS: Final = (FOREGROUND_SMALL, FOREGROUND_LARGE, BACKGROUND_SMALL, BACKGROUND_LARGE)
_HEAD: Final = struct.Struct("!IB")
_READ_BYTES: Final = 1 << 16
_DEADLINE_S: Final = 3600.0
# Limits for the largest scale: a message is one IROB, and the session keeps several.
_LIMITS: Final = SessionLimits(send_bytes=64 << 20, irob_window=32 << 20, irob_bytes=8 << 20)
HEAD: Final = struct.Struct("!QQ")
SMALL_BYTES: Final = 4096 + HEAD.size
_ZEROS: Final = bytes(1 << 24)


class Link(Protocol):
    async def send(
        self,
        data: bytes,
        label: Label,
        after: tuple[int, ...] = (),
        thunk: Callable[[], None] | None = None,
    ) -> int | None:
        """Send a message; its id, which later ones may name in `after`; None: the thunk was kept."""

    async def receive(self) -> tuple[Label, bytes]:
        """Return the next message that may be delivered."""

    def ready(self) -> bool:
        """Return whether a message handed over now would begin to leave (`select` would say writable)."""

    async def close(self) -> None:
        """End it once everything has arrived."""


class SessionLink:
    """Messages are IROBs with their labels, in no order but where `after` asks for one.

    Args:
        labels: False: all messages have the same label.
    """

    def __init__(self, connection: Connection, labels: bool) -> None:
        self.connection = connection
        self._labels = labels

    async def send(
        self,
        data: bytes,
        label: Label,
        after: tuple[int, ...] = (),
        thunk: Callable[[], None] | None = None,
    ) -> int | None:
        told = label if self._labels else BACKGROUND_LARGE
        return await self.connection.send(data, told, after=after, thunk=thunk)

    async def receive(self) -> tuple[Label, bytes]:
        """EOFError when the other end has closed."""
        message = await self.connection.receive()
        if message is None:
            raise EOFError
        return message.label, message.data

    def ready(self) -> bool:
        """Report True: thunks say what to do without a network."""
        return True

    async def close(self) -> None:
        await self.connection.close()


class TcpLink:
    """Messages in the order in which they were handed over."""

    def __init__(self, plain: socket.socket) -> None:
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        plain.setblocking(False)
        self._socket = plain
        self._loop = asyncio.get_running_loop()
        self._out: deque[bytes] = deque()
        self._writing: asyncio.Task[None] | None = None
        self._got = bytearray()
        self._sent = 0

    async def send(
        self,
        data: bytes,
        label: Label,
        after: tuple[int, ...] = (),
        thunk: Callable[[], None] | None = None,
    ) -> int | None:
        """Return the order is always total, and there is always a network."""
        self._out.append(_HEAD.pack(len(data), LABELS.index(label)) + data)
        self._sent += 1
        if self._writing is None or self._writing.done():
            self._writing = self._loop.create_task(self._write())
        return self._sent

    async def _write(self) -> None:
        while self._out:
            await self._loop.sock_sendall(self._socket, self._out.popleft())

    async def receive(self) -> tuple[Label, bytes]:
        """EOFError when the other end has closed."""
        head = await self._exactly(_HEAD.size)
        size, label = _HEAD.unpack(head)
        return LABELS[label], await self._exactly(size)

    async def _exactly(self, size: int) -> bytes:
        while len(self._got) < size:
            data = await self._loop.sock_recv(self._socket, _READ_BYTES)
            if not data:
                raise EOFError
            self._got += data
        found = bytes(self._got[:size])
        del self._got[:size]
        return found

    def ready(self) -> bool:
        return self._writing is None or self._writing.done()

    async def close(self) -> None:
        if self._writing is not None:
            await self._writing
        self._socket.close()


@asynccontextmanager
async def connected(transport: str, host: str, port: int, server_key: str) -> AsyncIterator[Link]:
    """Connect a client's link: `session`, `unlabelled` or `tcp`."""
    if transport == "tcp":
        plain = socket.socket()
        plain.setblocking(False)
        await asyncio.get_running_loop().sock_connect(plain, (host, port))
        yield TcpLink(plain)
        plain.close()
        return
    connection = await connect(
        (host, port),
        server_key=bytes.fromhex(server_key),
        key=KeyPair(os.urandom(32)),
        deadline=_DEADLINE_S,
        timeout_s=None,
        limits=_LIMITS,
    )
    yield SessionLink(connection, transport == "session")
    connection.abort("the trial is over")


async def serving(
    transport: str, host: str, port: int, key: str, serve: Callable[[Link], Any]
) -> None:
    """Serve every client that comes, for ever."""
    running: set[asyncio.Task[None]] = set()

    async def one(link: Link) -> None:
        with suppress(EOFError, OSError, SessionError):  # the client ends it
            await serve(link)

    def begin(link: Link) -> None:
        task = asyncio.get_running_loop().create_task(one(link))
        running.add(task)
        task.add_done_callback(running.discard)

    if transport == "tcp":
        listening = socket.create_server((host, port))
        listening.setblocking(False)
        while True:
            plain, _ = await asyncio.get_running_loop().sock_accept(listening)
            begin(TcpLink(plain))
    listener = await listen((host, port), key=KeyPair(bytes.fromhex(key)), limits=_LIMITS)
    while True:
        begin(SessionLink(await listener.accept(), transport == "session"))


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
        """Send a request; its message's id (see `Link.send`), and a future of the answer."""
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

"""Where other nodes bring connections of clients whose sessions live at this one."""

import asyncio
import os
import socket
from collections import OrderedDict
from collections.abc import Callable
from functools import partial
from typing import Final

import structlog

from cedos.kernel.process.open_files import OUT_OF_FILES
from cedos.proxy.gateway.nodes import node_messages
from cedos.proxy.gateway.nodes.node_figures import NodeFigures
from cedos.proxy.gateway.nodes.sealed_values import SealedValues
from cedos.session.sockets.listener import open_listening
from cedos.session.sockets.shared_flows import HeardFlow

MOST: Final = 512
"""Connections that have not asked yet: what a few nodes have at most (`passed_connections.MOST_ASKS`). Of
more the oldest goes, as a node asks at once."""

_BURST: Final = 64
_PATIENCE_S: Final = 1.0
_FULL_S: Final = 0.5

_log: Final[structlog.stdlib.BoundLogger] = structlog.get_logger()


class NodeDoor:
    """Listens at an own address from when it is made; `begin`, then `close`. HostError: it cannot.

    A connection is taken only from who has the gateway's key, and only for a session that lives here.
    """

    def __init__(
        self, address: tuple[str, int], values: SealedValues, figures: NodeFigures
    ) -> None:
        self._values, self._figures = values, figures
        self._socket = open_listening(address)
        self._socket.setblocking(False)
        self._loop = asyncio.get_running_loop()
        self._heard: Callable[[bytes], HeardFlow] = lambda _hello: HeardFlow(lives=False)
        self._take: Callable[[socket.socket, str, bytes], None] | None = None
        self._asking: OrderedDict[asyncio.Task[None], None] = OrderedDict()
        self._pause: asyncio.TimerHandle | None = None

    @property
    def address(self) -> tuple[str, int]:
        host, port = self._socket.getsockname()[:2]
        return str(host), int(port)

    def begin(
        self,
        heard: Callable[[bytes], HeardFlow],
        take: Callable[[socket.socket, str, bytes], None],
    ) -> None:
        """As `SharedFlows.accept`."""
        self._heard, self._take = heard, take
        self._listen()

    async def close(self) -> None:
        if self._pause is not None:
            self._pause.cancel()
        if self._socket.fileno() >= 0:
            self._loop.remove_reader(self._socket.fileno())
            self._socket.close()
        asking = list(self._asking)
        for task in asking:
            task.cancel()
        await asyncio.gather(*asking, return_exceptions=True)

    def _listen(self) -> None:
        self._pause = None
        self._loop.add_reader(self._socket.fileno(), self._readable)

    def _readable(self) -> None:
        for _ in range(_BURST):
            try:
                connection, _peer = self._socket.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                if error.errno in OUT_OF_FILES:
                    self._loop.remove_reader(self._socket.fileno())
                    self._pause = self._loop.call_later(_FULL_S, self._listen)
                return
            connection.setblocking(False)
            if len(self._asking) >= MOST:
                oldest, _ = self._asking.popitem(last=False)
                oldest.cancel()
            task = self._loop.create_task(self._serve(connection))
            self._asking[task] = None
            task.add_done_callback(partial(self._asked, connection))

    def _asked(self, connection: socket.socket, done: asyncio.Task[None]) -> None:
        self._asking.pop(done, None)
        if done.cancelled():  # (it may not even have begun)
            connection.close()

    async def _serve(self, connection: socket.socket) -> None:
        try:
            async with asyncio.timeout(_PATIENCE_S):
                challenge = node_messages.GREETING + os.urandom(node_messages.NONCE_BYTES)
                await self._loop.sock_sendall(connection, challenge)
                length = await read_exactly(connection, node_messages.LENGTH_BYTES)
                sealed = await read_exactly(connection, node_messages.sealed_bytes(length))
            nonce, address, hello = node_messages.asked(self._values, challenge, sealed)
        except (OSError, TimeoutError, ValueError) as error:
            _log.debug("no node asks at the port for nodes", why=str(error))
            self._figures.strangers += 1
            connection.close()
            return
        heard = self._heard(hello)
        said = node_messages.answer(self._values, challenge, nonce, heard)
        try:
            # (Nothing was sent but the challenge: the kernel takes it whole.)
            taken = connection.send(said) == len(said) and heard.lives
        except OSError:
            taken = False
        if taken and self._take is not None:
            self._figures.passed_in += 1
            self._take(connection, address, hello)
        else:
            connection.close()


async def read_exactly(connection: socket.socket, count: int) -> bytes:
    """Of a non-blocking socket, and no byte more. OSError: it ends before, or breaks."""
    loop, got = asyncio.get_running_loop(), b""
    while len(got) < count:
        more = await loop.sock_recv(connection, count - len(got))
        if not more:
            raise ConnectionAbortedError("it ends too soon")
        got += more
    return got

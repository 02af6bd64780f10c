"""Connections of clients whose sessions live at another node, which they do not reach: carried there.

Nothing of them is read here: what client and node say to each other is sealed from end to end.
"""

import asyncio
import os
import socket
from collections import Counter, OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Final

import structlog

from cedos.kernel import tcp_info
from cedos.kernel.process.open_files import OUT_OF_FILES
from cedos.proxy.gateway.nodes import node_messages
from cedos.proxy.gateway.nodes.node_door import read_exactly
from cedos.proxy.gateway.nodes.node_figures import NodeFigures
from cedos.proxy.gateway.nodes.sealed_values import SealedValues
from cedos.proxy.splice import Tunnel, make_buffer
from cedos.session.io.path import QUIET_S, prepare
from cedos.session.protocol.handshake.limits import HalfOpen, HandshakeLimits
from cedos.session.sockets.shared_flows import HeardFlow, PassedOn

MOST: Final = 1_024
MOST_OF_A_CLIENT: Final = 64
"""Its oldest ones end then: its paths are few, and the other node ends those that are dead."""

MOST_ASKS, MOST_ASKS_OF_AN_ADDRESS = 128, 8
"""Questions to other nodes at once. Who comes too many is closed without a word and tries again: a node
that has no time to answer must not seem dead, or its client would be told that its session is lost."""

_PATIENCE_S: Final = 0.3
"""For a node's host to take the connection, so of a round trip at most; and then beside round trips."""

_ROUND_TRIPS: Final = 2
"""For the challenge, and for the answer."""

_SILENT_S: Final = 1.0
"""A node whose host takes connections, and that says nothing for so long, is not there. Until then its
clients come again: told that their sessions are lost, they would break what lives at a slow node."""

_TOLD_S: Final = 60.0
_FORGOTTEN_S: Final = 10.0
_MOST_SILENT: Final = 64

_UNPROVED: Final = HandshakeLimits(half_open=64, half_open_per_address=8, handshake_s=10.0)
"""Those whose first message was said before: the other node asks for more, and a stranger has no more."""

_QUIET_S, _HALF_S = 3_600.0, 3.0
_SILENCE_MS: Final = 3_000
"""Client and other node hear of each other only what this one's kernel takes for them: so either must
learn from here that the other is dead."""

_ASKS_AFTER_S: Final = 1
"""Of the other node, where nothing is said, and so often: two questions are lost before `_SILENCE_MS`."""

_RECEIVED_BYTES: Final = 1 << 17
_UNSENT_BYTES: Final = 1 << 16
"""What waits here can go over no other network, and nothing more urgent before it."""

_TCP_USER_TIMEOUT: Final = 18

_log: Final[structlog.stdlib.BoundLogger] = structlog.get_logger()


def _round_trip_s(connection: socket.socket) -> float:
    """As the kernel saw it when it connected."""
    info = tcp_info.tcp_info(connection)
    return 0.0 if info is None else min(info.rtt_s or 0.0, _PATIENCE_S)


class _UnansweredError(Exception):
    """A node has a question, and says nothing."""


class _SilentError(TimeoutError):
    """A node's host has taken a connection, and the node says nothing."""


class PassedConnections:
    """To be made within the event loop; `close` at the end."""

    def __init__(self, values: SealedValues, figures: NodeFigures) -> None:
        self._values, self._figures = values, figures
        self._loop = asyncio.get_running_loop()
        self._buffer = make_buffer()
        self._carrying: set[asyncio.Task[None]] = set()
        self._asks: Counter[str] = Counter()
        self._of_client: dict[bytes, OrderedDict[Tunnel, None]] = {}
        self._unproved: HalfOpen[Tunnel] = HalfOpen(_UNPROVED)
        self._told_s = float("-inf")
        # Since when nodes say nothing, and when they were asked last.
        self._silent: OrderedDict[tuple[str, int], tuple[float, float]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._carrying)

    async def pass_on(
        self, place: tuple[str, int], connection: socket.socket, address: str, hello: bytes
    ) -> PassedOn:
        """As `SharedFlows.pass_on`."""
        asks = self._asks.total()
        if (
            asks >= MOST_ASKS
            or self._asks[address] >= MOST_ASKS_OF_AN_ADDRESS
            or len(self._carrying) + asks >= MOST
        ):
            connection.close()
            return PassedOn.DONE
        self._asks[address] += 1
        asked_s = self._loop.time()
        try:
            there, heard = await self._asked(place, address, hello)
        except _UnansweredError:
            # It may take the hello still: whoever else used it would have seen as many attempts.
            connection.close()
            return PassedOn.DONE
        except (OSError, ValueError) as error:
            out_of_files = isinstance(error, OSError) and error.errno in OUT_OF_FILES
            if out_of_files or (
                isinstance(error, _SilentError) and self._may_speak(place, asked_s)
            ):
                connection.close()
                return PassedOn.DONE
            why = str(error) or f"no answer within {_PATIENCE_S:g} s"
            self._tell(place, why)
            return PassedOn.NOT_THERE
        finally:
            self._asks[address] -= 1
            self._asks += Counter()  # (which drops what is 0)
        self._silent.pop(place, None)
        if not heard.lives:
            there.close()
            return PassedOn.NOT_THERE
        task = self._loop.create_task(self._carry(connection, there, address, heard))
        self._carrying.add(task)
        task.add_done_callback(partial(self._over, connection, there))
        return PassedOn.DONE

    def _tell(self, place: tuple[str, int], why: str) -> None:
        # (Anybody may say an old hello as often as they like.)
        if self._loop.time() - self._told_s > _TOLD_S:
            self._told_s = self._loop.time()
            _log.info("a node at which a session lived does not answer", node=place, why=why)

    def _may_speak(self, place: tuple[str, int], asked_s: float) -> bool:
        """Whether a node that says nothing has done so for a moment only."""
        first_s, last_s = self._silent.pop(place, (asked_s, asked_s))
        if asked_s - last_s > _FORGOTTEN_S:
            first_s = asked_s
        self._silent[place] = first_s, max(last_s, asked_s)
        if len(self._silent) > _MOST_SILENT:
            self._silent.popitem(last=False)
        return self._loop.time() - first_s < _SILENT_S

    def _over(
        self, connection: socket.socket, there: socket.socket, done: asyncio.Task[None]
    ) -> None:
        self._carrying.discard(done)
        connection.close()
        there.close()

    async def close(self) -> None:
        carrying = list(self._carrying)
        for task in carrying:
            task.cancel()
        await asyncio.gather(*carrying, return_exceptions=True)

    async def _asked(
        self, place: tuple[str, int], address: str, hello: bytes
    ) -> tuple[socket.socket, HeardFlow]:
        family = socket.AF_INET6 if ":" in place[0] else socket.AF_INET
        there = socket.socket(family, socket.SOCK_STREAM)
        nonce = os.urandom(node_messages.NONCE_BYTES)
        connected = asks = False
        try:
            async with asyncio.timeout(_PATIENCE_S) as limit:
                await self._connect(there, place)
                connected = True
                far_s = _ROUND_TRIPS * _round_trip_s(there)
                limit.reschedule(self._loop.time() + _PATIENCE_S + far_s)
                challenge = await self._challenge(there)
                question = node_messages.question(self._values, challenge, nonce, address, hello)
                asks = True
                await self._loop.sock_sendall(there, question)
                said = await read_exactly(there, node_messages.ANSWER_BYTES)
            return there, node_messages.answered(self._values, challenge, nonce, said)
        except BaseException as error:
            there.close()
            if asks and isinstance(error, TimeoutError):
                raise _UnansweredError from error
            if connected and isinstance(error, TimeoutError):
                raise _SilentError(str(error)) from error
            raise

    async def _connect(self, there: socket.socket, place: tuple[str, int]) -> None:
        prepare(there, asks_after_s=_ASKS_AFTER_S)
        there.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, _ASKS_AFTER_S)
        there.setsockopt(socket.IPPROTO_TCP, _TCP_USER_TIMEOUT, _SILENCE_MS)
        there.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _RECEIVED_BYTES)
        await self._loop.sock_connect(there, place)

    async def _challenge(self, there: socket.socket) -> bytes:
        challenge = await read_exactly(there, node_messages.CHALLENGE_BYTES)
        if not challenge.startswith(node_messages.GREETING):
            raise ValueError("it is no node of this version")
        return challenge

    async def _carry(
        self, connection: socket.socket, there: socket.socket, address: str, heard: HeardFlow
    ) -> None:
        self._figures.passed_on += 1
        try:
            prepare(connection, asks_after_s=QUIET_S)
            connection.setsockopt(socket.IPPROTO_TCP, _TCP_USER_TIMEOUT, _SILENCE_MS)
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _RECEIVED_BYTES)
            tcp_info.wake_below(connection, _UNSENT_BYTES)
            tunnel = Tunnel(connection, there, self._buffer, idle_s=_QUIET_S, half_s=_HALF_S)
            with self._bounded(tunnel, address, heard):
                carried = await tunnel.run()
            _log.debug("a connection of another node's client is over", why=carried.ended)
        except OSError as error:
            _log.debug("a connection of another node's client is over", why=str(error))

    @contextmanager
    def _bounded(self, tunnel: Tunnel, address: str, heard: HeardFlow) -> Iterator[None]:
        """It is counted meanwhile; the oldest one ends where there are too many."""
        if heard.proved:
            theirs = self._of_client.setdefault(heard.host, OrderedDict())
            if len(theirs) >= MOST_OF_A_CLIENT:
                oldest, _ = theirs.popitem(last=False)
                oldest.end("its client has newer ones")
            theirs[tunnel] = None
            try:
                yield
            finally:
                theirs.pop(tunnel, None)
                if not theirs and self._of_client.get(heard.host) is theirs:
                    del self._of_client[heard.host]
            return
        pushed = self._unproved.add(tunnel, address, self._loop.time())
        if pushed is not None:
            pushed.end("newer ones prove nothing either")
        late = self._loop.call_later(_UNPROVED.handshake_s, tunnel.end, "it proved nothing in time")
        try:
            yield
        finally:
            late.cancel()
            self._unproved.done(tunnel)

"""`cedos forward` on the simulated laptop and `cedos gateway` beside the servers, as they are shipped.

Their own code runs in the event loop of `sockets`: sessions with their paths, schedulers and watches,
streams, and the questions to the daemon. Replaced is what it asks the kernel and the daemon's socket.
Programs connect by SOCKS, and send a first block before the gateway has accepted; where it cannot be
reached they are refused, as the policy's `--fail closed` says. Processors' work takes no time.
"""

import asyncio
import socket
from collections.abc import Callable, Coroutine, Mapping, Sequence
from functools import partial
from math import inf
from pathlib import Path
from typing import Any, Final, cast

from structlog.testing import capture_logs

from cedos.api.asking import DaemonChooser
from cedos.api.messages import DecisionMessage
from cedos.api.programs import ChoiceRequest
from cedos.controller.events import ChoiceAsked
from cedos.host.profiler.sizes import SizeHistory
from cedos.model import Direction, NetworkKind
from cedos.model import Network as Facts
from cedos.proxy.gateway.gateway import LIMITS
from cedos.proxy.http import RefusedError
from cedos.proxy.local.carried import CarriedStream
from cedos.proxy.local.gateway_link import GatewayLink, GatewayUnreachableError
from cedos.proxy.local.joined_gateway import JoinedGateway
from cedos.proxy.local.program_request import MOST_FIRST_BYTES
from cedos.proxy.streams.frames import OpenStream
from cedos.proxy.streams.multiplexer import Multiplexer
from cedos.proxy.streams.stream import MOST_CHUNK_BYTES, ProxiedStream
from cedos.selector.decision.case import Sent
from cedos.session.io import driver
from cedos.session.io.links import Egress
from cedos.session.protocol.crypto import KEY_BYTES, KeyPair
from cedos.session.sockets.connection import Connection
from cedos.session.sockets.sockets import listen
from emu.simulator.laptop import SimulatedLaptop
from emu.simulator.link import Clock, Network
from emu.simulator.sockets import Kernel, SimulatedLoop, SimulatedSocket
from emu.testbed.access import ADDRESSES, INTERFACES
from emu.testbed.programs.gateway import GATEWAY, PORT
from emu.testbed.programs.servers import HTTP_PORT
from emu.workloads.mixed import PlannedTransfer

_SERVER, _CLIENT = (KeyPair(bytes([number]) * KEY_BYTES) for number in (1, 2))
_SERVERS_KNOWN: Final = 1_024  # as `cedos forward` remembers


class _Host:
    """The laptop, as sessions ask it: its networks, its foreground data, and its daemon."""

    def __init__(self, clock: Clock, laptop: SimulatedLaptop) -> None:
        self._clock, self._laptop = clock, laptop
        self._foreground_s: dict[int, float] = {}

    # `driver.Host.links`: all networks lead to the gateway.

    def egresses(self, _destination: str) -> tuple[Egress, ...]:
        return tuple(
            Egress(
                each.name, each.index, frozenset({ADDRESSES[each.kind]}), each.kind, each.metered
            )
            for each in self._laptop.facts
            if each.up
        )

    # `driver.Foreground`.

    def on_sent(self, interface: int) -> None:
        self._foreground_s[interface] = self._clock.now_s

    def idle_s(self, interface: int) -> float:
        return self._clock.now_s - self._foreground_s.get(interface, -inf)

    # `driver.WakeWatch`, and all of them.

    def check(self) -> None:
        """Do nothing: the laptop does not sleep."""

    def close(self) -> None:
        """Do nothing: there is nothing to free."""

    # `api.client.ControlClient`.

    def networks(self) -> Sequence[Facts]:
        return self._laptop.facts

    def choose(self, request: ChoiceRequest) -> DecisionMessage:
        sent = None
        if request.sent_over is not None:
            sent = Sent(request.sent_over, request.waited_s)
        asked = ChoiceAsked(
            request.transfer,
            request.redundant,
            request.multipath,
            sent,
            programs=request.programs,
        )
        return DecisionMessage.of(self._laptop.choose(asked))


class _Program:
    """A program at an end of a stream: it sends `data`, and `came` is called after `expected` bytes."""

    def __init__(
        self, stream: ProxiedStream, data: bytes, expected: int, came: "Callable[[_Program], None]"
    ) -> None:
        self._stream, self._came = stream, came
        self._missing = expected
        stream.watch(self._go_on)
        self.send(data)

    def send(self, data: bytes) -> None:
        self._data = memoryview(data)
        self._go_on()

    def _go_on(self) -> None:
        stream = self._stream
        while self._data and (taken := stream.write(self._data[:MOST_CHUNK_BYTES])):
            self._data = self._data[taken:]
        if (count := stream.unread_bytes) > 0:
            self._missing -= count
            stream.on_read(count)
            if self._missing <= 0:
                self._came(self)
        if stream.peer_ended and not self._data:
            stream.finish()


class ProxiedTransfer:
    """A program's transfer through the proxy; its attributes are those of `connection.Transfer`.

    The session carries all transfers together: no `packets` are counted for this one.
    """

    local_ip: Final = "127.0.0.1"
    packets: Final[Mapping[Network, int]] = {}

    def __init__(self, planned: PlannedTransfer) -> None:
        self.ended_s: float | None = None
        self.stopped = False
        self.planned = planned
        self.stream: ProxiedStream | None = None
        size = planned.size_bytes
        up, down = (size, 0) if planned.direction is Direction.UP else (0, size)
        what = f"PUT /upload/{planned.number}" if up else f"GET /bytes/{size}"
        length = f"Content-Length: {up}\r\n" if up else ""
        head = f"{what} HTTP/1.1\r\nHost: {planned.host}\r\nAccept: */*\r\n{length}\r\n"
        self.request = head.encode() + bytes(up)
        self.answer = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % down + bytes(down)


class SimulatedGateway:
    """The proxy on the laptop and the gateway: `begin` transfers while it is `run`."""

    def __init__(
        self, clock: Clock, networks: Mapping[NetworkKind, Network], laptop: SimulatedLaptop
    ) -> None:
        links = {INTERFACES[kind]: network for kind, network in networks.items()}
        self._kernel = Kernel(clock, links, (GATEWAY, PORT), laptop)
        self._host = _Host(clock, laptop)
        self._loop = SimulatedLoop(self._kernel)
        self._link: GatewayLink | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        # The transfers whose streams have not come to the gateway, by session and stream.
        self._asked: dict[tuple[bytes, int], ProxiedTransfer] = {}
        self._session = b""  # that of the stream which is opened now

    def run(self, until_s: float) -> None:
        """Let everything happen up to `until_s`."""
        with capture_logs():  # what it tells people would stand among the results
            try:
                self._loop.run_until_complete(self._run(until_s))
            finally:
                self._loop.close()

    async def _run(self, until_s: float) -> None:
        host = self._host
        sessions = driver.current(
            driver.Host(
                links=lambda _changed: host,
                wake_watch=lambda _woke: host,
                foreground=lambda _directory: host,
                new_socket=lambda *_: SimulatedSocket(self._kernel),
                tcp_info=SimulatedSocket.info,
                unsent_bytes=lambda of: of.unsent_bytes,
                unacknowledged_bytes=lambda of: of.unacknowledged_bytes,
            )
        )
        sessions.acquire(self)
        joined = JoinedGateway(GATEWAY, PORT, _SERVER.public, _CLIENT)
        sizes = SizeHistory(max_hosts=_SERVERS_KNOWN)
        chooser = DaemonChooser(Path(), lambda *_: host)
        self._link = GatewayLink(joined, chooser, sizes=sizes, carried=self._begins)
        self._begin_task(self._serve())
        await asyncio.sleep(until_s - self._loop.time())
        # Nothing of the session outlives the simulation.
        await self._link.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        sessions.release(self)

    def _begin_task(self, work: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.result()  # what went wrong ends the simulation

    # On the laptop.

    def begin(self, planned: PlannedTransfer) -> ProxiedTransfer:
        transfer = ProxiedTransfer(planned)
        self._begin_task(self._carry(transfer))
        return transfer

    def stop(self, transfer: ProxiedTransfer) -> None:
        """End a transfer that took too long."""
        transfer.stopped = True
        if transfer.stream is not None:
            transfer.stream.drop()

    def _begins(self, connection: Connection, _stream: CarriedStream, _decided: object) -> None:
        """Note the session of a stream that begins."""
        self._session = connection.flow_id

    async def _carry(self, transfer: ProxiedTransfer) -> None:
        assert self._link is not None

        early = 0

        def begun(stream: ProxiedStream) -> None:
            nonlocal early
            transfer.stream = stream
            self._asked[self._session, stream.number] = transfer
            early = stream.write(transfer.request[:MOST_FIRST_BYTES])

        try:
            stream = await self._link.open(transfer.planned.host, HTTP_PORT, begun)
        except (GatewayUnreachableError, RefusedError):
            transfer.stopped = True  # the program is refused
            return

        def complete(_program: _Program) -> None:
            transfer.ended_s, transfer.stopped = self._loop.time(), True
            stream.finish()

        _Program(stream, transfer.request[early:], len(transfer.answer), complete)

    # At the gateway.

    async def _serve(self) -> None:
        listening = cast(socket.socket, self._kernel)
        address, scheduler = (GATEWAY, PORT), "prompt-swtc"
        listener = await listen(
            address, key=_SERVER, scheduler=scheduler, limits=LIMITS, listening=listening
        )
        try:
            while True:
                connection = await listener.accept()
                streams = Multiplexer(connection, partial(self._opened, connection.flow_id))
                self._begin_task(streams.run())
        finally:
            await listener.close()

    def _opened(self, session: bytes, stream: ProxiedStream, _asked: OpenStream) -> None:
        """Connect to the server, which is beside the gateway; it answers once it has the request."""
        transfer = self._asked.pop((session, stream.number))
        stream.accept()
        _Program(stream, b"", len(transfer.request), lambda program: program.send(transfer.answer))

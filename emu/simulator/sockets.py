"""Sockets over the simulated networks, for code that asks the kernel, and an event loop in their time.

A `SimulatedSocket` has the methods of `socket.socket` that sessions use, and what Linux tells of a
connection (`tcp_info`). A `Kernel` is the selector of the loop: while the loop waits, simulated time
passes.
"""

import asyncio
import errno
import selectors
import socket
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from contextvars import Context
from ipaddress import ip_address
from math import inf
from typing import Any, Final, Protocol, TypeVar, TypeVarTuple

from cedos.controller.events import ESTABLISHED, SYN_SENT
from cedos.kernel.tcp_info import TcpInfo
from cedos.model import FlowKey, FlowSample
from emu.simulator.connection import STEERED_RTO_S
from emu.simulator.link import Clock, Network, Parcel
from emu.simulator.tcp import PAYLOAD_BYTES, Sender, TcpSettings
from emu.testbed.access import ADDRESSES

# Linux repeats a SYN after a second. Sessions begin another connection meanwhile.
_SYN_S: Final = 1.0
# The kernel's send buffer: the testbed's `tcp_wmem`, or twice the window, with so many bytes for each
# packet.
_SEND_BUFFER_BYTES: Final = 131_072
_PACKET_MEMORY_BYTES: Final = 2_304
# The kernel looks for room after each piece.
_PIECE_BYTES: Final = 16_384
_NOTSENT_LOWAT: Final = 25
# Numbers of files that no file of this process has, and the first port of clients.
_FIRST_FILE: Final = 1 << 20
_FIRST_PORT: Final = 32_768
# The delay of an answer of the daemon's.
_ASKED_S: Final = 0.002

_T = TypeVar("_T")
_Ts = TypeVarTuple("_Ts")


class Watcher(Protocol):
    """The daemon, which sees the client's connections (`emu.simulator.laptop.SimulatedLaptop`)."""

    def watch(self, opened: "SimulatedSocket") -> None:
        """Note a connection as its SYN is sent."""

    def unwatch(self, closed: "SimulatedSocket") -> None:
        """Note the end of a connection."""


class SimulatedSocket:
    """An end of a TCP connection. It is the source of what it sends (`tcp.DataSource`).

    The client's end makes the server's end with its SYN.
    """

    def __init__(self, kernel: "Kernel", peer: "SimulatedSocket | None" = None) -> None:
        self._kernel, self._clock = kernel, kernel.clock
        self._number = kernel.add(self)
        self._peer = peer
        self._accepts = peer is not None
        self._network: Network | None = peer._network if peer is not None else None
        self._sender: Sender | None = None  # once the handshake is over
        self._closed = self._reset = self._shut = self._ended = False
        self._lowat_bytes = 1 << 31
        # The outgoing data that has not arrived, from the byte `_at` on. By packet: the byte behind it,
        # and whether it has arrived; the first one that has not.
        self._data, self._at = bytearray(), 0
        self._ends: list[int] = []
        self._arrived = bytearray()
        self._front = self._written = self._sent = 0
        # The packets that have come. What each acknowledgement on its way says: of how many, and the
        # packets and bytes that are there without a gap.
        self._came = 0
        self._fronts: deque[tuple[int, int, int]] = deque()
        self._acknowledged = (0, 0)
        self._incoming, self._received = bytearray(), 0
        self._heard_at_s = self._answered_at_s = kernel.clock.now_s
        # The acknowledgements of the last round trip: when, how many packets had been delivered, and
        # whether there was too little to send. The rate that they show.
        self._delivered = self._limited_to = 0
        self._samples: deque[tuple[float, int, bool]] = deque()
        self._rate_bps: float | None = None
        self._limited = False
        self._busy_s, self._busy_since_s = 0.0, inf

    # The methods of `socket.socket`.

    def fileno(self) -> int:
        return self._number

    def setblocking(self, _flag: bool) -> None:
        """Do nothing: it never blocks."""

    def setsockopt(self, level: int, option: int, value: int | bytes) -> None:
        """Note the interface and the limit of unsent bytes; other options change nothing here."""
        if option == socket.SO_BINDTODEVICE and isinstance(value, bytes):
            self._network = self._kernel.links[value.decode()]
        elif (level, option) == (socket.IPPROTO_TCP, _NOTSENT_LOWAT):
            self._lowat_bytes = int(value)

    def getsockopt(self, _level: int, _option: int) -> int:
        return 0  # SO_ERROR: what waits for an answer has not failed

    def getsockname(self) -> tuple[str, int]:
        return self._kernel.listens_at if self._accepts else self._address

    def getpeername(self) -> tuple[str, int]:
        return self._address if self._accepts else self._kernel.listens_at

    def connect_ex(self, _endpoint: tuple[str, int]) -> int:
        self._kernel.watcher.watch(self)
        self._synchronise()
        return errno.EINPROGRESS

    def recv_into(self, buffer: bytearray, most: int = 0) -> int:
        """Take what has come. OSError: nothing, or the other end is closed."""
        count = min(most or len(buffer), len(self._incoming))
        if not count and self._ended and not self._reset:
            return 0
        if not count:
            raise ConnectionResetError if self._reset else BlockingIOError
        buffer[:count] = self._incoming[:count]
        del self._incoming[:count]
        return count

    def send(self, data: bytes) -> int:
        return self.sendmsg([data])

    def sendmsg(self, parts: Sequence[bytes]) -> int:
        """Take as much as there is room for. OSError: there is none, or the other end is closed."""
        if self._reset or self._sender is None:
            raise BrokenPipeError
        before = self._written
        for part in parts:
            for begin in range(0, len(part), _PIECE_BYTES):
                if self.unsent_bytes < self._lowat_bytes and self._has_room:
                    piece = part[begin : begin + _PIECE_BYTES]
                    self._data += piece
                    self._written += len(piece)
        if self._written == before:
            raise BlockingIOError
        self._busy_since_s = min(self._busy_since_s, self._clock.now_s)
        self._sender.send()
        return self._written - before

    def shutdown(self, _how: int) -> None:
        """Send nothing any more; the other end is told behind the last byte."""
        self._shut = True
        self._end()

    def _end(self) -> None:
        if self._shut and not self.unacknowledged_bytes and self._peer is not None:
            self._tell(self._peer._on_end)

    def _on_end(self) -> None:
        self._ended = True
        self._clock.interrupt()

    def close(self) -> None:
        """Close it at once; the other end is told, and drops what it has not sent."""
        if self._closed:
            return
        self._closed = True
        self._kernel.remove(self)
        if not self._accepts:
            self._kernel.watcher.unwatch(self)
        if self._sender is not None and self._peer is not None:
            self._sender.close()
            self._tell(self._peer._on_reset)

    # The facts that the kernel tells.

    def ready(self, wanted: int) -> int:
        """Return what a selector says of it that is asked for `wanted`."""
        come = self._incoming or self._ended or self._reset
        ready = wanted & selectors.EVENT_READ if come else 0
        if wanted & selectors.EVENT_WRITE and self._sender is not None:
            ready |= selectors.EVENT_WRITE if self._few_unsent and self._has_room else 0
        return ready

    @property
    def unsent_bytes(self) -> int:
        return self._written - self._sent

    @property
    def unacknowledged_bytes(self) -> int:
        return self._written - self._acknowledged[1]

    def info(self) -> TcpInfo | None:
        """Return what Linux would tell; None: there is no connection yet, or it is closed."""
        sender, now_s = self._sender, self._clock.now_s
        if sender is None or self._closed:
            return None
        repeated = sender.sent_packets - len(self._ends)
        return TcpInfo(
            rtt_s=sender.srtt_s,
            rtt_min_s=sender.rtt_min_s,
            rtt_variation_s=sender.rttvar_s,
            delivery_rate_bps=self._rate_bps,
            rate_limited_by_us=self._limited,
            window_bytes=int(sender.cwnd) * PAYLOAD_BYTES,
            slow_start=sender.cwnd < sender.ssthresh,
            segment_bytes=PAYLOAD_BYTES,
            unsent_bytes=self.unsent_bytes,
            in_flight_bytes=sender.inflight * PAYLOAD_BYTES,
            loss=min(0.99, repeated / sender.sent_packets) if repeated else 0.0,
            receive_idle_s=now_s - self._heard_at_s,
            acknowledged_idle_s=now_s - self._answered_at_s,
            retries=sender.backoff,
            repeated_segments=repeated,
            acknowledged_bytes=self._acknowledged[1],
            busy_s=self._busy_s + max(now_s - self._busy_since_s, 0.0),
            waiting_segments=len(self._ends) - self._acknowledged[0],
            delivered_segments=self._delivered,
            peer_window_bytes=1 << 30,
        )

    @property
    def key(self) -> FlowKey:
        """Return the addresses of the client's end."""
        (local, port), (remote, to) = self.getsockname(), self.getpeername()
        return FlowKey(ip_address(local), port, ip_address(remote), to, "tcp")

    def sample(self, now_s: float) -> FlowSample:
        """Return what a look at the sockets shows; `now_s`: the daemon's time."""
        info = self.info()
        return FlowSample(
            self.key,
            now_s,
            SYN_SENT if info is None else ESTABLISHED,
            None,
            None if info is None else info.rtt_s,
            None if info is None else info.rtt_min_s,
            self._rate_bps,
            self._received,
            self._acknowledged[1],
            0 if info is None else info.repeated_segments,
            inf if info is None else info.receive_idle_s,
            len(self._ends) - self._acknowledged[0],
            inf if info is None else info.acknowledged_idle_s,
            segments=len(self._ends),
        )

    # The handshake.

    def _synchronise(self) -> None:
        """Send a SYN. Its answer makes the connection, unless an earlier one did."""
        if self._closed or self._sender is not None:
            return
        sent_s = self._clock.now_s

        def on_syn() -> None:
            peer = self._peer = self._peer or SimulatedSocket(self._kernel, self)
            peer._answered_at_s = self._clock.now_s
            peer._tell(lambda: self._connected(sent_s))

        self._tell(on_syn)
        self._clock.after(_SYN_S, self._synchronise)

    def _connected(self, asked_s: float) -> None:
        """Begin to send; the server's end does so with the first packet that comes behind the SYN."""
        if self._closed or self._sender is not None:
            return
        assert self._network is not None
        now_s = self._heard_at_s = self._answered_at_s = self._clock.now_s
        # The daemon and the gateway's unit set `tcp_slow_start_after_idle` to 0.
        settings = TcpSettings(idle_leaves=1.0, most_rto_s=STEERED_RTO_S)
        self._sender = Sender(
            self._clock,
            self._network,
            self,
            down=self._accepts,
            rtt_s=now_s - asked_s,
            settings=settings,
        )
        if self._accepts:
            self._kernel.accepted.append(self)
        elif self._peer is not None:
            self._tell(self._peer._on_first)
        self._clock.interrupt()

    def _on_first(self) -> None:
        self._connected(self._answered_at_s)

    def _on_reset(self) -> None:
        self._reset = True
        if self._sender is not None:
            self._sender.close()
        self._clock.interrupt()

    def _tell(self, call: Callable[[], None]) -> None:
        """Send a small packet to the other end; `call` is called as it arrives."""
        assert self._network is not None
        send = self._network.to_client if self._accepts else self._network.to_server
        send(Parcel(lambda parcel, packets: call()))

    @property
    def _address(self) -> tuple[str, int]:
        assert self._network is not None
        return ADDRESSES[self._network.kind], _FIRST_PORT + self._number - _FIRST_FILE

    # The data (`tcp.DataSource`).

    @property
    def _has_room(self) -> bool:
        """Return whether the send buffer has room."""
        window = 0.0 if self._sender is None else 2 * self._sender.cwnd
        return self.unacknowledged_bytes < max(_SEND_BUFFER_BYTES, window * _PACKET_MEMORY_BYTES)

    @property
    def _few_unsent(self) -> bool:
        """Return whether a program that waits for room is woken (tcp(7), TCP_NOTSENT_LOWAT)."""
        return 2 * self.unsent_bytes < self._lowat_bytes

    def take(self, sender: Sender, most: int) -> tuple[int, int]:
        first, waiting = len(self._ends), self.unsent_bytes
        if not waiting:
            # What is acknowledged until then shows less than the path carries.
            if sender.inflight < int(sender.cwnd):
                self._limited_to = self._delivered + max(sender.inflight, 1)
            return first, 0
        # A rate counts from the first packet after a pause.
        if not sender.inflight:
            self._samples.clear()
            limited = self._delivered <= self._limited_to
            self._samples.append((self._clock.now_s, self._delivered, limited))
        packets = min(most, -(-waiting // PAYLOAD_BYTES))
        self._ends += (
            min(self._sent + PAYLOAD_BYTES * each, self._written) for each in range(1, packets + 1)
        )
        self._arrived += bytes(packets)
        self._sent = self._ends[-1]
        if self._few_unsent:
            self._clock.interrupt()
        return first, packets

    def deliver(self, sender: Sender, first: int, packets: int) -> None:
        """Hand the other end what is there without a gap."""
        peer = self._peer
        assert peer is not None
        peer._on_first()
        peer._heard_at_s = self._clock.now_s
        self._arrived[first : first + packets] = b"\1" * packets
        front = self._arrived.find(0, self._front)
        self._front = len(self._arrived) if front < 0 else front
        count = (self._ends[self._front - 1] if self._front else 0) - self._at
        if count:
            peer._take(memoryview(self._data)[:count].tobytes())
            del self._data[:count]
            self._at += count
        self._came += packets
        self._fronts.append((self._came, self._front, self._at))

    def _take(self, data: bytes) -> None:
        if self._closed:
            if self._peer is not None:
                self._tell(self._peer._on_reset)
            return
        self._incoming += data
        self._received += len(data)
        self._clock.interrupt()

    def on_acknowledged(self, sender: Sender, packets: int) -> None:
        now_s = self._answered_at_s = self._clock.now_s
        self._delivered += packets
        while self._fronts and self._fronts[0][0] <= self._delivered:
            _, front, at = self._fronts.popleft()
            self._acknowledged = front, at
        # The rate of the last round trip. A limited one counts only if it is higher (`tcp_rate.c`).
        samples = self._samples
        while len(samples) > 1 and samples[1][0] <= now_s - sender.srtt_s:
            samples.popleft()
        began_s, before, limited = samples[0]
        if now_s - began_s >= sender.rtt_min_s:
            rate_bps = 8 * PAYLOAD_BYTES * (self._delivered - before) / (now_s - began_s)
            if not limited or self._rate_bps is None or rate_bps >= self._rate_bps:
                self._rate_bps, self._limited = rate_bps, limited
        samples.append((now_s, self._delivered, self._delivered <= self._limited_to))
        if not self.unacknowledged_bytes:
            # Copies of packets may be acknowledged later.
            if self._busy_since_s < inf:
                self._busy_s += now_s - self._busy_since_s
            self._busy_since_s = inf
            self._end()

    def on_timeout(self, sender: Sender) -> None:
        """Do nothing: TCP repeats it over the same network."""


class Kernel(selectors.SelectSelector):
    """The sockets of client and server, of which one listens, and the selector of their loop."""

    def __init__(
        self,
        clock: Clock,
        links: Mapping[str, Network],  # the client's networks by interface
        listens_at: tuple[str, int],
        watcher: Watcher,
    ) -> None:
        super().__init__()
        self.clock, self.links, self.listens_at, self.watcher = clock, links, listens_at, watcher
        self.accepted: deque[SimulatedSocket] = deque()
        self._sockets: dict[int, SimulatedSocket] = {}
        self._made = 0

    def add(self, made: SimulatedSocket) -> int:
        """Return the number of a new socket."""
        self._made += 1
        self._sockets[_FIRST_FILE + self._made] = made
        return _FIRST_FILE + self._made

    def remove(self, closed: SimulatedSocket) -> None:
        del self._sockets[closed.fileno()]

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        """Let time pass until a socket is ready, or the loop has something to do (`Clock.interrupt`)."""
        if not (ready := list(self._ready())):
            self.clock.run(inf if timeout is None else self.clock.now_s + max(timeout, 0.0))
            ready = list(self._ready())
        return ready

    def _ready(self) -> Iterator[tuple[selectors.SelectorKey, int]]:
        for key in self.get_map().values():
            if key.fd == _FIRST_FILE:
                events = selectors.EVENT_READ if self.accepted else 0
            else:
                found = self._sockets.get(key.fd)
                events = 0 if found is None else found.ready(key.events)
            if events:
                yield key, events

    # The methods of the listening socket.

    def fileno(self) -> int:
        return _FIRST_FILE

    def setblocking(self, _flag: bool) -> None:
        """Do nothing: it never blocks."""

    def accept(self) -> tuple[SimulatedSocket, tuple[str, int]]:
        if not self.accepted:
            raise BlockingIOError
        made = self.accepted.popleft()
        return made, made.getpeername()

    def close(self) -> None:
        """Do nothing: there is nothing to free."""


class SimulatedLoop(asyncio.SelectorEventLoop):
    """An event loop in simulated time."""

    def __init__(self, kernel: Kernel) -> None:
        self._clock = kernel.clock
        super().__init__(kernel)

    def time(self) -> float:
        return self._clock.now_s

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """Let an exception of a callback end the simulation."""
        if (error := context.get("exception")) is not None:
            raise error

    def call_soon(
        self, callback: Callable[[*_Ts], object], *args: *_Ts, context: Context | None = None
    ) -> asyncio.Handle:
        self._clock.interrupt()
        return super().call_soon(callback, *args, context=context)

    def call_at(
        self,
        when: float,
        callback: Callable[[*_Ts], object],
        *args: *_Ts,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        self._clock.interrupt()
        return super().call_at(when, callback, *args, context=context)

    def run_in_executor(
        self, executor: Executor | None, func: Callable[[*_Ts], _T], *args: *_Ts
    ) -> asyncio.Future[_T]:
        """Ask the daemon, whose answer comes after a delay; no thread is needed."""
        answered: asyncio.Future[_T] = self.create_future()

        def answer() -> None:
            if not answered.done():
                answered.set_result(func(*args))

        self.call_later(_ASKED_S, answer)
        return answered

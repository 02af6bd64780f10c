"""A TCP connection of a session: it moves bytes between kernel and channel, without hidden buffers.

Asyncio's transports are not used: their buffers would cost half the speed, and anticipatory scheduling
needs to know every byte that waits. What the kernel does not take stays in one list here, which holds
one batch at most.
"""

import errno
import socket
import struct
from collections.abc import Callable, Sequence
from contextlib import suppress
from enum import Enum, auto
from typing import Final

from cedos.errors import ProtocolError
from cedos.kernel import tcp_info
from cedos.kernel.interface_socket import bind_to_interface
from cedos.logs import BoundLogger, get_logger
from cedos.session.io.driver import TURN_S, Driver
from cedos.session.io.path_estimator import PathEstimator
from cedos.session.protocol.channel import Channel
from cedos.session.protocol.crypto import Buffer
from cedos.session.protocol.frames import Sync
from cedos.session.protocol.handshake.limits import network_of
from cedos.session.protocol.life import Probed
from cedos.session.protocol.packing import RECORD_BYTES
from cedos.session.protocol.schedulers.interface import RECENT_S, PathFacts, PathState
from cedos.session.protocol.session import Session

_IP_BIND_ADDRESS_NO_PORT: Final = 24
_TCP_USER_TIMEOUT: Final = 18
_TCP_RTO_MAX_MS: Final = 44  # Linux 6.15
_LONGEST_TIMEOUT_MS: Final = 2_000
_LINGER_RESET: Final = struct.pack("ii", 1, 0)
# The most unsent bytes in the kernel (TCP_NOTSENT_LOWAT). They cannot move to another path, and no
# urgent data can overtake them.
UNSENT_BYTES: Final = 1 << 19
_log: Final[BoundLogger] = get_logger(__name__)
# With several paths, the time of sending that may wait in the kernel, but some records at least.
# If a path fails, these data are sent again over another path behind its own queue.
_UNSENT_S: Final = 0.1
# The same while one of the paths pauses, because it may fail in a moment.
_UNSENT_PAUSE_S: Final = 0.03
_LEAST_UNSENT_BYTES: Final = 1 << 15
_MOST_BUFFERS: Final = 256  # of one sendmsg; the kernel takes 1024
# On a fast path, records are given to the kernel in batches of this size.
_BATCH_BYTES: Final = 1 << 17
# On a slower path, a record holds what the path sends in `_RECORD_S`.
_SLOW_BPS: Final = 200e6
_RECORD_S: Final = 0.020
_LEAST_RECORD: Final = 4_096
_NOTHING: Final = memoryview(b"")
# The kernel ends a connection whose data are unacknowledged for this time (TCP_USER_TIMEOUT), and
# sends keep-alives to a peer that is silent for this time.
SILENCE_S: Final = 30
# The same for keep-alives on accepted connections, and where they cost bytes or wake a radio. Most
# NATs still know the connection then.
QUIET_S: Final = 240

# Then the kernel sends a keep-alive every five seconds, and gives up after four without an answer.
_KEEP_ALIVE: Final = ((socket.TCP_KEEPINTVL, 5), (socket.TCP_KEEPCNT, 4))


def prepare(
    connection: socket.socket,
    interface: str | None = None,
    source: str = "",
    *,
    asks_after_s: int = SILENCE_S,
) -> None:
    """Set the options of a session's connection; bind it to `interface`, and to the address `source`.

    The kernel begins to send keep-alives after `asks_after_s` of silence. OSError: the interface is
    gone, or the kernel refuses.
    """
    connection.setblocking(False)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    connection.setsockopt(socket.IPPROTO_TCP, _TCP_USER_TIMEOUT, 1000 * SILENCE_S)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, asks_after_s)
    # With a bounded time-out, TCP retransmits soon after an outage. It gives up by the user time-out.
    with suppress(OSError):
        connection.setsockopt(socket.IPPROTO_TCP, _TCP_RTO_MAX_MS, _LONGEST_TIMEOUT_MS)
    for option, value in _KEEP_ALIVE:
        connection.setsockopt(socket.IPPROTO_TCP, option, value)
    tcp_info.wake_below(connection, UNSENT_BYTES)
    if interface is not None:
        bind_to_interface(connection, interface)
    if source:
        # The kernel chooses the port at connect(), when it knows the whole connection: one local port can
        # then serve several destinations (ip(7)).
        connection.setsockopt(socket.IPPROTO_IP, _IP_BIND_ADDRESS_NO_PORT, 1)
        connection.bind((source, 0))


def _describe_failure(error: Exception) -> str:
    """Return why a connection ends that failed at this end; log a fault of this program."""
    if isinstance(error, MemoryError):
        return "there was no memory for what it brought"
    _log.error("a session's connection failed", exc_info=error)
    return "this end failed at what it brought"


def unsent_limit_bytes(rate_bps: float | None, paths: Sequence[PathState]) -> int:
    """Return how many unsent bytes the kernel may hold on a path of this rate."""
    if rate_bps is None or len(paths) < 2:
        return UNSENT_BYTES
    ahead_s = _UNSENT_PAUSE_S if any(each.facts.pauses for each in paths) else _UNSENT_S
    return min(UNSENT_BYTES, max(_LEAST_UNSENT_BYTES, int(rate_bps / 8 * ahead_s)))


class SessionPathEvent(Enum):
    OPENED = auto()  # the peer's key is right; its messages so far may be replayed ones
    CONFIRMED = auto()  # after OPENED: they are not, the peer is there now
    RECEIVED = auto()  # records were handed to the core
    WRITABLE = auto()  # the kernel takes data again
    WRONG = auto()  # the peer sent what no honest peer sends
    LOST = auto()  # the connection was closed


_RECEIVED: Final = SessionPathEvent.RECEIVED
# Handle an event. The text is the reason of WRONG and LOST, else empty.
Report = Callable[["SessionPath", SessionPathEvent, str], None]


class SessionPath:
    """A connection with its channel."""

    __slots__ = (
        "_acknowledged_bytes", "_driver", "_host", "_pending", "_reading", "_report",
        "_reported_confirmed", "_reported_opened", "_rest",
        "_shut", "_unsent_bytes", "_writing", "_written_bytes", "account", "channel",
        "closed", "connection", "core", "egress", "estimator", "facts", "index", "known", "path_id",
        "peer", "received_bytes",
    )  # fmt: skip

    def __init__(
        self,
        driver: Driver,
        connection: socket.socket,
        channel: Channel,
        report: Report,  # takes the events, until `attach` gives another one
        facts: PathFacts,  # what the scheduler sees; kept up to date here
        *,
        # The name of what the connection is bound to (`Egress.name`); empty for an accepted one.
        egress: str = "",
        index: int = 0,  # the interface's number in the kernel
        peer: str = "",  # the other end's address
        # The session's positions when this end dialled the connection; None for an accepted one.
        known: Sync | None = None,
    ) -> None:
        self._driver, self._host = driver, driver.host
        self.connection = connection
        self.channel = channel
        self._report = report
        self.facts = facts
        self.egress = egress
        self.index = index
        self.known = known
        self.peer = peer
        # All connections with one account share turns of the event loop, and what their sessions hold
        # counts together. A server that knows the holders of keys gives each an account.
        self.account = network_of(peer) if peer else ""
        self._rest = _NOTHING  # what it has read and not taken yet
        self.path_id = driver.new_path_id()  # unique in this process
        # The session that the connection belongs to, once that is known (`attach`).
        self.core: Session | None = None
        self.closed = False
        self.received_bytes = 0  # all bytes received over it, with the session's overhead
        self.estimator = PathEstimator(facts, driver.host.tcp_info)
        # The bytes that the kernel did not take; its limit of unsent bytes; all bytes sent so far.
        self._pending: list[Buffer] = []
        self._unsent_bytes = UNSENT_BYTES
        self._written_bytes = 0
        # Whether the event loop watches the socket for data and for room, and whether sending ends then.
        self._reading = self._writing = self._shut = False
        self._reported_opened = self._reported_confirmed = False

    def start(self) -> None:
        """Begin to read, and send the channel's first messages."""
        self._reading = True
        self._driver.loop.add_reader(self.connection.fileno(), self._readable)
        self.flush(self._driver.now())

    def attach(self, core: Session, report: Report) -> None:
        """Exchange records with this session from now on, and give events to `report`."""
        self.core, self._report = core, report

    @property
    def blocked(self) -> bool:
        return bool(self._pending)

    def _readable(self) -> None:
        self._driver.turns.take(self.account, self._read)

    def _read(self) -> None:
        driver = self._driver
        if self.closed:
            return
        data, own = self._rest, True
        if not data:
            try:
                size = self.connection.recv_into(driver.buffer)
            except (BlockingIOError, InterruptedError):
                return
            except OSError as error:
                self.close(f"the connection broke: {error.strerror or error}")
                return
            if not size:
                self.close("the other end closed the connection")
                return
            self.received_bytes += size
            data, own = driver.view[:size], False
        # Small records may cost much time: then the rest waits, and the peer's other connections with it.
        now, received = driver.now(), False
        while data and not self.closed:
            took = self._take(data, now)
            if took is None:
                return
            received = received or took
            data = data[len(data) - self.channel.left :]
            if driver.now() - now > TURN_S:
                break
        # All connections share the buffer, so what is kept is copied.
        self._rest = data if own or not data else memoryview(bytes(data))
        if self._rest:
            driver.turns.go_on(self.account, self._read)
        if received and not self.closed:
            self._report(self, _RECEIVED, "")
        if self.channel.failure is not None and not self.closed:
            self.flush(now)
            self.close(self.channel.failure.why)

    def _take(self, data: memoryview, now: float) -> bool | None:
        """Take a portion; return whether the session has received something, None: it cannot go on."""
        channel = self.channel
        try:
            records = channel.receive(data, now)
        # Some bytes were taken and some not: this connection cannot go on.
        except Exception as error:
            self.close(_describe_failure(error))
            return None
        # During the handshake: report its steps, and send its next message.
        if not self._reported_confirmed:
            if channel.failure is None and channel.opened is not None:
                self._report_handshake()
            self.flush(now)
        if records and not self.closed:
            core = self.core
            if core is None:
                self.close("records before the flow is known")
                return None
            try:
                for record in records:
                    core.receive(self.path_id, record, now)
            except ProtocolError as error:
                self._report(self, SessionPathEvent.WRONG, str(error))
                return None
            # It is unknown how much of the record was taken.
            except Exception as error:
                self._report(self, SessionPathEvent.WRONG, _describe_failure(error))
                return None
        return bool(records)

    def _report_handshake(self) -> None:
        """Report OPENED and CONFIRMED, each once."""
        if not self._reported_opened:
            self._reported_opened = True
            self._report(self, SessionPathEvent.OPENED, "")
        if self.channel.confirmed and not self.closed:
            self._reported_confirmed = True
            self._report(self, SessionPathEvent.CONFIRMED, "")

    def pump(self, now: float) -> bool:
        """Send what the core has and the kernel takes; return whether anything went out."""
        # What the kernel has not taken yet goes first.
        if self._pending or self.closed:
            return False
        core, channel = self.core, self.channel
        if core is None or channel.opened is None or channel.failure is not None:
            return False
        facts, path_id = self.facts, self.path_id
        self.update(now)
        self.confirm_datagrams()
        if not core.wants(path_id):
            return False
        # Ask the kernel how much waits. How much is under way only matters for foreground data.
        facts.unsent_bytes = self._host.unsent_bytes(self.connection)
        if now - max(core.backlog.foreground_at_s, facts.foreground_at_s) < RECENT_S:
            unacknowledged = self._host.unacknowledged_bytes(self.connection)
            facts.under_way_bytes = max(0, unacknowledged - facts.unsent_bytes)
        rate = facts.rate_bps
        self._bound_unsent(unsent_limit_bytes(rate, core.in_flight.states))
        # A slow path gets small records, so that urgent data waits for no large one.
        if rate is None or rate < _SLOW_BPS:
            room = max(_LEAST_RECORD, min(RECORD_BYTES, int((rate or 8e6) / 8 * _RECORD_S)))
            most = room
        else:
            room, most = RECORD_BYTES, _BATCH_BYTES
        moved = False
        more = True
        while more:
            batch: list[Buffer] = []
            size = 0
            # Several records go to the kernel in one call.
            while size < most and len(batch) < _MOST_BUFFERS:
                parts = core.next_record(path_id, room, now)
                if not parts:
                    more = False
                    break
                batch += channel.send(parts)
                size += sum(map(len, parts))
            if batch:
                moved = True
                self._written_bytes += sum(map(len, batch))
                # The datagrams of this batch end here, for the kernel's acknowledgement.
                core.datagrams.on_write(path_id, self._written_bytes)
                if not self._send(batch):
                    break
        return moved

    def confirm_datagrams(self) -> None:
        """Tell the session which datagrams the peer's kernel has acknowledged."""
        core = self.core
        if core is not None and not self.closed and core.datagrams.unacknowledged:
            # Not acknowledged: what this program still holds, and what the kernel does.
            left = sum(map(len, self._pending)) + self._host.unacknowledged_bytes(self.connection)
            core.datagrams.on_acknowledgement(self.path_id, self._written_bytes - left)

    def _bound_unsent(self, wanted: int) -> None:
        """Set the kernel's limit of unsent bytes, if the change is worth a system call."""
        if not 0.8 * self._unsent_bytes <= wanted <= 1.25 * self._unsent_bytes:
            self._unsent_bytes = wanted
            tcp_info.wake_below(self.connection, wanted)

    def update(self, now: float) -> None:
        """Bring the facts up to date by the kernel's numbers."""
        if self.estimator.poll(self.connection, now) and self.index:
            self.facts.foreground_at_s = now - self._driver.foreground.idle_s(self.index)

    def on_answer(self, answer: Probed) -> None:
        """Take the answer to a probe of this path; the session tells the other end of a new rate."""
        now = self._driver.now()
        self.estimator.on_probed(answer, now)
        if self.core is not None and not self.closed:
            self.core.path_facts(self.path_id, self.facts, now)

    def acknowledged_bytes(self) -> int:
        """Return how many bytes the other end's kernel has acknowledged, with the session's overhead.

        Of a closed path, what it was at the end.
        """
        if self.closed:
            return self._acknowledged_bytes
        given = self._written_bytes - sum(map(len, self._pending))
        return max(given - self._host.unacknowledged_bytes(self.connection), 0)

    def ask_arrived(self) -> None:
        """Ask the peer to prove that what was sent until now has arrived (`PathFlight.arrived_bytes`)."""
        if self.core is not None and not self.closed:
            self.core.ask_arrived(self.path_id, self._written_bytes)

    def send_one(self, plain: bytes) -> None:
        """Send a record with one small message; the path must not be blocked."""
        data = self.channel.send_one(plain)
        self._written_bytes += len(data)
        try:
            sent = self.connection.send(data)
        except (BlockingIOError, InterruptedError):
            sent = 0
        except OSError as error:
            self.close(f"the connection broke: {error.strerror or error}")
            return
        if sent < len(data):
            self._pending = [memoryview(data)[sent:]]
            self._await_writable()

    def flush(self, now: float) -> None:
        """Send the messages of the handshake that are due."""
        if not self._pending and not self.closed:
            waiting = self.channel.outgoing()
            if waiting:
                self._written_bytes += sum(map(len, waiting))
                self._send(list(waiting))

    def _send(self, batch: list[Buffer]) -> bool:
        """Send a batch; return whether the kernel took all of it. If not, the rest is sent later."""
        try:
            sent = self.connection.sendmsg(batch)
        except (BlockingIOError, InterruptedError):
            sent = 0
        except OSError as error:
            # More buffers than one call takes (sendmsg(2)): join them.
            if error.errno == errno.EMSGSIZE and len(batch) > 1:
                return self._send([b"".join(batch)])
            self.close(f"the connection broke: {error.strerror or error}")
            return False
        # Keep what the kernel did not take, from within the buffer in which it stopped.
        for index, part in enumerate(batch):
            if sent < len(part):
                self._pending = [memoryview(part)[sent:], *batch[index + 1 :]]
                self._await_writable()
                return False
            sent -= len(part)
        return True

    def _await_writable(self) -> None:
        if not self._writing:
            self._writing = True
            self._driver.loop.add_writer(self.connection.fileno(), self._writable)

    def _writable(self) -> None:
        pending, self._pending = self._pending, []
        if pending and not self._send(pending):
            return
        if self._writing:
            self._writing = False
            self._driver.loop.remove_writer(self.connection.fileno())
        # The sending direction was to be closed once all of it was sent.
        if self._shut:
            self.shut_down()
            return
        self.flush(self._driver.now())
        self._report(self, SessionPathEvent.WRITABLE, "")

    def rate_towards_us_bps(self) -> float | None:
        """Return the rate towards this end in bit/s, as the other end measured it."""
        if self.core is None:
            return None
        for state in self.core.paths:
            if state.path_id == self.path_id and state.peer is not None:
                return state.peer.rate_bps
        return None

    def shut_down(self) -> None:
        """Close the sending direction once everything that waits has been sent."""
        self._shut = True
        if not self.closed and not self._pending:
            with suppress(OSError):
                self.connection.shutdown(socket.SHUT_WR)

    def own_endpoint(self) -> tuple[str, int]:
        """Return this end's address and port; ("", 0) once it is closed."""
        try:
            host, port = self.connection.getsockname()[:2]
        except OSError:
            return "", 0
        return str(host).removeprefix("::ffff:"), int(port)

    def peer_address(self) -> tuple[str, int]:
        try:
            return self.peer, int(self.connection.getpeername()[1])
        except OSError:
            return self.peer, 0

    def close(self, why: str, *, reset: bool = False) -> None:
        """Close the connection and report LOST. With `reset` the kernel drops its unsent bytes."""
        if self.closed:
            return
        self._acknowledged_bytes = self.acknowledged_bytes()
        self.closed = True
        file = self.connection.fileno()
        if self._reading:
            # The event loop must forget the file before its number is used again.
            self._driver.loop.remove_reader(file)
        if self._writing:
            self._driver.loop.remove_writer(file)
        self._pending = []
        self.channel.abandon()
        # With a linger time of zero, close() sends RST and drops unsent data (socket(7), SO_LINGER).
        if reset:
            with suppress(OSError):
                self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _LINGER_RESET)
        self.connection.close()
        self._report(self, SessionPathEvent.LOST, why)

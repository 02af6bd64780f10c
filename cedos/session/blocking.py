"""BSD-like sockets over sessions: what a program that uses `socket` needs to change is one import.

    from cedos.session import blocking
    s = blocking.socket()
    s.setsockopt(blocking.SOL_SESSION, blocking.SO_SERVER_KEY, key)
    s.connect(("server.example", 9000))

A socket works from any thread, blocks or does not as `settimeout` says, and its `fileno` can be given to
`select`. IROBs are messages with labels: `begin_irob`, `irob_send`, `end_irob`, `ms_send`, `ms_recv`
(dissertation, Table 2.2).
"""

import builtins
import socket as bsd
import threading
from collections import deque
from collections.abc import Callable
from enum import IntEnum
from typing import Any, Final, Self

from cedos.errors import SessionError
from cedos.model import Label
from cedos.session import background
from cedos.session.connection import Connection
from cedos.session.crypto import KeyPair
from cedos.session.labelled import STREAM_LABEL, Message
from cedos.session.listener import Listener
from cedos.session.readiness import Readiness
from cedos.session.sockets import connect, listen

SOL_SESSION: Final = 0xCED05
SHUT_WR: Final = bsd.SHUT_WR
_READ_AHEAD: Final = 1 << 20


class Option(IntEnum):
    """Options of level `SOL_SESSION`; those of Cedos' D2TP keep their meaning (Cedos, IV-A)."""

    DEADLINE = (
        1  # seconds: until when everything should be here, and how long to do without a network
    )
    EXPECTED_SIZE = 2  # bytes that the stream will bring
    BUFFER_THRESHOLDS = 3  # (low, high) bytes: when cellular networks are used
    LABEL = 4  # of the stream: a cedos.model.Label
    SERVER_KEY = 5  # 32 bytes, before `connect`
    KEY = 6  # a KeyPair of one's own, before `connect` and `listen`
    SCHEDULER = 7  # a name
    NETWORKS = 8  # a function: whether an interface may be used


SO_DEADLINE, SO_ESIZE, SO_RCVBUFTH, SO_LABEL, SO_SERVER_KEY, SO_KEY, SO_SCHEDULER, SO_NETWORKS = (
    Option
)


class socket:  # noqa: N801 - as the standard library's
    """A session, or what accepts sessions. Errors are OSError as a socket's, with what a session says."""

    def __init__(self) -> None:
        self._options: dict[Option, Any] = {}
        self._timeout_s: float | None = None
        self._address: tuple[str, int] = ("", 0)
        self._connection: Connection | None = None
        self._listener: Listener | None = None
        self._ready = Readiness()
        self._ready.writable(False)
        self._changed = threading.Condition()
        self._chunks: deque[memoryview] = deque()
        self._buffered = 0
        self._ended: SessionError | None = None
        self._eof = False
        self._others = False  # whether something else than the stream makes it readable
        self._accepted: deque[Connection] = deque()

    # Options

    def setsockopt(self, level: int, option: int, value: Any) -> None:
        """Sets an option; `deadline`, `expected size`, thresholds and label at any time."""
        if level != SOL_SESSION:
            raise OSError(f"level {level} is not a session's; SOL_SESSION is")
        self._options[Option(option)] = value
        if self._connection is not None:
            background.run(self._apply())

    def getsockopt(self, level: int, option: int) -> Any:
        """What was set; None where nothing was."""
        if level != SOL_SESSION:
            raise OSError(f"level {level} is not a session's; SOL_SESSION is")
        return self._options.get(Option(option))

    async def _apply(self) -> None:
        connection, options = self._connection, self._options
        assert connection is not None
        if Option.LABEL in options:
            connection.label = options[Option.LABEL]
        low, high = options.get(Option.BUFFER_THRESHOLDS, (None, None))
        deadline_s = options.get(Option.DEADLINE)
        if connection.holding is not None and (deadline_s is not None or low is not None):
            connection.wait_for(
                deadline_s=deadline_s,
                expected_bytes=options.get(Option.EXPECTED_SIZE, 0),
                low_bytes=low,
                high_bytes=high,
                buffered=lambda: self._buffered,
            )

    def settimeout(self, seconds: float | None) -> None:
        """None: operations block; 0: they do not; else they raise TimeoutError after so long."""
        self._timeout_s = seconds

    def gettimeout(self) -> float | None:
        """What `settimeout` was told."""
        return self._timeout_s

    def setblocking(self, yes: bool) -> None:
        """As `settimeout` with None or 0."""
        self._timeout_s = None if yes else 0.0

    def fileno(self) -> int:
        """For `select`: readable when `recv`, `ms_recv` or `accept` have something."""
        return self._ready.fileno()

    # Beginning

    def bind(self, address: tuple[str, int]) -> None:
        """Where to listen: an own address ("" for all) and a port (0 for any)."""
        self._address = address

    def listen(self, backlog: int = 128) -> None:
        """Begins to accept sessions; `backlog` is the driver's own choice."""
        self._listener = background.run(self._listen())

    async def _listen(self) -> Listener:
        listener = await listen(self._address, key=self._options.get(Option.KEY))
        listener.on_new = lambda: self._new(listener)
        return listener

    def _new(self, listener: Listener) -> None:
        with self._changed:
            while (connection := listener.accept_now()) is not None:
                self._accepted.append(connection)
            self._ready.readable(bool(self._accepted))
            self._changed.notify_all()

    def accept(self) -> "builtins.tuple[socket, tuple[str, int]]":
        """The next session and where its first connection came from."""
        with self._changed:
            self._wait(lambda: bool(self._accepted))
            connection = self._accepted.popleft()
            self._ready.readable(bool(self._accepted))
        made = socket()
        background.run(made._take(connection))
        peers = [path.peer for path in connection.paths()]
        return made, (peers[0] if peers else "", 0)

    def connect(self, address: tuple[str, int]) -> None:
        """A session with a server; options say with which key, how long it may wait, and so on."""
        options = self._options
        if Option.SERVER_KEY not in options:
            raise OSError("the server's key is not known; set SO_SERVER_KEY first")
        background.run(self._connect(address))

    async def _connect(self, address: tuple[str, int]) -> None:
        options = self._options
        key: KeyPair | None = options.get(Option.KEY)
        more = {"scheduler": options[Option.SCHEDULER]} if Option.SCHEDULER in options else {}
        connection = await connect(
            address,
            server_key=options[Option.SERVER_KEY],
            key=key,
            label=options.get(Option.LABEL, STREAM_LABEL),
            deadline=options.get(Option.DEADLINE),
            timeout_s=self._timeout_s or 30.0,
            networks=options.get(Option.NETWORKS),
            **more,
        )
        await self._take(connection)

    async def _take(self, connection: Connection) -> None:
        self._connection = connection
        connection.on_change = self._look
        await self._apply()
        self._ready.writable(True)
        self._look()

    # The stream

    def _look(self) -> None:
        """Reads ahead, in the loop; called whenever anything happened."""
        connection = self._connection
        assert connection is not None
        with self._changed:
            while self._buffered < _READ_AHEAD:
                data = connection.read_now()
                if not data:
                    break
                self._chunks.append(memoryview(data))
                self._buffered += len(data)
            self._eof = connection.at_eof
            self._ended = connection.failure
            over = self._eof or self._ended is not None or connection.ended
            self._others = over or connection.receivable > 0
            self._ready.readable(bool(self._chunks) or self._others)
            self._ready.writable(connection.room_bytes > 0 or connection.ended)
            self._changed.notify_all()

    def recv(self, most_bytes: int) -> bytes:
        """The next bytes of the stream; empty at its end."""
        with self._changed:
            self._wait(lambda: bool(self._chunks) or self._eof or self._ended is not None)
            if not self._chunks:
                if self._ended is not None and not self._eof:
                    raise ConnectionResetError(str(self._ended))
                return b""
            chunk = self._chunks[0]
            data = bytes(chunk[:most_bytes])
            if len(data) == len(chunk):
                self._chunks.popleft()
            else:
                self._chunks[0] = chunk[len(data) :]
            full = self._buffered >= _READ_AHEAD
            self._buffered -= len(data)
            self._ready.readable(bool(self._chunks) or self._others)
        if full or not self._chunks:
            background.loop().call_soon_threadsafe(self._look)
        return data

    def recv_into(self, buffer: bytearray | memoryview) -> int:
        """As `recv`, into a buffer."""
        data = self.recv(len(buffer))
        buffer[: len(data)] = data
        return len(data)

    def send(self, data: bytes) -> int:
        """Hands bytes to the stream; how many there was room for."""
        taken = background.run(self._send(bytes(data)), self._timeout_s or None)
        if not taken and data:
            raise BlockingIOError("no room for more unacknowledged bytes")
        return taken

    async def _send(self, data: bytes) -> int:
        connection = self._of()
        try:
            taken = connection.write_now(data)
        except SessionError as error:
            raise ConnectionResetError(str(error)) from error
        if not taken and self._timeout_s != 0:
            await connection.write(data)
            taken = len(data)
        self._ready.writable(connection.room_bytes > 0)
        return taken

    def sendall(self, data: bytes) -> None:
        """Hands all bytes to the stream."""
        view = memoryview(data)
        while view:
            view = view[self.send(bytes(view[: 1 << 20])) :]

    def shutdown(self, how: int) -> None:
        """With SHUT_WR, nothing more will be sent."""
        if how in (bsd.SHUT_WR, bsd.SHUT_RDWR):
            background.run(self._finish())

    async def _finish(self) -> None:
        self._of().finish()

    # Messages (IROBs)

    def ms_send(
        self,
        data: bytes,
        label: Label = STREAM_LABEL,
        after: tuple[int, ...] | None = None,
        thunk: Callable[[], None] | None = None,
    ) -> int | None:
        """A whole message; its id, or None where the thunk was kept. `after` None: all before it."""
        return background.run(
            self._of().send(bytes(data), label, after=after, thunk=thunk), self._timeout_s
        )

    def begin_irob(
        self,
        label: Label = STREAM_LABEL,
        after: tuple[int, ...] | None = None,
        thunk: Callable[[], None] | None = None,
    ) -> Any:
        """Begins a message; give what is returned to `irob_send` and `end_irob`."""
        return background.run(self._of().begin(label, after=after, thunk=thunk), self._timeout_s)

    def irob_send(self, irob: Any, data: bytes) -> None:
        """More bytes of it."""
        background.run(irob.send(bytes(data)), self._timeout_s)

    def end_irob(self, irob: Any) -> None:
        """The message is complete."""

        async def end() -> None:
            irob.end()

        background.run(end())

    def ms_recv(self) -> Message | None:
        """The next message with its label; None when the other end has closed."""
        message = background.run(self._message(), self._timeout_s or None)
        background.loop().call_soon_threadsafe(self._look)
        return message

    async def _message(self) -> Message | None:
        connection = self._of()
        if self._timeout_s == 0:
            message = connection.receive_now()
            if message is None and not connection.ended:
                raise BlockingIOError("no message is here")
            return message
        return await connection.receive()

    # Ending

    def close(self) -> None:
        """Ends the session; what was sent still arrives, as long as this process lives and it can."""
        connection, self._connection = self._connection, None
        listener, self._listener = self._listener, None
        if connection is not None:
            connection.on_change = None
            background.loop().call_soon_threadsafe(background.spawn, _close(connection))
        if listener is not None:
            background.run(listener.close())
        self._ready.close()

    def close_wait(self, timeout_s: float | None = None) -> None:
        """As `close`, but waits until everything has arrived; OSError if it has not."""
        connection = self._of()
        connection.on_change = None
        try:
            background.run(connection.close(), timeout_s)
        except SessionError as error:
            raise ConnectionResetError(str(error)) from error
        self._connection = None
        self._ready.close()

    def getsockname(self) -> tuple[str, int]:
        """Where it listens."""
        return self._address if self._listener is None else self._listener.address

    @property
    def session(self) -> Connection:
        """The session itself; to be used in its loop only."""
        return self._of()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    # Inside

    def _of(self) -> Connection:
        if self._connection is None:
            raise OSError("the socket is not connected")
        return self._connection

    def _wait(self, wanted: Callable[[], bool]) -> None:
        """Waits, with the lock held, as `settimeout` says."""
        if wanted():
            return
        if self._timeout_s == 0:
            raise BlockingIOError("nothing is here yet")
        if not self._changed.wait_for(wanted, self._timeout_s):
            raise TimeoutError("timed out")


async def _close(connection: Connection) -> None:
    try:
        await connection.close()
    except SessionError:
        return  # nobody is left to be told

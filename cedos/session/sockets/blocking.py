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
import errno
import os
import socket as bsd
import threading
from collections import deque
from collections.abc import Callable
from typing import Any, Final, Self, TypeVar

from cedos.errors import CedosError, SessionError
from cedos.model import Label
from cedos.session.protocol.crypto import KeyPair
from cedos.session.sockets import background, sockets
from cedos.session.sockets.connection import STREAM_LABEL, Connection, Message
from cedos.session.sockets.listener import Listener
from cedos.session.sockets.options import (
    SO_CHOOSER,
    SO_DEADLINE,
    SO_ESIZE,
    SO_KEY,
    SO_LABEL,
    SO_NETWORKS,
    SO_RCVBUFTH,
    SO_SCHEDULER,
    SO_SERVER_KEY,
    SOL_SESSION,
    SocketOption,
    known,
)
from cedos.session.sockets.os_errors import as_os_error, run
from cedos.session.sockets.readiness import Readiness

SHUT_WR: Final = bsd.SHUT_WR
_READ_AHEAD: Final = 1 << 20
_FIRST_PATH_S: Final = 30.0

T = TypeVar("T")


class socket:  # noqa: N801 - as the standard library's
    """A session, or what accepts sessions.

    Errors are OSError with a socket's numbers and a session's words
    (`cedos.session.sockets.os_errors`); what the session raised is their cause. A blocking call waits by
    running the loop itself, or for whoever runs it.
    """

    def __init__(self) -> None:
        self._timeout_s: float | None = None
        self._options: dict[SocketOption, Any] = {}
        self._address: tuple[str, int] = ("", 0)
        self._connection: Connection | None = None
        self._listener: Listener | None = None
        self._ready = Readiness()
        self._changed = threading.Condition()
        self._closed = False
        self._chunks: deque[memoryview] = deque()
        self._buffered = 0
        self._ended: SessionError | None = None
        self._eof = False
        self._others = False  # whether something else than the stream makes it readable
        self._accepted: deque[Connection] = deque()

    # Options

    def setsockopt(self, level: int, option: int, value: Any) -> None:
        """Sets an option; `deadline`, `expected size`, thresholds and label at any time."""
        self._options[known(level, option)] = value
        if self._connection is not None:
            run(self._apply())

    def getsockopt(self, level: int, option: int) -> Any:
        """What was set; None where nothing was."""
        return self._options.get(known(level, option))

    async def _apply(self) -> None:
        connection, options = self._connection, self._options
        if connection is None:  # closed meanwhile
            return
        if SocketOption.LABEL in options:
            connection.label = options[SocketOption.LABEL]
        low, high = options.get(SocketOption.BUFFER_THRESHOLDS, (None, None))
        deadline_s = options.get(SocketOption.DEADLINE)
        if connection.dials and (deadline_s is not None or low is not None):
            connection.wait_for(
                deadline_s=deadline_s,
                expected_bytes=options.get(SocketOption.EXPECTED_SIZE, 0),
                low_bytes=low,
                high_bytes=high,
                buffered=lambda: self._buffered,
            )

    def settimeout(self, seconds: float | None) -> None:
        """None: operations block; 0: they do not; else they raise TimeoutError after so long."""
        self._timeout_s = seconds

    def gettimeout(self) -> float | None:
        return self._timeout_s

    def setblocking(self, yes: bool) -> None:
        self._timeout_s = None if yes else 0.0

    def fileno(self) -> int:
        """For `select`: readable when `recv`, `ms_recv` or `accept` have something."""
        if not self._ready.shown and self._connection is not None:
            self._in_this_thread(lambda _: self._update())
        with self._changed:  # the loop may be telling it something meanwhile
            return self._ready.fileno()

    # Beginning

    def bind(self, address: tuple[str, int]) -> None:
        """Where to listen: an own address ("" for all) and a port (0 for any)."""
        self._address = address

    def listen(self, backlog: int = 128) -> None:
        """Begins to accept sessions; `backlog` is the driver's own choice."""
        self._listener = run(self._listen())

    async def _listen(self) -> Listener:
        options = self._options
        chosen = (
            {"scheduler": options[SocketOption.SCHEDULER]}
            if SocketOption.SCHEDULER in options
            else {}
        )
        listener = await sockets.listen(self._address, key=options.get(SocketOption.KEY), **chosen)
        listener.on_new(lambda: self._new(listener))
        return listener

    def _new(self, listener: Listener) -> None:
        with self._changed:
            while (connection := listener.accept_now()) is not None:
                self._accepted.append(connection)
            self._ready.readable(bool(self._accepted))
            self._changed.notify_all()
        background.loop_lock().check()

    def accept(self) -> "builtins.tuple[socket, tuple[str, int]]":
        """The next session and where its first connection came from."""
        with self._changed:
            if self._listener is None:
                raise self._wrong(errno.EINVAL, "the socket does not listen")
            self._wait(lambda: bool(self._accepted))
            connection = self._accepted.popleft()
            self._ready.readable(bool(self._accepted))
        made = socket()
        run(made._take(connection))
        return made, connection.peer_address

    def connect(self, address: tuple[str, int]) -> None:
        """A session with a server; options say with which key, how long it may wait, and so on.

        Tries until the time of `settimeout` is over, half a minute without one; never returns before.

        Raises:
            ConnectionRefusedError: the server refuses or has another key, or nobody listens.
            TimeoutError: nobody answered.
            OSError: EINVAL: an option or the address cannot be used; EISCONN; EBADF.
            socket.gaierror: there is no such name.
        """
        if self._connection is not None or self._listener is not None:
            raise OSError(errno.EISCONN, "the socket is connected, or listens, already")
        if self._closed:
            raise self._wrong(errno.EBADF, "")
        if SocketOption.SERVER_KEY not in self._options:
            raise OSError(errno.EINVAL, "the server's key is not known; set SO_SERVER_KEY first")
        run(self._connect(address))

    async def _connect(self, address: tuple[str, int]) -> None:
        options = self._options
        key: KeyPair | None = options.get(SocketOption.KEY)
        more = (
            {"scheduler": options[SocketOption.SCHEDULER]}
            if SocketOption.SCHEDULER in options
            else {}
        )
        connection = await sockets.connect(
            address,
            server_key=options[SocketOption.SERVER_KEY],
            key=key,
            label=options.get(SocketOption.LABEL, STREAM_LABEL),
            deadline=options.get(SocketOption.DEADLINE),
            timeout_s=self._timeout_s or _FIRST_PATH_S,
            networks=options.get(SocketOption.NETWORKS),
            chooser=options.get(SocketOption.CHOOSER),
            **more,
        )
        await self._take(connection)

    async def _take(self, connection: Connection) -> None:
        self._connection = connection
        connection.on_change(self._update)
        await self._apply()
        self._update()

    # The stream

    def _update(self) -> None:
        """Reads ahead, in the loop; called whenever anything happened."""
        with self._changed:
            connection = self._connection
            if connection is None:  # closed, when this call was on its way already
                return
            while self._buffered < _READ_AHEAD and connection.readable_bytes:
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
        background.loop_lock().check()

    def recv(self, most_bytes: int) -> bytes:
        """The next bytes of the stream; empty at its end."""
        with self._changed:
            if self._connection is None:
                raise self._wrong(errno.ENOTCONN, "the socket is not connected")
            self._wait(lambda: bool(self._chunks) or self._eof or self._ended is not None)
            if not self._chunks:
                if self._ended is not None and not self._eof:
                    raise as_os_error(self._ended) from self._ended
                return b""
            chunk = self._chunks[0]
            data = bytes(chunk[:most_bytes])
            if len(data) == len(chunk):
                self._chunks.popleft()
            else:
                self._chunks[0] = chunk[len(data) :]
            full = self._buffered >= _READ_AHEAD  # the loop has left something unread
            self._buffered -= len(data)
            self._ready.readable(bool(self._chunks) or self._others)
        if full:
            background.loop().call_soon_threadsafe(self._update)
        return data

    def recv_into(self, buffer: bytearray | memoryview) -> int:
        data = self.recv(len(buffer))
        buffer[: len(data)] = data
        return len(data)

    def send(self, data: bytes) -> int:
        """Hands bytes to the stream; how many there was room for."""
        whole = bytes(data)
        taken = self._in_this_thread(lambda connection: self._write(connection, whole))
        if not taken:
            taken = run(self._send(whole), self._timeout_s or None)
        if not taken and data:
            raise BlockingIOError("no room for more unacknowledged bytes")
        return taken

    def _write(self, connection: Connection, data: bytes) -> int:
        taken = connection.write_now(data)
        if self._ready.shown:
            self._ready.writable(connection.room_bytes > 0)
        return taken

    async def _send(self, data: bytes) -> int:
        connection = self._of()
        taken = connection.write_now(data)
        if not taken and self._timeout_s != 0:
            await connection.write(data)
            taken = len(data)
        with self._changed:
            self._ready.writable(connection.room_bytes > 0)
        return taken

    def sendall(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            view = view[self.send(bytes(view[: 1 << 20])) :]

    def shutdown(self, how: int) -> None:
        if how in (bsd.SHUT_WR, bsd.SHUT_RDWR):
            run(self._finish())

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
        whole = bytes(data)
        if after is None and thunk is None:
            irob = self._in_this_thread(lambda connection: connection.send_now(whole, label))
            if irob:
                return irob
        return run(self._of().send(whole, label, after=after, thunk=thunk), self._timeout_s)

    def begin_irob(
        self,
        label: Label = STREAM_LABEL,
        after: tuple[int, ...] | None = None,
        thunk: Callable[[], None] | None = None,
    ) -> Any:
        """Begins a message; give what is returned to `irob_send` and `end_irob`."""
        return run(self._of().begin(label, after=after, thunk=thunk), self._timeout_s)

    def irob_send(self, irob: Any, data: bytes) -> None:
        run(irob.send(bytes(data)), self._timeout_s)

    def end_irob(self, irob: Any) -> None:

        async def end() -> None:
            irob.end()

        run(end())

    def ms_recv(self) -> Message | None:
        """The next message with its label; None when the other end has closed."""
        message = self._in_this_thread(self._received)
        if message is None:
            message = run(self._message(), self._timeout_s or None)
        if self._ready.shown:
            background.loop().call_soon_threadsafe(self._update)
        return message

    def _received(self, connection: Connection) -> Message | None:
        """Waits for one in this thread, which has hold of the loop; None at the end, whatever it is."""
        message = connection.receive_now()
        if message is None and self._timeout_s != 0:

            def wanted() -> bool:
                over = connection.peer_closed or connection.ended or self._closed
                return over or connection.receivable > 0

            if not background.loop_lock().drive(wanted, self._timeout_s):
                raise TimeoutError("timed out")
            message = connection.receive_now()
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
        with self._changed:
            connection, self._connection = self._connection, None
            listener, self._listener = self._listener, None
            self._end()
        if connection is not None:
            connection.on_change(None)
            background.loop().call_soon_threadsafe(background.spawn, _close(connection))
        if listener is not None:
            run(listener.close())
        background.loop_lock().nudge()

    def close_wait(self, timeout_s: float | None = None) -> None:
        """As `close`, but waits until everything has arrived; OSError if it has not."""
        connection = self._of()
        connection.on_change(None)
        run(connection.close(), timeout_s)
        with self._changed:
            self._connection = None
            self._end()

    def getsockname(self) -> tuple[str, int]:
        return self._address if self._listener is None else self._listener.address

    @property
    def session(self) -> Connection:
        """The session itself; to be used in its loop only."""
        return self._of()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    # Waiting

    def _of(self) -> Connection:
        if self._connection is None:
            raise self._wrong(errno.ENOTCONN, "the socket is not connected")
        return self._connection

    def _end(self) -> None:
        """Nothing more comes; wakes who waits. With the lock held."""
        self._closed = True
        self._ready.close()
        self._changed.notify_all()

    def _wrong(self, number: int, why: str) -> OSError:
        if self._closed:
            return OSError(errno.EBADF, "the socket is closed")
        return OSError(number, f"{why} ({os.strerror(number)})")

    def _wait(self, wanted: Callable[[], bool]) -> None:
        if wanted():
            return
        if not self._drive(lambda: self._closed or wanted()):
            if self._timeout_s == 0:
                raise BlockingIOError("nothing is here yet")
            raise TimeoutError("timed out")
        if self._closed:
            raise self._wrong(errno.EBADF, "")

    def _drive(self, wanted: Callable[[], bool]) -> bool:
        """Lets the loop go on until something is so; False if it is not in time. With the lock held."""
        here = background.loop_lock()
        self._changed.release()  # the loop wants it, in whichever thread
        try:
            if here.take():
                try:
                    if self._timeout_s != 0:
                        return here.drive(wanted, self._timeout_s)
                    here.turn()
                    return wanted()
                finally:
                    here.give(prompt=self._ready.shown)
        finally:
            self._changed.acquire()
        with here.following():
            return self._changed.wait_for(wanted, self._timeout_s)

    def _in_this_thread(self, do: Callable[[Connection], T]) -> T | None:
        """What this thread can do with the session by itself; None where another one has its loop."""
        connection, here = self._of(), background.loop_lock()
        if not here.take():
            return None
        try:
            return do(connection)
        except CedosError as error:
            raise as_os_error(error) from error
        finally:
            connection.flow.turn_over()
            here.give(prompt=self._ready.shown)


async def _close(connection: Connection) -> None:
    try:
        await connection.close()
    except SessionError:
        return  # nobody is left to be told


__all__ = [
    "SHUT_WR",
    "SOL_SESSION",
    "SO_CHOOSER",
    "SO_DEADLINE",
    "SO_ESIZE",
    "SO_KEY",
    "SO_LABEL",
    "SO_NETWORKS",
    "SO_RCVBUFTH",
    "SO_SCHEDULER",
    "SO_SERVER_KEY",
    "SocketOption",
    "socket",
]

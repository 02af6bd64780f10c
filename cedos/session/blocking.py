"""Sessions as blocking sockets, for programs without asyncio: the calls of D2TP's API (Cedos, IV-A).

    s = blocking.socket()
    s.setsockopt(blocking.SOL_SESSION, blocking.SO_DEADLINE, 600)
    s.connect(("server.example", 9000))

A thread of the process runs the event loop of all its sockets. The loop reads each session ahead into
the socket's buffer, and wakes the threads that wait for it. Any thread may call any socket. `fileno` is
for `select`, which may wait for sessions and TCP sockets together.
"""

import asyncio
import atexit
import contextlib
import errno
import os
import socket as bsd
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any, Final, Self, TypeVar

from cedos.errors import CedosError, ConfigError, HostError, SessionError, SessionRefusedError
from cedos.session.protocol.buffer_manager import BufferManager
from cedos.session.protocol.schedulers import DEFAULT
from cedos.session.sockets import sockets
from cedos.session.sockets.connection import STREAM_LABEL, Connection
from cedos.session.sockets.listener import Listener, open_bound

_READ_AHEAD: Final = 1 << 20
_AT_EXIT_S: Final = 3.0

T = TypeVar("T")


# Options of level `SOL_SESSION`. The first three are those of D2TP (Cedos, IV-A).
SOL_SESSION: Final = 0xCED05
SO_DEADLINE: Final = 1  # seconds until everything should have arrived; also without any network
SO_ESIZE: Final = 2  # bytes that the stream will bring
SO_RCVBUFTH: Final = 3  # (low, high) bytes: when cellular networks are used
SO_LABEL: Final = 4  # of the stream: a cedos.model.Label
SO_SERVER_KEY: Final = 5  # 32 bytes, before `connect`; without, the key in the user's file
SO_KEY: Final = 6  # a KeyPair, before `connect` and `listen`; without, the user's own
SO_SCHEDULER: Final = 7  # the name of a path scheduler, before `connect` and `listen`
SO_NETWORKS: Final = 8  # a function, as `connect(networks=...)`
SO_CHOOSER: Final = 9  # a cedos.session.io.advice.Chooser, before `connect`


class _Background:
    """The event loop of a process's sockets, and the thread that runs it."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self._tasks: set[asyncio.Task[None]] = set()
        threading.Thread(target=self.loop.run_forever, name="cedos-session", daemon=True).start()

    def run(self, wanted: Coroutine[Any, Any, T], timeout_s: float | None = None) -> T:
        """Run a coroutine in the loop and wait for its end.

        OSError: see `_as_os_error`. TimeoutError: not in time; the coroutine is cancelled then.
        """
        future = asyncio.run_coroutine_threadsafe(wanted, self.loop)
        try:
            return future.result(timeout_s)
        except CedosError as error:
            raise _as_os_error(error) from error
        except BaseException:
            future.cancel()
            raise

    def spawn(self, wanted: Coroutine[Any, Any, None]) -> None:
        """Start a coroutine in the loop, from any thread, without waiting for its end."""

        def start() -> None:
            task = self.loop.create_task(wanted)
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

        self.loop.call_soon_threadsafe(start)


_making = threading.Lock()
_shared: _Background | None = None
_connections: weakref.WeakSet[Connection] = weakref.WeakSet()


def _background() -> _Background:
    """Return the process's loop; the first call makes it, in the network namespace of its thread."""
    global _shared  # noqa: PLW0603 - a process has one loop for all its sockets
    with _making:
        _shared = _shared or _Background()
        return _shared


def _after_fork() -> None:
    """Forget the parent's loop and sessions in a forked child: the parent goes on with them."""
    global _shared, _making
    _shared, _making = None, threading.Lock()
    _connections.clear()


async def _close(connection: Connection) -> None:
    with contextlib.suppress(SessionError):  # the program has closed the socket: no call can fail
        await connection.close()


def _leave_all() -> None:
    """Deliver what a program has sent that ends without `close`, as TCP does."""

    async def leave() -> None:
        await asyncio.gather(*(each.leave() for each in _connections), return_exceptions=True)

    if _connections:
        with contextlib.suppress(OSError):
            _background().run(leave(), _AT_EXIT_S)


atexit.register(_leave_all)
os.register_at_fork(after_in_child=_after_fork)


class socket:  # noqa: N801 - as the standard library's
    """A session, or a listener for sessions.

    Errors are OSError with the numbers of a TCP socket's errors and the session's words; the session's
    error is the cause.
    """

    def __init__(self) -> None:
        self._timeout_s = bsd.getdefaulttimeout()
        self._options: dict[int, Any] = {}
        self._address = self._peer = ("", 0)
        self._bound: bsd.socket | None = None
        self._listener: Listener | None = None
        self._connection: Connection | None = None
        # The loop and the program's threads share the following fields, under this lock.
        self._changed = threading.Condition()
        self._accepted: deque[Connection] = deque()
        self._ahead: deque[memoryview] = deque()  # read from the session, not yet by the program
        self._ahead_bytes = 0
        self._eof = self._closed = self._has_room = False
        self._failure: SessionError | None = None
        self._ready = _Readiness()

    # Options

    def setsockopt(self, level: int, option: int, value: Any) -> None:
        """Set an option. OSError: ENOPROTOOPT: a session has no such option."""
        self._options[_known(level, option)] = value
        if self._connection is not None:
            _background().run(self._apply())

    def getsockopt(self, level: int, option: int) -> Any:
        """Return an option's value; None where it was not set."""
        return self._options.get(_known(level, option))

    async def _apply(self) -> None:
        connection, options = self._connection, self._options
        if connection is None:  # closed meanwhile
            return
        connection.label = options.get(SO_LABEL, connection.label)
        thresholds, deadline_s = options.get(SO_RCVBUFTH), options.get(SO_DEADLINE)
        buffer = thresholds and BufferManager(low_bytes=thresholds[0], high_bytes=thresholds[1])
        if connection.dials and (deadline_s is not None or buffer is not None):
            connection.wait_for(
                deadline_s=deadline_s,
                expected_bytes=options.get(SO_ESIZE, 0),
                buffer=buffer,
                buffered=lambda: self._ahead_bytes,
            )

    def settimeout(self, seconds: float | None) -> None:
        """Let calls wait so long; None: without limit; 0: not at all."""
        if seconds is not None and not 0.0 <= seconds < 1e9:
            raise ValueError(f"{seconds} is no time-out; seconds from 0 on, or None, are")
        self._timeout_s = None if seconds is None else float(seconds)

    def setblocking(self, yes: bool) -> None:
        self._timeout_s = None if yes else 0.0

    def fileno(self) -> int:
        """Return a descriptor for `select` alone; -1 once closed."""
        with self._changed:
            return -1 if self._closed else self._ready.fileno()

    # Connecting and listening

    def bind(self, address: tuple[str, int]) -> None:
        """Take an address to listen at: one of this host's, "" for all, and a port, 0 for any."""
        self._check_open()
        if self._bound is not None or self._connection is not None:
            raise _os_error(errno.EINVAL, "the socket has an address")
        try:
            self._bound = open_bound(address)
        except CedosError as error:
            raise _as_os_error(error) from error
        self._address = (address[0], self._bound.getsockname()[1])

    def listen(self, backlog: int = 128) -> None:
        """Begin to accept sessions."""
        if self._listener is not None:
            return
        if self._bound is None:
            self.bind(("", 0))
        assert self._bound is not None
        self._bound.listen(max(backlog, 1))
        self._listener = _background().run(self._listen(self._bound))

    async def _listen(self, bound: bsd.socket) -> Listener:
        key, scheduler = self._options.get(SO_KEY), self._options.get(SO_SCHEDULER, DEFAULT)
        listener = await sockets.listen(
            self._address, key=key, listening=bound, scheduler=scheduler
        )
        listener.on_new(lambda: self._on_new(listener))
        return listener

    def _on_new(self, listener: Listener) -> None:
        with self._changed:
            while (connection := listener.accept_now()) is not None:
                self._accepted.append(connection)
            self._ready.set_readable(bool(self._accepted))
            self._changed.notify_all()

    def accept(self) -> "tuple[socket, tuple[str, int]]":
        """Return the next session and the address that its first connection came from."""
        with self._changed:
            self._check_open()
            if self._listener is None:
                raise _os_error(errno.EINVAL, "the socket does not listen")
            self._wait(lambda: bool(self._accepted), self._timeout_s)
            connection = self._accepted.popleft()
            self._ready.set_readable(bool(self._accepted))
        made = socket()
        _background().run(made._take(connection))
        return made, connection.peer_address

    def connect(self, address: str | tuple[str, int]) -> None:
        """Begin a session with a server, and wait for its first path, even if the socket does not block.

        Args:
            address: host and port, or the name of a server in the user's file of servers.

        Raises:
            ConnectionRefusedError: the server refuses, has another key, or does not listen.
            TimeoutError: no answer within the time-out, 30 s without one.
            OSError: EINVAL: an option or the address cannot be used; EISCONN; EBADF.
            socket.gaierror: the name is unknown.
        """
        self._check_open()
        if self._connection is not None or self._bound is not None:
            raise _os_error(errno.EISCONN, "the socket is connected, or bound to listen")
        _background().run(self._connect(address))

    async def _connect(self, address: str | tuple[str, int]) -> None:
        options = self._options
        connection = await sockets.connect(
            address,
            server_key=options.get(SO_SERVER_KEY),
            key=options.get(SO_KEY),
            label=options.get(SO_LABEL, STREAM_LABEL),
            deadline=options.get(SO_DEADLINE),
            timeout_s=self._timeout_s or sockets.FIRST_PATH_S,
            networks=options.get(SO_NETWORKS),
            chooser=options.get(SO_CHOOSER),
            scheduler=options.get(SO_SCHEDULER, DEFAULT),
        )
        await self._take(connection)

    async def _take(self, connection: Connection) -> None:
        """Make a session this socket's; in the loop."""
        with self._changed:
            if self._closed:  # while the session was made
                _background().spawn(_close(connection))
                return
            self._connection = connection
            _connections.add(connection)
        for path in list(connection.flow.paths.values())[:1]:
            self._peer, self._address = path.peer_address(), path.own_endpoint()
        connection.on_change(self._on_change)
        await self._apply()
        self._on_change()

    # The stream

    def _on_change(self) -> None:
        """Read ahead, and wake the threads that wait; in the loop, after each change of the session."""
        with self._changed:
            if (connection := self._connection) is None:  # closed before this call's turn
                return
            while self._ahead_bytes < _READ_AHEAD and (data := connection.read_now()):
                self._ahead.append(memoryview(data))
                self._ahead_bytes += len(data)
            self._eof, self._failure = connection.at_eof, connection.failure
            self._has_room = connection.room_bytes > 0 or connection.ended
            self._ready.set_readable(self._readable())
            self._ready.set_writable(self._has_room)
            self._changed.notify_all()

    def _readable(self) -> bool:
        return bool(self._ahead) or self._eof or self._failure is not None

    def recv(self, bufsize: int) -> bytes:
        """Return the next bytes of the stream; empty at its end."""
        with self._changed:
            self._connected()
            self._wait(self._readable, self._timeout_s)
            if not self._ahead:
                if self._failure is not None and not self._eof:
                    raise _as_os_error(self._failure) from self._failure
                return b""
            full = self._ahead_bytes >= _READ_AHEAD  # the session may have more
            chunk = self._ahead.popleft()
            if len(chunk) > bufsize:
                self._ahead.appendleft(chunk[bufsize:])
            data = bytes(chunk[:bufsize])
            self._ahead_bytes -= len(data)
            self._ready.set_readable(self._readable())
        if full:
            _background().loop.call_soon_threadsafe(self._on_change)
        return data

    def send(self, data: Any) -> int:
        """Hand bytes to the stream; return how many of them there was room for."""
        return self._send(bytes(memoryview(data)), self._timeout_s)

    def sendall(self, data: Any) -> None:
        """Hand all bytes to the stream. TimeoutError: no room in time; a part may have been taken."""
        view = memoryview(data).cast("B")
        ends_s = time.monotonic() + (self._timeout_s or 0.0)
        while view:
            left_s = max(ends_s - time.monotonic(), 1e-3) if self._timeout_s else self._timeout_s
            view = view[self._send(bytes(view[:_READ_AHEAD]), left_s) :]

    def _send(self, data: bytes, timeout_s: float | None) -> int:
        taken = 0
        while data and not taken:
            with self._changed:
                connection = self._connected()
                self._wait(lambda: self._has_room, timeout_s)
            taken = _background().run(self._write(connection, data))
        return taken

    async def _write(self, connection: Connection, data: bytes) -> int:
        taken = connection.write_now(data)
        with self._changed:
            self._has_room = connection.room_bytes > 0
            self._ready.set_writable(self._has_room)
        return taken

    # Ending

    def shutdown(self, how: int) -> None:
        """End the stream to the peer: SHUT_WR, or SHUT_RDWR. The peer's own stream goes on."""
        if how not in (bsd.SHUT_WR, bsd.SHUT_RDWR):
            raise _os_error(errno.EINVAL, "a session ends its own way; SHUT_WR would be right")
        _background().run(self._finish(self._connected()))

    async def _finish(self, connection: Connection) -> None:
        connection.finish()

    def close(self) -> None:
        """End the session without waiting; what was sent still arrives, if it can."""
        with self._changed:
            connection, listener = self._connection, self._listener
            self._connection = self._listener = None
            self._closed = True
            self._ready.close()
            self._changed.notify_all()
        if self._bound is not None and listener is None:
            self._bound.close()
        if connection is not None:
            _background().spawn(_close(connection))
        if listener is not None:
            _background().run(listener.close())

    def getsockname(self) -> tuple[str, int]:
        """Return the address of a listener, or this host's end of a session's first connection."""
        return self._address if self._listener is None else self._listener.address

    def getpeername(self) -> tuple[str, int]:
        """Return the peer's end of the session's first connection; the peer may have moved since."""
        self._connected()
        return self._peer

    @property
    def session(self) -> Connection:
        """The session itself; to be used in its loop only."""
        return self._connected()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    # Waiting

    def _wait(self, wanted: Callable[[], bool], timeout_s: float | None) -> None:
        """Wait until a condition holds or the socket is closed; with the lock held."""
        if not self._changed.wait_for(lambda: self._closed or wanted(), timeout_s):
            if timeout_s == 0:
                raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))
            raise TimeoutError("timed out")
        self._check_open()

    def _connected(self) -> Connection:
        self._check_open()
        if self._connection is None:
            raise _os_error(errno.ENOTCONN, "the socket is not connected")
        return self._connection

    def _check_open(self) -> None:
        if self._closed:
            raise _os_error(errno.EBADF, "the socket is closed")


class _Readiness:
    """A file descriptor that `select` finds readable and writable as the socket is.

    It is one end of a pair of kernel sockets, made at the first call of `fileno`. A byte written to the
    other end makes it readable; filling its own buffer makes it not writable. Callers hold the lock.
    """

    def __init__(self) -> None:
        self._ends: tuple[bsd.socket, bsd.socket] | None = None  # shown and hidden
        self._readable = self._writable = False

    def fileno(self) -> int:
        if self._ends is None:
            shown, hidden = self._ends = bsd.socketpair()
            for each in self._ends:
                each.setblocking(False)
            shown.setsockopt(bsd.SOL_SOCKET, bsd.SO_SNDBUF, 1)  # the least that the kernel allows
            if self._readable:
                hidden.send(b"r")
            if not self._writable:
                self._fill(shown)
        return self._ends[0].fileno()

    def set_readable(self, yes: bool) -> None:
        if self._ends is not None and yes is not self._readable:
            shown, hidden = self._ends
            if yes:
                hidden.send(b"r")
            else:
                shown.recv(1)
        self._readable = yes

    def set_writable(self, yes: bool) -> None:
        if self._ends is not None and yes is not self._writable:
            shown, hidden = self._ends
            if yes:
                with contextlib.suppress(BlockingIOError):
                    while True:
                        hidden.recv(1 << 20)
            else:
                self._fill(shown)
        self._writable = yes

    @staticmethod
    def _fill(shown: bsd.socket) -> None:
        with contextlib.suppress(BlockingIOError):
            while True:
                shown.send(bytes(8_192))

    def close(self) -> None:
        for each in self._ends or ():
            each.close()
        self._ends = None


def _known(level: int, option: int) -> int:
    if level == SOL_SESSION and SO_DEADLINE <= option <= SO_CHOOSER:
        return option
    raise OSError(errno.ENOPROTOOPT, f"a session has no option {option} of level {level:#x}")


def _os_error(number: int, why: str) -> OSError:
    return OSError(number, f"{why} ({os.strerror(number)})")


def _as_os_error(error: CedosError) -> OSError:
    """Return the OSError that fits, with the same words.

    ECONNREFUSED for a server's refusal and for another key; EINVAL for an argument that cannot be used;
    the number of the cause where it is an OSError (ETIMEDOUT, EADDRINUSE, a `gaierror`); else ECONNRESET.
    """
    text, cause = str(error), error.__cause__
    if isinstance(error, SessionRefusedError):
        return OSError(errno.ECONNREFUSED, text)
    if isinstance(error, ConfigError):
        return OSError(errno.EINVAL, text)
    if isinstance(cause, bsd.gaierror) and cause.errno is not None:
        return bsd.gaierror(cause.errno, text)
    if isinstance(cause, OSError) and cause.errno:
        return OSError(cause.errno, text)
    return OSError(errno.EIO if isinstance(error, HostError) else errno.ECONNRESET, text)

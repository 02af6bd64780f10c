"""Sessions as blocking sockets, for programs without asyncio: the calls of D2TP's API (Cedos, IV-A).

    s = blocking.socket()
    s.setsockopt(blocking.SOL_SESSION, blocking.SO_DEADLINE, 600)
    s.connect(("server.example", 9000))

The program has one end of a pair of kernel sockets, so that time-outs, `select` and threads are the
kernel's matter. A thread of the process runs the event loop of all its sockets, which carries bytes
between the other end of each pair and its session.
"""

import asyncio
import atexit
import contextlib
import errno
import fcntl
import os
import socket as bsd
import struct
import termios
import threading
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any, Final, Self, TypeVar

from cedos.errors import CedosError, ConfigError, HostError, SessionError, SessionRefusedError
from cedos.kernel.interface_socket import receive
from cedos.session.protocol.buffer_manager import BufferManager
from cedos.session.sockets import sockets
from cedos.session.sockets.connection import STREAM_LABEL, Connection
from cedos.session.sockets.listener import Listener, host_limits, open_bound

_CARRIED_BYTES: Final = 1 << 16
_AT_EXIT_S: Final = 3.0
_PAIR: Final = 2  # descriptors of a session, beside those of its connections

T = TypeVar("T")


# Options of level `SOL_SESSION`. The first three are those of D2TP (Cedos, IV-A).
SOL_SESSION: Final = 0xCED05
SO_DEADLINE: Final = 1  # seconds until everything should have arrived; also without any network
SO_ESIZE: Final = 2  # bytes that the stream will bring
SO_RCVBUFTH: Final = 3  # (low, high) bytes: when cellular networks are used
SO_LABEL: Final = 4  # of the stream: a cedos.model.Label
SO_SERVER_KEY: Final = 5  # 32 bytes, before `connect`; without, the key in the user's file
SO_KEY: Final = 6  # a KeyPair, before `connect` and `listen`; without, the user's own

_making = threading.Lock()
_loop: asyncio.AbstractEventLoop | None = None
_sessions: "set[socket]" = set()  # whose sessions have not ended


def _shared_loop() -> asyncio.AbstractEventLoop:
    """Return the process's loop; the first call makes it, in the network namespace of its thread."""
    global _loop  # noqa: PLW0603 - a process has one loop for all its sockets
    with _making:
        if _loop is None:
            _loop = asyncio.new_event_loop()
            threading.Thread(target=_loop.run_forever, name="cedos-session", daemon=True).start()
        return _loop


def _run(wanted: Coroutine[Any, Any, T], timeout_s: float | None = None) -> T:
    """Run a coroutine in the loop and wait for its end.

    OSError: see `_as_os_error`. TimeoutError: not in time; the coroutine is cancelled then.
    """
    future = asyncio.run_coroutine_threadsafe(wanted, _shared_loop())
    try:
        return future.result(timeout_s)
    except CedosError as error:
        raise _as_os_error(error) from error
    except BaseException:
        future.cancel()
        raise


def _after_fork() -> None:
    """Forget the parent's loop and sessions in a forked child: the parent goes on with them."""
    global _loop, _making
    _loop, _making = None, threading.Lock()
    _sessions.clear()


def _leave_all() -> None:
    """Deliver what a program has sent that ends without `close`, as TCP does."""
    left = list(_sessions)
    for each in left:
        each.close()

    async def leave() -> None:
        await asyncio.gather(*(each._leave() for each in left), return_exceptions=True)

    if left:
        with contextlib.suppress(OSError):
            _run(leave(), _AT_EXIT_S)


atexit.register(_leave_all)
os.register_at_fork(after_in_child=_after_fork)


class socket:  # noqa: N801 - as the standard library's
    """A session, or a listener for sessions.

    Errors are OSError with the numbers of a TCP socket's errors and the session's words; the session's
    error is the cause.
    """

    def __init__(self) -> None:
        self._options: dict[int, Any] = {}
        self._address = self._peer = ("", 0)
        self._bound: bsd.socket | None = None
        self._listener: Listener | None = None
        self._connection: Connection | None = None
        self._closed = False
        # The program's end of the pair, and the loop's. A listener's has a byte while a session waits.
        self._shown, self._hidden = bsd.socketpair()
        self._hidden.setblocking(False)
        self._accepted: deque[Connection] = deque()
        self._accepting = threading.Lock()
        self._tasks: list[asyncio.Task[None]] = []  # in the loop: one from the program, one to it
        self._eof = False  # the program's end has the peer's whole stream
        self._failure: SessionError | None = None

    # Options

    def setsockopt(self, level: int, option: int, value: Any) -> None:
        """Set an option. OSError: ENOPROTOOPT: a session has no such option."""
        self._options[_find_option(level, option)] = value
        if self._connection is not None:
            _run(self._apply(self._connection))

    def getsockopt(self, level: int, option: int) -> Any:
        """Return an option's value; None where it was not set."""
        return self._options.get(_find_option(level, option))

    async def _apply(self, connection: Connection) -> None:
        options = self._options
        connection.label = options.get(SO_LABEL, connection.label)
        thresholds, deadline_s = options.get(SO_RCVBUFTH), options.get(SO_DEADLINE)
        buffer = thresholds and BufferManager(low_bytes=thresholds[0], high_bytes=thresholds[1])
        if connection.dials and (deadline_s is not None or buffer is not None):
            connection.wait_for(
                deadline_s=deadline_s,
                expected_bytes=options.get(SO_ESIZE, 0),
                buffer=buffer,
                buffered=self._unread_bytes,
            )

    def _unread_bytes(self) -> int:
        if self._closed:
            return 0
        found = fcntl.ioctl(self._shown, termios.FIONREAD, bytes(4))
        return int(struct.unpack("i", found)[0])

    def settimeout(self, seconds: float | None) -> None:
        """Let calls wait so long; None: without limit; 0: not at all."""
        self._shown.settimeout(seconds)

    def setblocking(self, yes: bool) -> None:
        self._shown.setblocking(yes)

    def fileno(self) -> int:
        """Return a descriptor for `select` alone; -1 once closed."""
        return self._shown.fileno()

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
        self._listener = _run(self._listen(self._bound))

    async def _listen(self, bound: bsd.socket) -> Listener:
        key = self._options.get(SO_KEY)
        hosts = host_limits(_PAIR)
        listener = await sockets.listen(self._address, key=key, hosts=hosts, listening=bound)
        self._tasks.append(asyncio.get_running_loop().create_task(self._collect(listener)))
        return listener

    async def _collect(self, listener: Listener) -> None:
        with contextlib.suppress(SessionError):  # the listener has been closed
            while True:
                connection = await listener.accept()
                with self._accepting:
                    self._accepted.append(connection)
                    if len(self._accepted) == 1:
                        self._hidden.send(b"1")

    def accept(self) -> "tuple[socket, tuple[str, int]]":
        """Return the next session and the address that its first connection came from."""
        self._check_open()
        if self._listener is None:
            raise _os_error(errno.EINVAL, "the socket does not listen")
        made = socket()  # first: without descriptors the session still waits
        try:
            self._call(self._shown.recv, 1)
        except BaseException:
            made.close()
            raise
        with self._accepting:
            connection = self._accepted.popleft()
            if self._accepted:
                self._hidden.send(b"1")
        _run(made._take(connection))
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
        _run(self._connect(address))

    async def _connect(self, address: str | tuple[str, int]) -> None:
        options = self._options
        connection = await sockets.connect(
            address,
            server_key=options.get(SO_SERVER_KEY),
            key=options.get(SO_KEY),
            label=options.get(SO_LABEL, STREAM_LABEL),
            deadline=options.get(SO_DEADLINE),
            timeout_s=self._shown.gettimeout() or sockets.FIRST_PATH_S,
        )
        await self._take(connection)

    async def _take(self, connection: Connection) -> None:
        """Make a session this socket's; in the loop."""
        self._connection = connection
        _sessions.add(self)
        for path in list(connection.flow.paths.values())[:1]:
            self._peer, self._address = path.peer_address(), path.own_endpoint()
        create_task = asyncio.get_running_loop().create_task
        self._tasks = [create_task(self._bring(connection)), create_task(self._send_on(connection))]
        if self._closed:  # while the session was made
            await self._end(connection)
        else:
            await self._apply(connection)

    # The stream

    async def _bring(self, connection: Connection) -> None:
        """Hand the program what comes, until the stream ends or the program has closed the socket."""
        loop = asyncio.get_running_loop()
        try:
            while data := await connection.read(_CARRIED_BYTES):
                await loop.sock_sendall(self._hidden, data)
            self._eof = True
            self._hidden.shutdown(bsd.SHUT_WR)
        except SessionError as error:
            self._fail(error)
        except OSError:
            pass

    async def _send_on(self, connection: Connection) -> None:
        """Send what the program writes, until it ends the stream."""
        try:
            # The kernel resets this end where the program closes its own with bytes that it did not
            # read, once all that it wrote has been taken here.
            with contextlib.suppress(ConnectionResetError):
                while data := await receive(self._hidden, _CARRIED_BYTES):
                    await connection.write(data)
            connection.finish()
        except SessionError as error:
            self._fail(error)

    def _fail(self, error: SessionError) -> None:
        """Wake all that wait: the session has ended."""
        self._failure = self._failure or error
        with contextlib.suppress(OSError):
            self._hidden.shutdown(bsd.SHUT_RDWR)

    def recv(self, bufsize: int) -> bytes:
        """Return the next bytes of the stream; empty at its end."""
        self._connection_or_raise()
        data = self._call(self._shown.recv, bufsize)
        if not (data or self._eof or self._failure is None):
            raise _as_os_error(self._failure) from self._failure
        return data

    def send(self, data: Any) -> int:
        """Hand bytes to the stream; return how many of them there was room for."""
        self._connection_or_raise()
        return self._call(self._shown.send, data)

    def sendall(self, data: Any) -> None:
        """Hand all bytes to the stream. TimeoutError: no room in time; a part may have been taken."""
        self._connection_or_raise()
        self._call(self._shown.sendall, data)

    def _call(self, call: Callable[[Any], T], argument: Any) -> T:
        """Do a call of the kernel's socket; raise what has ended this one, or its session."""
        try:
            found = call(argument)
        except (BrokenPipeError, ConnectionResetError) as error:
            self._check_open()
            if self._failure is None:
                raise
            raise _as_os_error(self._failure) from error
        if not found:
            self._check_open()
        return found

    # Ending

    def shutdown(self, how: int) -> None:
        """End the stream to the peer: SHUT_WR, or SHUT_RDWR. The peer's own stream goes on."""
        if how not in (bsd.SHUT_WR, bsd.SHUT_RDWR):
            raise _os_error(errno.EINVAL, "a session ends its own way; SHUT_WR would be right")
        self._connection_or_raise()
        self._shown.shutdown(bsd.SHUT_WR)

    def close(self) -> None:
        """End the session without waiting; what was sent still arrives, if it can."""
        if self._closed:
            return
        self._closed = True
        self._shown.shutdown(bsd.SHUT_RDWR)  # wakes the threads that wait
        self._shown.close()
        if self._connection is not None:
            asyncio.run_coroutine_threadsafe(self._end(self._connection), _shared_loop())
            return
        if self._listener is not None:
            _run(self._listener.close())
        elif self._bound is not None:
            self._bound.close()
        self._hidden.close()

    async def _end(self, connection: Connection) -> None:
        bringing, sending = self._tasks
        bringing.cancel()
        await asyncio.wait({sending})
        self._hidden.close()
        with contextlib.suppress(
            SessionError
        ):  # the program has closed the socket: no call can fail
            await connection.close()
        _sessions.discard(self)

    async def _leave(self) -> None:
        await asyncio.wait({self._tasks[1]})
        if self._connection is not None:
            await self._connection.leave()

    def getsockname(self) -> tuple[str, int]:
        """Return the address of a listener, or this host's end of a session's first connection."""
        return self._address if self._listener is None else self._listener.address

    def getpeername(self) -> tuple[str, int]:
        """Return the peer's end of the session's first connection; the peer may have moved since."""
        self._connection_or_raise()
        return self._peer

    @property
    def session(self) -> Connection:
        """The session itself; to be used in its loop only."""
        return self._connection_or_raise()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def _connection_or_raise(self) -> Connection:
        self._check_open()
        if self._connection is None:
            raise _os_error(errno.ENOTCONN, "the socket is not connected")
        return self._connection

    def _check_open(self) -> None:
        if self._closed:
            raise _os_error(errno.EBADF, "the socket is closed")


def _find_option(level: int, option: int) -> int:
    if level == SOL_SESSION and SO_DEADLINE <= option <= SO_KEY:
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

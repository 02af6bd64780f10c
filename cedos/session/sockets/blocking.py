"""BSD-like sockets over sessions: what a program that uses `socket` needs to change is one import.

    from cedos.session import blocking
    s = blocking.create_connection(("server.example", 9000))

The server's key is the one in the user's file (`cedos.session.known_hosts`), or that of SO_SERVER_KEY. A
socket works from any thread, blocks or does not as `settimeout` says, has files (`makefile`), and its
`fileno` can be given to `select`; nothing else can be done with that number, so TLS goes over
`ssl.SSLContext.wrap_bio`. IROBs are messages with labels: `begin_irob`, `irob_send`, `end_irob`,
`ms_send`, `ms_recv` (dissertation, Table 2.2).
"""

import builtins
import errno
import os
import socket as bsd
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from socket import (
    AF_INET,
    AF_INET6,
    IPPROTO_TCP,
    MSG_DONTWAIT,
    MSG_PEEK,
    MSG_WAITALL,
    SHUT_RD,
    SHUT_RDWR,
    SHUT_WR,
    SO_KEEPALIVE,
    SO_REUSEADDR,
    SOCK_STREAM,
    SOL_SOCKET,
    TCP_NODELAY,
)
from typing import IO, Any, Final, Self, TypeVar, cast

from cedos.errors import CedosError, SessionError
from cedos.model import Label
from cedos.session.protocol.buffer_manager import BufferManager
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
    plain,
)
from cedos.session.sockets.os_errors import as_os_error, run
from cedos.session.sockets.readiness import Readiness

_SENT_WITH: Final = bsd.MSG_NOSIGNAL | bsd.MSG_DONTWAIT | bsd.MSG_MORE
_READ_WITH: Final = MSG_PEEK | MSG_DONTWAIT | MSG_WAITALL
_READ_AHEAD: Final = 1 << 20
_FIRST_PATH_S: Final = 30.0

T = TypeVar("T")


class socket:  # noqa: N801 - as the standard library's
    """A session, or what accepts sessions.

    Errors are OSError with a socket's numbers and a session's words
    (`cedos.session.sockets.os_errors`); what the session raised is their cause. A blocking call waits by
    running the loop itself, or for whoever runs it.

    Args:
        family: of no meaning: a session uses every network there is.
        type: SOCK_STREAM.
        proto: 0 or TCP's.
    """

    type = SOCK_STREAM
    proto = 0

    def __init__(self, family: int = AF_INET, type: int = SOCK_STREAM, proto: int = 0) -> None:  # noqa: A002
        kind = type & ~(bsd.SOCK_CLOEXEC | bsd.SOCK_NONBLOCK)
        if kind != SOCK_STREAM or proto not in (0, IPPROTO_TCP):
            raise OSError(
                errno.EPROTONOSUPPORT, "a session is a stream; SOCK_STREAM would be right"
            )
        self.family = family
        self._timeout_s: float | None = bsd.getdefaulttimeout()
        self._options: dict[SocketOption, Any] = {}
        self._plain: dict[tuple[int, int], Any] = {}
        self._peer: tuple[str, int] | None = None
        self._io_refs = 0  # files of `makefile`; the name is the standard library's
        self._to_close = self._no_more = False
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
        """Sets an option; `deadline`, `expected size`, thresholds and label at any time.

        What programs set on every TCP socket (TCP_NODELAY, SO_KEEPALIVE) is taken and changes nothing.
        """
        if plain(level, option) is not None:
            self._plain[level, option] = value
            return
        self._options[known(level, option)] = value
        if self._connection is not None:
            run(self._apply())

    def getsockopt(self, level: int, option: int, size: int = 0) -> Any:
        """What was set; None where nothing was. `size` is of no meaning."""
        default = plain(level, option)
        if default is not None:
            return self._plain.get((level, option), default)
        return self._options.get(known(level, option))

    async def _apply(self) -> None:
        connection, options = self._connection, self._options
        if connection is None:  # closed meanwhile
            return
        if SocketOption.LABEL in options:
            connection.label = options[SocketOption.LABEL]
        buffer = None
        if SocketOption.BUFFER_THRESHOLDS in options:
            low, high = options[SocketOption.BUFFER_THRESHOLDS]
            buffer = BufferManager(low_bytes=low, high_bytes=high)
        deadline_s = options.get(SocketOption.DEADLINE)
        if connection.dials and (deadline_s is not None or buffer is not None):
            connection.wait_for(
                deadline_s=deadline_s,
                expected_bytes=options.get(SocketOption.EXPECTED_SIZE, 0),
                buffer=buffer,
                buffered=lambda: self._buffered,
            )

    def settimeout(self, seconds: float | None) -> None:
        """None: operations block; 0: they do not; else they raise TimeoutError after so long."""
        self._timeout_s = seconds

    def gettimeout(self) -> float | None:
        return self._timeout_s

    @property
    def timeout(self) -> float | None:
        return self._timeout_s

    def setblocking(self, yes: bool) -> None:
        self._timeout_s = None if yes else 0.0

    def getblocking(self) -> bool:
        return self._timeout_s != 0

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
            self._wait(lambda: bool(self._accepted), self._timeout_s)
            connection = self._accepted.popleft()
            self._ready.readable(bool(self._accepted))
        made = socket()
        run(made._take(connection))
        return made, connection.peer_address

    def connect(self, address: str | tuple[str, int]) -> None:
        """A session with a server; options say with which key, how long it may wait, and so on.

        Without SO_SERVER_KEY the key is looked up in the user's file; a name from there will do, too.

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
        run(self._connect(address))

    def connect_ex(self, address: str | tuple[str, int]) -> int:
        """As `connect`, but the error's number is returned; 0 where there is none."""
        try:
            self.connect(address)
        except OSError as error:
            return error.errno or errno.EIO
        return 0

    async def _connect(self, address: str | tuple[str, int]) -> None:
        options = self._options
        key: KeyPair | None = options.get(SocketOption.KEY)
        more = (
            {"scheduler": options[SocketOption.SCHEDULER]}
            if SocketOption.SCHEDULER in options
            else {}
        )
        connection = await sockets.connect(
            address,
            server_key=options.get(SocketOption.SERVER_KEY),
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
        paths = list(connection.flow.paths.values())
        if paths:
            self._peer = paths[0].peer_address()
            self._address = paths[0].own_endpoint()
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

    def recv(self, bufsize: int, flags: int = 0) -> bytes:
        """The next bytes of the stream; empty at its end. Flags: MSG_PEEK, MSG_DONTWAIT, MSG_WAITALL."""
        timeout_s = self._flagged(flags, _READ_WITH)
        with self._changed:
            if self._connection is None:
                raise self._wrong(errno.ENOTCONN, "the socket is not connected")
            least = min(bufsize, _READ_AHEAD) if flags & MSG_WAITALL else 1

            def over() -> bool:
                return self._eof or self._ended is not None or self._no_more

            if bufsize:
                self._wait(lambda: self._buffered >= least or over(), timeout_s)
            if self._no_more or not self._chunks:
                if self._ended is not None and not self._eof and not self._no_more:
                    raise as_os_error(self._ended) from self._ended
                return b""
            full = self._buffered >= _READ_AHEAD  # the loop has left something unread
            data = self._taken(bufsize, least, keep=bool(flags & MSG_PEEK))
            self._ready.readable(bool(self._chunks) or self._others)
        if full and not flags & MSG_PEEK:
            background.loop().call_soon_threadsafe(self._update)
        if flags & MSG_WAITALL and not flags & MSG_PEEK and data and len(data) < bufsize:
            return data + self.recv(bufsize - len(data), flags)
        return data

    def _taken(self, most: int, least: int, *, keep: bool) -> bytes:
        """From what was read ahead: one chunk, or as many as make `least`. With the lock held."""
        parts: list[bytes] = []
        size = 0
        for chunk in list(self._chunks):
            part = bytes(chunk[: most - size])
            parts.append(part)
            size += len(part)
            if not keep:
                if len(part) == len(chunk):
                    self._chunks.popleft()
                else:
                    self._chunks[0] = chunk[len(part) :]
                self._buffered -= len(part)
            if size >= least:
                break
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def recv_into(self, buffer: bytearray | memoryview, nbytes: int = 0, flags: int = 0) -> int:
        """As `recv`, into a buffer; how many bytes."""
        view = memoryview(buffer).cast("B")
        data = self.recv(nbytes or len(view), flags)
        view[: len(data)] = data
        return len(data)

    def recvfrom(self, bufsize: int, flags: int = 0) -> tuple[bytes, tuple[str, int]]:
        return self.recv(bufsize, flags), self.getpeername()

    def send(self, data: Any, flags: int = 0) -> int:
        """Hands bytes to the stream; how many there was room for."""
        timeout_s = self._flagged(flags, _SENT_WITH)
        whole = bytes(data)
        taken = self._in_this_thread(lambda connection: self._write(connection, whole))
        if not taken:
            taken = run(self._send(whole, wait=timeout_s != 0), timeout_s or None)
        if not taken and whole:
            raise BlockingIOError(errno.EAGAIN, "no room for more unacknowledged bytes")
        return taken

    def _flagged(self, flags: int, known_flags: int) -> float | None:
        """How long a call with these flags may wait.

        Raises:
            OSError: EOPNOTSUPP: a flag that a session has no meaning for.
        """
        if flags & ~known_flags:
            raise OSError(errno.EOPNOTSUPP, f"a session has no flags {flags & ~known_flags:#x}")
        return 0.0 if flags & MSG_DONTWAIT else self._timeout_s

    def _write(self, connection: Connection, data: bytes) -> int:
        taken = connection.write_now(data)
        if self._ready.shown:
            self._ready.writable(connection.room_bytes > 0)
        return taken

    async def _send(self, data: bytes, *, wait: bool) -> int:
        connection = self._of()
        taken = connection.write_now(data)
        if not taken and wait:
            await connection.write(data)
            taken = len(data)
        with self._changed:
            self._ready.writable(connection.room_bytes > 0)
        return taken

    def sendall(self, data: Any, flags: int = 0) -> None:
        """Hands all of it to the stream; `settimeout` is for the whole.

        Raises:
            TimeoutError: not in time; some of it may have been taken.
        """
        view = memoryview(data).cast("B")
        before, ends_s = self._timeout_s, time.monotonic() + (self._timeout_s or 0.0)
        try:
            while view:
                view = view[self.send(view[: 1 << 20], flags) :]
                if before:
                    self._timeout_s = max(ends_s - time.monotonic(), 1e-3)
        finally:
            self._timeout_s = before

    def sendmsg(self, buffers: Iterable[Any], ancdata: Iterable[Any] = (), flags: int = 0) -> int:
        """As `send`, of several buffers; there is no ancillary data."""
        if list(ancdata):
            raise OSError(errno.EOPNOTSUPP, "a session carries no ancillary data")
        return self.send(b"".join(bytes(each) for each in buffers), flags)

    def sendfile(self, file: IO[bytes], offset: int = 0, count: int | None = None) -> int:
        """Sends an open file from `offset` on, `count` bytes of it or all; how many they were."""
        file.seek(offset)
        sent = 0
        while count is None or sent < count:
            data = file.read(min(1 << 18, (1 << 18) if count is None else count - sent))
            if not data:
                break
            self.sendall(data)
            sent += len(data)
        return sent

    def makefile(
        self,
        mode: str = "r",
        buffering: int | None = None,
        *,
        encoding: str | None = None,
        errors: str | None = None,
        newline: str | None = None,
    ) -> Any:
        """A file of the stream; the session ends when the socket and all its files are closed."""
        # The standard library's own: of a socket it wants recv_into, send, fileno, and a count of files.
        make = cast(Any, bsd.socket.makefile)
        return make(self, mode, buffering, encoding=encoding, errors=errors, newline=newline)

    def _decref_socketios(self) -> None:
        """One of `makefile`'s was closed; the name is the standard library's."""
        self._io_refs = max(self._io_refs - 1, 0)
        if self._to_close:
            self.close()

    def shutdown(self, how: int) -> None:
        """SHUT_WR ends the stream towards the peer; SHUT_RD has `recv` return nothing any more."""
        if how in (SHUT_RD, SHUT_RDWR):
            with self._changed:
                self._no_more = True
                self._changed.notify_all()
            background.loop_lock().nudge()
        if how in (SHUT_WR, SHUT_RDWR):
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
                raise BlockingIOError(errno.EAGAIN, "no message is here")
            return message
        return await connection.receive()

    # Ending

    def close(self) -> None:
        """Ends the session; what was sent still arrives, as long as this process lives and it can."""
        self._to_close = True
        if self._io_refs > 0:  # files of it are open
            return
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
        """Where it listens; of a session, its first connection's own address."""
        return self._address if self._listener is None else self._listener.address

    def getpeername(self) -> tuple[str, int]:
        """Where the session's first connection led, or came from; it may have moved since."""
        if self._connection is None or self._peer is None:
            raise self._wrong(errno.ENOTCONN, "the socket is not connected")
        return self._peer

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

    def _wait(self, wanted: Callable[[], bool], timeout_s: float | None) -> None:
        if wanted():
            return
        if not self._drive(lambda: self._closed or wanted(), timeout_s):
            if timeout_s == 0:
                raise BlockingIOError(errno.EAGAIN, "nothing is here yet")
            raise TimeoutError("timed out")
        if self._closed:
            raise self._wrong(errno.EBADF, "")

    def _drive(self, wanted: Callable[[], bool], timeout_s: float | None) -> bool:
        """Lets the loop go on until something is so; False if it is not in time. With the lock held."""
        here = background.loop_lock()
        self._changed.release()  # the loop wants it, in whichever thread
        try:
            if here.take():
                try:
                    if timeout_s != 0:
                        return here.drive(wanted, timeout_s)
                    here.turn()
                    return wanted()
                finally:
                    here.give(prompt=self._ready.shown)
        finally:
            self._changed.acquire()
        with here.following():
            return self._changed.wait_for(wanted, timeout_s)

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


def create_connection(
    address: str | tuple[str, int],
    timeout: Any = None,
    source_address: tuple[str, int] | None = None,
    *,
    server_key: bytes | None = None,
    key: KeyPair | None = None,
    all_errors: bool = False,
) -> socket:
    """A socket that is connected, as the standard library's function of this name.

    Args:
        address: host and port, or the name of a server in the user's file.
        timeout: seconds, for this and every later call; the default one without.
        source_address: a session has none of its own: it must be None.
        server_key: the server's public key; the one in the user's file without.
        key: who we are; this user's own key without.
        all_errors: of no meaning: the error names the last attempt.

    Raises:
        OSError: as `socket.connect`.
    """
    if source_address is not None:
        raise OSError(errno.EINVAL, "a session uses every network; SO_NETWORKS says which it may")
    made = socket()
    if isinstance(timeout, int | float):
        made.settimeout(float(timeout))
    for option, value in ((SocketOption.SERVER_KEY, server_key), (SocketOption.KEY, key)):
        if value is not None:
            made.setsockopt(SOL_SESSION, option, value)
    try:
        made.connect(address)
    except BaseException:
        made.close()
        raise
    return made


def create_server(
    address: tuple[str, int], *, key: KeyPair | None = None, backlog: int = 128
) -> socket:
    """A socket that listens, as the standard library's function of this name.

    Raises:
        OSError: the address cannot be listened at.
    """
    made = socket()
    if key is not None:
        made.setsockopt(SOL_SESSION, SocketOption.KEY, key)
    made.bind(address)
    try:
        made.listen(backlog)
    except BaseException:
        made.close()
        raise
    return made


async def _close(connection: Connection) -> None:
    try:
        await connection.close()
    except SessionError:
        return  # nobody is left to be told


__all__ = [
    "AF_INET",
    "AF_INET6",
    "IPPROTO_TCP",
    "MSG_DONTWAIT",
    "MSG_PEEK",
    "MSG_WAITALL",
    "SHUT_RD",
    "SHUT_RDWR",
    "SHUT_WR",
    "SOCK_STREAM",
    "SOL_SESSION",
    "SOL_SOCKET",
    "SO_CHOOSER",
    "SO_DEADLINE",
    "SO_ESIZE",
    "SO_KEEPALIVE",
    "SO_KEY",
    "SO_LABEL",
    "SO_NETWORKS",
    "SO_RCVBUFTH",
    "SO_REUSEADDR",
    "SO_SCHEDULER",
    "SO_SERVER_KEY",
    "TCP_NODELAY",
    "SocketOption",
    "create_connection",
    "create_server",
    "socket",
]

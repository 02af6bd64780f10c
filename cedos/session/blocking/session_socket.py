"""A session as a socket of the standard library: its names, its errors, its ways to wait."""

import builtins
import contextlib
import errno
import os
import socket as bsd
import sys
import threading
import time
import warnings
import weakref
from collections import deque
from collections.abc import Callable, Iterable
from functools import partial
from ipaddress import ip_address
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
    SOCK_STREAM,
    SOL_SOCKET,
)
from typing import IO, Any, Final, Self, TypeVar, cast

from cedos.errors import CedosError, HostError, SessionError
from cedos.model import Label
from cedos.session.blocking import at_exit, background
from cedos.session.blocking.detached_stream import DetachedStream
from cedos.session.blocking.options import SocketOption, known
from cedos.session.blocking.os_errors import as_os_error, not_supported, run
from cedos.session.blocking.read_ahead import ReadAhead
from cedos.session.blocking.readiness import Readiness
from cedos.session.blocking.set_options import SetOptions
from cedos.session.sockets import sockets
from cedos.session.sockets.connection import STREAM_LABEL, Connection
from cedos.session.sockets.listener import Listener, open_bound
from cedos.session.sockets.message import Message

_SENT_WITH: Final = bsd.MSG_NOSIGNAL | bsd.MSG_DONTWAIT | bsd.MSG_MORE
_READ_WITH: Final = MSG_PEEK | MSG_DONTWAIT | MSG_WAITALL
_READ_AHEAD: Final = 1 << 20
_FIRST_PATH_S: Final = 30.0
EVERY_NETWORK: Final = "a session uses every network; SO_NETWORKS says which it may"

T = TypeVar("T")


class socket:  # noqa: N801 - as the standard library's
    """A session, or what accepts sessions.

    Errors are OSError with a socket's numbers and a session's words
    (`cedos.session.blocking.os_errors`); what the session raised is their cause. A blocking call waits by
    running the loop itself, or for whoever runs it.

    Args:
        family: of no meaning: a session uses every network there is.
        type: SOCK_STREAM, with SOCK_NONBLOCK or without.
        proto: 0 or TCP's.
        fileno: None: no descriptor is a session.
    """

    type = SOCK_STREAM
    proto = 0

    def __init__(
        self,
        family: int = AF_INET,
        type: int = SOCK_STREAM,  # noqa: A002
        proto: int = 0,
        fileno: int | None = None,
    ) -> None:
        kind = SOCK_STREAM if type == -1 else type & ~(bsd.SOCK_CLOEXEC | bsd.SOCK_NONBLOCK)
        if kind != SOCK_STREAM or proto not in (-1, 0, IPPROTO_TCP):
            raise OSError(
                errno.EPROTONOSUPPORT, "a session is a stream; SOCK_STREAM would be right"
            )
        if fileno is not None:
            raise OSError(errno.EOPNOTSUPP, "no descriptor is a session; `connect` makes one")
        self.family = AF_INET if family == -1 else family
        nonblocking = type != -1 and type & bsd.SOCK_NONBLOCK
        self._timeout_s: float | None = 0.0 if nonblocking else bsd.getdefaulttimeout()
        self._options = SetOptions()
        self._peer: tuple[str, int] | None = None
        self._io_refs = 0  # files of `makefile`; the name is the standard library's
        self._to_close = self._no_more = self._finished = False
        self._address: tuple[str, int] = ("", 0)
        self._bound: bsd.socket | None = None
        self._connecting = False
        self._refused: OSError | None = None  # what a `connect` that did not wait came to
        self._process = os.getpid()
        self._connection: Connection | None = None
        self._listener: Listener | None = None
        self._ready = Readiness()
        self._changed = threading.Condition()
        self._closed = False
        self._ahead = ReadAhead()
        self._ended: SessionError | None = None
        self._eof = False
        self._others = False  # whether something else than the stream makes it readable
        self._accepted: deque[Connection] = deque()
        self._acceptor: socket | None = None  # kept: the session's further paths come to its port

    # Options

    def setsockopt(self, level: int, option: int, value: Any) -> None:
        """Sets an option; `deadline`, `expected size`, thresholds and label at any time.

        What programs set on every TCP socket (TCP_NODELAY, SO_KEEPALIVE) is taken and changes nothing.
        """
        if self._options.set(level, option, value) and self._connection is not None:
            run(self._apply())

    def getsockopt(self, level: int, option: int, size: int = 0) -> Any:
        """What was set; None where nothing was. With a `size` TCP's options are bytes, as always."""
        told = self._told(level, option)
        if told is None:
            return self._options.get(known(level, option))
        if size and isinstance(told, int):
            return told.to_bytes(4, sys.byteorder, signed=True)[:size]
        return told

    def _told(self, level: int, option: int) -> Any:
        if level == SOL_SOCKET and option == bsd.SO_ERROR:
            refused, self._refused = self._refused, None
            ended = refused or (as_os_error(self._ended) if self._ended is not None else None)
            return 0 if ended is None else ended.errno or errno.EIO
        if level == SOL_SOCKET and option == bsd.SO_ACCEPTCONN:
            return int(self._listener is not None)
        if level == SOL_SOCKET and option == bsd.SO_DOMAIN:
            return int(self.family)
        return self._options.get_plain(level, option)

    async def _apply(self) -> None:
        if self._connection is not None:  # else it was closed meanwhile
            self._options.apply(self._connection, self._ahead.__len__)

    def settimeout(self, seconds: float | None) -> None:
        """None: operations block; 0: they do not; else they raise TimeoutError after so long."""
        if seconds is not None and not 0.0 <= seconds < 1e9:
            raise ValueError(
                f"{seconds} is no time-out; seconds from 0 on, or None, would be right"
            )
        self._timeout_s = None if seconds is None else float(seconds)

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
        """For `select`: readable when `recv`, `ms_recv` or `accept` have something; -1 once closed."""
        if not self._ready.shown and self._connection is not None:
            self._in_this_thread(lambda _: self._update())
        with self._changed:  # the loop may be telling it something meanwhile
            return self._ready.fileno()

    # Beginning

    def get_inheritable(self) -> bool:
        """No other program goes on with a session."""
        return False

    def set_inheritable(self, inheritable: bool) -> None:
        if inheritable:
            raise not_supported(
                "a session lives in its process; `detach` gives a stream to another one"
            )

    def dup(self) -> Self:
        """OSError: EOPNOTSUPP: files (`makefile`) and threads share one socket."""
        raise not_supported("a session has one socket; `makefile` makes files that share it")

    def detach(self) -> int:
        """Closes the socket, and gives its stream to a descriptor that anybody may read and write.

        It is one end of a pair of sockets, of the number that `fileno` told; this process carries its
        bytes as long as it lives. The session ends when it is closed.
        """
        with self._changed:
            if self._listener is not None:
                raise not_supported("what accepts sessions has no descriptor of its own")
            connection = self._of()
            connection.on_change(None)
            self._connection = None
            before = self._ahead.clear()
            number, hidden = self._ready.give_away()
            os.set_blocking(number, self._timeout_s is None)
            self._end()
        stream = DetachedStream(connection, hidden, before)
        background.loop().call_soon_threadsafe(background.spawn, stream.run())
        background.loop_lock().nudge()
        return number

    def bind(self, address: tuple[str, int]) -> None:
        """Where to listen: an own address ("" for all) and a port (0 for any)."""
        if self._closed:
            raise self._wrong(errno.EBADF, "")
        if self._bound is not None or self._connection is not None or self._listener is not None:
            raise self._wrong(errno.EINVAL, "the socket has an address")
        try:
            self._bound = open_bound((address[0], address[1]))
        except CedosError as error:
            raise as_os_error(error) from error
        self._address = (address[0], self._bound.getsockname()[1])

    def listen(self, backlog: int = 128) -> None:
        """Begins to accept sessions."""
        if self._closed:
            raise self._wrong(errno.EBADF, "")
        if self._connection is not None or self._connecting:
            raise self._wrong(errno.EINVAL, "the socket is connected")
        if self._listener is None:
            self._listener = run(self._listen(backlog))

    async def _listen(self, backlog: int) -> Listener:
        bound = self._bound or open_bound(self._address)
        try:
            bound.listen(max(backlog, 1))
        except OSError as error:
            raise HostError(f"cannot listen at port {bound.getsockname()[1]}: {error}") from error
        listener = await sockets.listen(
            self._address,
            key=self._options.get(SocketOption.KEY),
            listening=bound,
            **self._options.scheduler(),
        )
        self._bound = None  # it is the listener's
        seen = weakref.WeakMethod(self._new)
        listener.on_new(lambda: (call := seen()) and call(listener))
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
        made._acceptor = self
        run(made._take(connection))
        return made, connection.peer_address

    def connect(self, address: str | tuple[str, int]) -> None:
        """A session with a server; options say with which key, how long it may wait, and so on.

        Without SO_SERVER_KEY the key is looked up in the user's file; a name from there will do, too.

        Tries until the time of `settimeout` is over, half a minute without one. One that does not block
        tries for as long: `select` finds it writable then, and SO_ERROR says what came of it.

        Raises:
            BlockingIOError: EINPROGRESS: it does not block.
            ConnectionRefusedError: the server refuses or has another key, or nobody listens.
            TimeoutError: nobody answered.
            OSError: EINVAL: an option or the address cannot be used; EISCONN; EALREADY; EBADF.
            socket.gaierror: there is no such name.
        """
        if self._closed:
            raise self._wrong(errno.EBADF, "")
        if self._connection is not None or self._listener is not None:
            raise OSError(errno.EISCONN, "the socket is connected, or listens, already")
        if self._bound is not None and not ip_address(self._bound.getsockname()[0]).is_unspecified:
            raise OSError(errno.EINVAL, EVERY_NETWORK)
        with self._changed:
            if self._connecting:
                raise OSError(errno.EALREADY, "the socket is connecting already")
            refused, self._refused = self._refused, None
            if refused is not None:
                raise refused
            self._connecting = True
            self._ready.readable(False)  # of the one before
            self._ready.writable(False)
        if self._timeout_s == 0:
            background.loop().call_soon_threadsafe(background.spawn, self._connect_alone(address))
            background.loop_lock().nudge()
            raise BlockingIOError(errno.EINPROGRESS, "the socket is connecting")
        try:
            run(self._connect(address))
        finally:
            self._connecting = False

    async def _connect_alone(self, address: str | tuple[str, int]) -> None:
        """For a program that does not wait for it."""
        refused: OSError | None = None
        try:
            await self._connect(address)
        except CedosError as error:
            refused = as_os_error(error)
        with self._changed:
            self._connecting, self._refused = False, refused
            if refused is not None:
                self._ready.readable(True)
                self._ready.writable(True)

    def connect_ex(self, address: str | tuple[str, int]) -> int:
        """As `connect`, but the error's number is returned; 0 where there is none."""
        try:
            self.connect(address)
        except bsd.gaierror:
            raise
        except OSError as error:
            return error.errno or errno.EIO
        return 0

    async def _connect(self, address: str | tuple[str, int]) -> None:
        options = self._options
        connection = await sockets.connect(
            address,
            server_key=options.get(SocketOption.SERVER_KEY),
            key=options.get(SocketOption.KEY),
            label=options.get(SocketOption.LABEL, STREAM_LABEL),
            deadline=options.get(SocketOption.DEADLINE),
            timeout_s=self._timeout_s or _FIRST_PATH_S,
            networks=options.get(SocketOption.NETWORKS),
            chooser=options.get(SocketOption.CHOOSER),
            **options.scheduler(),
        )
        await self._take(connection)

    async def _take(self, connection: Connection) -> None:
        with self._changed:
            if self._closed:  # while it was made
                background.spawn(at_exit.close(connection))
                return
            self._connection = connection
            at_exit.end_at_exit(connection)
        paths = list(connection.flow.paths.values())
        if paths:
            self._peer = paths[0].peer_address()
            self._address = paths[0].own_endpoint()
            self.family = AF_INET6 if ":" in self._peer[0] else AF_INET
        # Weakly, or the session would keep a socket that its program has forgotten.
        seen = weakref.WeakMethod(self._update)
        connection.on_change(lambda: (call := seen()) and call())
        await self._apply()
        self._update()

    # The stream

    def _update(self) -> None:
        """Reads ahead, in the loop; called whenever anything happened."""
        with self._changed:
            connection = self._connection
            if connection is None:  # closed, when this call was on its way already
                return
            while len(self._ahead) < _READ_AHEAD and connection.readable_bytes:
                data = connection.read_now()
                if not data:
                    break
                self._ahead.add(data)
            self._eof = connection.at_eof
            self._ended = connection.failure
            over = self._eof or self._ended is not None or connection.ended
            self._others = over or connection.receivable > 0
            self._ready.readable(bool(self._ahead) or self._others)
            self._ready.writable(connection.room_bytes > 0 or connection.ended)
            self._changed.notify_all()
        background.loop_lock().check()

    def recv(self, bufsize: int, flags: int = 0) -> bytes:
        """The next bytes of the stream; empty at its end. Flags: MSG_PEEK, MSG_DONTWAIT, MSG_WAITALL."""
        if bufsize < 0:
            raise ValueError("negative buffersize in recv")
        if flags & MSG_WAITALL:
            whole = bytearray(bufsize)
            return bytes(memoryview(whole)[: self.recv_into(whole, bufsize, flags)])

        def take() -> bytes:
            return self._ahead.take(bufsize, 1, keep=bool(flags & MSG_PEEK))

        return self._read(bufsize, 1, flags, take) or b""

    def recv_into(self, buffer: Any, nbytes: int = 0, flags: int = 0) -> int:
        """As `recv`, into a buffer; how many bytes."""
        view = memoryview(buffer).cast("B")
        if not 0 <= nbytes <= len(view):
            raise ValueError(f"{nbytes} bytes do not go into a buffer of {len(view)}")
        view = view[: nbytes or len(view)]
        keep = bool(flags & MSG_PEEK)
        got = 0
        while True:
            rest = view[got:]
            least = min(len(rest), _READ_AHEAD) if flags & MSG_WAITALL else 1
            take = partial(self._ahead.take_into, rest, keep=keep)
            try:
                part = self._read(len(rest), least, flags, take)
            except OSError:
                if got:  # what was taken must not be lost; the next call meets the error again
                    return got
                raise
            got += part or 0
            if not part or keep or not flags & MSG_WAITALL or got == len(view):
                return got

    def _read(self, most: int, least: int, flags: int, take: Callable[[], T]) -> T | None:
        """Takes what is here, once it is so much or nothing more comes; None: it never does."""
        timeout_s = self._flagged(flags, _READ_WITH)
        with self._changed:
            if self._connection is None:
                raise self._wrong(errno.ENOTCONN, "the socket is not connected")

            def over() -> bool:
                return self._eof or self._ended is not None or self._no_more

            if most:
                self._wait(lambda: len(self._ahead) >= least or over(), timeout_s)
            if self._no_more or not self._ahead:
                if self._ended is not None and not self._eof and not self._no_more:
                    raise as_os_error(self._ended) from self._ended
                return None
            full = len(self._ahead) >= _READ_AHEAD  # the loop has left something unread
            data = take()
            self._ready.readable(bool(self._ahead) or self._others)
        if full and not flags & MSG_PEEK:
            background.loop().call_soon_threadsafe(self._update)
        return data

    def recvfrom(self, bufsize: int, flags: int = 0) -> tuple[bytes, tuple[str, int]]:
        return self.recv(bufsize, flags), self.getpeername()

    def recvfrom_into(
        self, buffer: Any, nbytes: int = 0, flags: int = 0
    ) -> tuple[int, tuple[str, int]]:
        return self.recv_into(buffer, nbytes, flags), self.getpeername()

    def recvmsg(
        self, bufsize: int, ancbufsize: int = 0, flags: int = 0
    ) -> tuple[bytes, list[Any], int, tuple[str, int]]:
        """As `recvfrom`; there is never any ancillary data."""
        return self.recv(bufsize, flags), [], 0, self.getpeername()

    def recvmsg_into(
        self, buffers: Iterable[Any], ancbufsize: int = 0, flags: int = 0
    ) -> tuple[int, list[Any], int, tuple[str, int]]:
        """As `recv_into`, into several buffers, one after the other."""
        views = [memoryview(each).cast("B") for each in buffers]
        data = self.recv(sum(map(len, views)), flags)
        left = data
        for view in views:
            view[: len(left)] = left[: len(view)]
            left = left[len(view) :]
        return len(data), [], 0, self.getpeername()

    def send(self, data: Any, flags: int = 0) -> int:
        """Hands bytes to the stream; how many there was room for."""
        whole = data if isinstance(data, bytes) else bytes(memoryview(data))
        return self._send_within(whole, self._flagged(flags, _SENT_WITH))

    def _send_within(self, whole: bytes, timeout_s: float | None) -> int:
        if self._finished and not self._closed:
            raise BrokenPipeError(errno.EPIPE, "the socket was shut down for writing")
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
        timeout_s = self._flagged(flags, _SENT_WITH)
        ends_s = time.monotonic() + (timeout_s or 0.0)
        while view:
            left_s = max(ends_s - time.monotonic(), 1e-3) if timeout_s else timeout_s
            view = view[self._send_within(bytes(view[: 1 << 20]), left_s) :]

    def sendto(self, data: Any, *flags_and_address: Any) -> int:
        """As `send`; the address, which comes last, is of no meaning, as on every stream."""
        if not 1 <= len(flags_and_address) <= 2:
            raise TypeError("sendto() takes data, flags where there are any, and an address")
        return self.send(data, *flags_and_address[:-1])

    def sendmsg(
        self,
        buffers: Iterable[Any],
        ancdata: Iterable[Any] = (),
        flags: int = 0,
        address: Any = None,
    ) -> int:
        """As `send`, of several buffers; there is no ancillary data, and `address` is of no meaning."""
        if list(ancdata):
            raise not_supported("a session carries no ancillary data")
        return self.send(b"".join(memoryview(each).cast("B") for each in buffers), flags)

    def sendmsg_afalg(self, *_arguments: Any, **_more: Any) -> int:
        """OSError: EOPNOTSUPP: for the kernel's cryptography alone."""
        raise not_supported("a session is no socket of the kernel's cryptography")

    def sendfile(self, file: IO[bytes], offset: int = 0, count: int | None = None) -> int:
        """Sends an open file from `offset` on, `count` bytes of it or all; how many they were."""
        if "b" not in getattr(file, "mode", "b"):
            raise ValueError("file should be opened in binary mode")
        if count is not None and count <= 0:
            raise ValueError(f"count must be a positive integer (got {count!r})")
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
        if how not in (SHUT_RD, SHUT_WR, SHUT_RDWR):
            raise self._wrong(errno.EINVAL, f"there is no way {how} to shut down")
        self._of()
        if how in (SHUT_RD, SHUT_RDWR):
            with self._changed:
                self._no_more = True
                self._changed.notify_all()
            background.loop_lock().nudge()
        if how in (SHUT_WR, SHUT_RDWR):
            run(self._finish())

    async def _finish(self) -> None:
        self._of().finish()
        self._finished = True

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
        """Ends the session; what was sent still arrives, if it can.

        A program that ends waits three seconds for that, one that is killed does not.
        """
        self._to_close = True
        if self._io_refs > 0:  # files of it are open
            return
        with self._changed:
            connection, self._connection = self._connection, None
            listener, self._listener = self._listener, None
            bound, self._bound = self._bound, None
            self._end()
        if bound is not None:
            bound.close()
        if connection is not None:
            connection.on_change(None)
            background.loop().call_soon_threadsafe(background.spawn, at_exit.close(connection))
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

    def __repr__(self) -> str:
        where = f", laddr={self._address}" + (f", raddr={self._peer}" if self._peer else "")
        return f"<cedos.session.blocking.socket{' [closed]' if self._closed else ''}{where}>"

    def __del__(self) -> None:
        """Ends a session that its program has forgotten, as the standard library does.

        It may run in any thread, whatever lock that holds: so the loop is only told.
        """
        connection, listener = getattr(self, "_connection", None), getattr(self, "_listener", None)
        if connection is None and listener is None:
            return
        if self._process != os.getpid():  # a forked child has a copy of its parent's
            return
        warnings.warn(f"unclosed {self!r}", ResourceWarning, stacklevel=2, source=self)
        self._ready.close()
        loop = background.loop()
        with contextlib.suppress(RuntimeError):  # the loop has ended, as the program has
            if connection is not None:
                loop.call_soon_threadsafe(lambda: background.spawn(at_exit.close(connection)))
            if listener is not None:
                loop.call_soon_threadsafe(lambda: background.spawn(listener.close()))

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

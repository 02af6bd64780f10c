"""Carries bytes between two connected sockets, both ways, until both have ended.

One large buffer serves all tunnels of the process: what is read is sent at once, and only what the
other side does not take is copied and waited with; until it is gone, nothing more is read from where
it came (back-pressure). Measured here on loopback, processor seconds for a gigabyte to an MPTCP
socket: 0.3 this way, 0.4 by splice(2) through a pipe, 0.5 by `sock_recv_into`/`sock_sendall`, 1.7 by
streams.
"""

import asyncio
import socket
import struct
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

_SMALLEST: Final = 1 << 16
_LARGEST: Final = 1 << 20
_LINGER_S: Final = 1.0
_RESET_ON_CLOSE: Final = struct.pack("ii", 1, 0)


@dataclass(frozen=True, slots=True)
class Moved:
    """What a tunnel carried, in bytes.

    `ended`: `complete` (both sides said so), `idle`, `stopped`, or `client: ...`, `origin: ...` with
    the error of the side that broke.
    """

    up_bytes: int
    down_bytes: int
    ended: str


def make_buffer() -> memoryview:
    """A buffer for all tunnels of one event loop."""
    return memoryview(bytearray(_LARGEST))


def reset_on_close(one: socket.socket) -> None:
    """Lets the peer see that the connection broke, instead of an end."""
    with suppress(OSError):  # it has gone already
        one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)


class Tunnel:
    """Two non-blocking sockets; `run` carries between them. Closing them is the caller's.

    An end of one side's data is handed on to the other side, whose own data goes on (half-close). A
    side that breaks breaks the other: its peer is sent a reset, not an end.

    Args:
        client: where `up` comes from.
        origin: where it goes to.
        buffer: see `make_buffer`.
        idle_s: a tunnel in which nothing moved for so long is ended.
        first_up: bytes for the origin that were read from the client before.
        up_limit: how many more the origin gets, those of `first_up` not counted; what the client
            sends beyond them is read and dropped. None: all.
    """

    def __init__(
        self,
        client: socket.socket,
        origin: socket.socket,
        buffer: memoryview,
        *,
        idle_s: float,
        first_up: bytes = b"",
        up_limit: int | None = None,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._done: asyncio.Future[str] = self._loop.create_future()
        self._idle_s = idle_s
        self.buffer = buffer
        self.moved_at_s = self._loop.time()
        self._up = _Way(self, "client", client, "origin", origin, first_up, up_limit)
        self._down = _Way(self, "origin", origin, "client", client, b"", None)
        self._timer = self._loop.call_later(idle_s, self._look_for_idleness)

    async def run(self) -> Moved:
        """Returns when both ways have ended, or one side broke; never raises for what peers do."""
        try:
            self._up.begin()
            self._down.begin()
            ended = await self._done
        finally:
            self._timer.cancel()
            self._up.stop()
            self._down.stop()
        if ended != "complete":
            reset_on_close(self._up.source)
            reset_on_close(self._up.sink)
        return Moved(self._up.moved_bytes, self._down.moved_bytes, ended)

    def end(self, how: str) -> None:
        """Ends it now."""
        if not self._done.done():
            self._done.set_result(how)

    def way_ended(self) -> None:
        """A way has handed its end on."""
        if self._up.ended and self._down.ended:
            self.end("complete")
        elif self._down.ended and self._up.satisfied:
            # One request was all that was wanted; whether the client closes is no matter.
            self._loop.call_later(_LINGER_S, self.end, "complete")

    def _look_for_idleness(self) -> None:
        left_s = self.moved_at_s + self._idle_s - self._loop.time()
        if left_s <= 0:
            self.end("idle")
        else:
            self._timer = self._loop.call_later(left_s, self._look_for_idleness)


class _Way:
    """One direction of a tunnel: reads `source` while nothing waits for `sink`, else writes."""

    def __init__(
        self,
        tunnel: Tunnel,
        source_name: str,
        source: socket.socket,
        sink_name: str,
        sink: socket.socket,
        first: bytes,
        limit: int | None,
    ) -> None:
        self._tunnel = tunnel
        self._loop = asyncio.get_running_loop()
        self._source_name, self.source = source_name, source
        self._sink_name, self.sink = sink_name, sink
        self._waiting = memoryview(first)
        self._left = limit
        self._chunk = _SMALLEST
        self.moved_bytes = 0
        self.ended = False
        self._reads = self._writes = False

    @property
    def satisfied(self) -> bool:
        """Whether all that it may carry has been carried."""
        return self._left == 0 and not self._waiting

    def begin(self) -> None:
        """Starts with what waits already."""
        if self._waiting:
            self._writable()
        else:
            self._read()

    def stop(self) -> None:
        """Lets go of both sockets."""
        if self._reads:
            self._loop.remove_reader(self.source)
        if self._writes:
            self._loop.remove_writer(self.sink)
        self._reads = self._writes = False

    def _read(self) -> None:
        if not self._reads and not self.ended:
            self._reads = True
            self._loop.add_reader(self.source, self._readable)

    def _readable(self) -> None:
        view = self._tunnel.buffer
        try:
            count = self.source.recv_into(view, self._chunk)
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            self._broke(self._source_name, error)
            return
        if count == 0:
            self._hand_end_on()
            return
        self._tunnel.moved_at_s = self._loop.time()
        if self._left is not None:
            taken = min(count, self._left)
            self._left -= taken
            if taken == 0:
                return
        else:
            taken = count
        try:
            sent = self.sink.send(view[:taken])
        except (BlockingIOError, InterruptedError):
            sent = 0
        except OSError as error:
            self._broke(self._sink_name, error)
            return
        self.moved_bytes += sent
        if sent < taken:
            self._waiting = memoryview(bytes(view[sent:taken]))
            # What waits is memory: a sink that takes little is offered less.
            if sent < taken >> 2:
                self._chunk = max(_SMALLEST, self._chunk >> 1)
            self._reads, self._writes = False, True
            self._loop.remove_reader(self.source)
            self._loop.add_writer(self.sink, self._writable)
        elif count == self._chunk < _LARGEST:
            self._chunk <<= 1

    def _writable(self) -> None:
        try:
            sent = self.sink.send(self._waiting)
        except (BlockingIOError, InterruptedError):
            sent = 0
        except OSError as error:
            self._broke(self._sink_name, error)
            return
        if sent:
            self._tunnel.moved_at_s = self._loop.time()
            self.moved_bytes += sent
            self._waiting = self._waiting[sent:]
        if not self._waiting:
            if self._writes:
                self._writes = False
                self._loop.remove_writer(self.sink)
            self._read()
        elif not self._writes:
            self._writes = True
            self._loop.add_writer(self.sink, self._writable)

    def _hand_end_on(self) -> None:
        self.stop()
        try:
            self.sink.shutdown(socket.SHUT_WR)
        except OSError as error:
            self._broke(self._sink_name, error)
            return
        self.ended = True
        self._tunnel.way_ended()

    def _broke(self, side: str, error: OSError) -> None:
        self.stop()
        self._tunnel.end(f"{side}: {error.strerror or error}")

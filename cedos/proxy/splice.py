"""Bytes carried between two connected sockets, both ways, until both have ended.

One buffer serves all tunnels of the process. Bytes that the other side does not take are copied, and
nothing more is read from their source until they are gone. Measured over loopback: 0.3 s of processor a
gigabyte; `splice(2)` through a pipe 0.4, streams of asyncio 1.7.
"""

import asyncio
import socket
import struct
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from cedos.proxy.http import OnlyAnswer, RequestBody
from cedos.proxy.own_tasks import failing

_SMALLEST: Final = 1 << 16
_LARGEST: Final = 1 << 20
# Where all tunnels keep more, they read small blocks.
MOST_KEPT_BYTES: Final = 1 << 25
_RESET_ON_CLOSE, _END_ON_CLOSE = struct.pack("ii", 1, 0), struct.pack("ii", 0, 0)


@dataclass(frozen=True, slots=True)
class TunnelBytes:
    """The bytes that a tunnel carried.

    `ended`: `complete` (both sides ended), `idle`, `stopped`, or `client: ...`, `origin: ...` with
    the error of the side that broke.
    """

    up_bytes: int
    down_bytes: int
    ended: str


class TunnelBuffer:
    """The buffer of all tunnels of one event loop, and the size of all blocks that these keep."""

    def __init__(self) -> None:
        self.view, self.kept_bytes = memoryview(bytearray(_LARGEST)), 0


def reset_on_close(one: socket.socket) -> None:
    """Send the peer a reset instead of an end when the socket is closed."""
    with suppress(OSError):  # it has gone already
        one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)


def end_on_close(one: socket.socket) -> None:
    """Undo `reset_on_close`."""
    with suppress(OSError):
        one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _END_ON_CLOSE)


class Tunnel:
    """Two non-blocking sockets; `run` carries between them, the caller closes them.

    The end of one side's data is passed on to the other side, whose own data goes on (half-close). If
    one side breaks, the other is reset. `first_up` goes to the origin first; of the bytes behind it the
    origin gets those of `up_body`, the rest is read and dropped. `answer`: passes on the origin's.
    """

    def __init__(
        self,
        client: socket.socket,
        origin: socket.socket,
        buffer: TunnelBuffer,
        *,
        idle_s: float,
        first_up: bytes = b"",
        up_body: RequestBody | None = None,
        answer: OnlyAnswer | None = None,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._done: asyncio.Future[str] = self._loop.create_future()
        self._idle_s = idle_s
        there, here = ("client", client), ("origin", origin)
        self._up = _OneWay(there, here, buffer, self._way_ended, self._done, first_up, up_body)
        self._down = _OneWay(here, there, buffer, self._way_ended, self._done, answer=answer)
        self._timer = self._loop.call_later(idle_s, self._check_idle)

    async def run(self) -> TunnelBytes:
        """Carry until both ways have ended, or one side broke; errors of peers do not raise."""
        try:
            self._up.begin()
            self._down.begin()
            ended = await self._done
        finally:
            self._timer.cancel()
            self._up.close()
            self._down.close()
        settle = end_on_close if ended == "complete" else reset_on_close
        settle(self._up.source)
        settle(self._up.sink)
        return TunnelBytes(self._up.moved_bytes, self._down.moved_bytes, ended)

    def end(self, how: str) -> None:
        _end(self._done, how)

    def _way_ended(self) -> None:
        if self._up.ended and self._down.ended:
            self.end("complete")
        elif self._down.ended and self._up.satisfied:
            self.end("complete")  # one request was all that was wanted

    def _check_idle(self) -> None:
        moved_at_s = max(self._up.moved_at_s, self._down.moved_at_s)
        left_s = moved_at_s + self._idle_s - self._loop.time()
        if left_s <= 0:
            self.end("idle")
        else:
            self._timer = self._loop.call_later(left_s, self._check_idle)


def _end(done: asyncio.Future[str], how: str) -> None:
    if not done.done():
        done.set_result(how)


class _OneWay:
    """A direction of a tunnel: reads `source` while nothing waits for `sink`, else writes.

    `source` and `sink` are sockets with their names for messages. `on_end`: the source's end was
    handed on; `done`: a side broke, and how.
    """

    def __init__(
        self,
        source: tuple[str, socket.socket],
        sink: tuple[str, socket.socket],
        buffer: TunnelBuffer,
        on_end: Callable[[], None],
        done: asyncio.Future[str],
        first: bytes = b"",
        body: RequestBody | None = None,
        answer: OnlyAnswer | None = None,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._source_name, self.source = source
        self._sink_name, self.sink = sink
        self._buffer = buffer
        self._on_end, self._done = on_end, done
        self.moved_at_s = self._loop.time()
        self._kept_bytes = 0
        self._keep(first)
        self._body = body
        self._answer = answer
        self._chunk = _SMALLEST
        self.moved_bytes = 0
        self.ended = False
        self._reads = self._writes = False

    @property
    def satisfied(self) -> bool:
        return self._body is not None and self._body.over and not self._waiting

    def begin(self) -> None:
        # If this process ends, or fails, the sink must see a reset: an end would look like its source's.
        reset_on_close(self.sink)
        if self._waiting:
            self._writable()
        else:
            self._read()

    def stop(self) -> None:
        if self._reads:
            self._loop.remove_reader(self.source)
        if self._writes:
            self._loop.remove_writer(self.sink)
        self._reads = self._writes = False

    def _keep(self, block: bytes) -> None:
        """Keep what the sink did not take. An empty `block` frees the last; a view would keep it."""
        self._buffer.kept_bytes += len(block) - self._kept_bytes
        self._waiting, self._kept_bytes = memoryview(block), len(block)

    def close(self) -> None:
        self.stop()
        self._keep(b"")

    def _read(self) -> None:
        if not self._reads and not self.ended:
            self._reads = True
            self._loop.add_reader(self.source, failing(self._done, self._readable))

    def _readable(self) -> None:
        view = self._buffer.view
        if self._buffer.kept_bytes > MOST_KEPT_BYTES:
            self._chunk = _SMALLEST
        most = self._chunk if self._body is None else self._body.at_once(self._chunk)
        try:
            count = self.source.recv_into(view, most)
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            self._on_broken(self._source_name, error)
            return
        if count == 0:
            self._hand_end_on()
            return
        # Drop what is behind the body: the origin gets one request only.
        self.moved_at_s = self._loop.time()
        taken = count
        try:
            if self._body is not None and not (taken := self._body.take(bytes(view[:count]))):
                return
            if self._answer is not None:
                view = memoryview(self._answer.feed(bytes(view[:taken])))
                taken = len(view)
        except ValueError as error:
            self.stop()
            _end(self._done, f"{self._source_name}: {error}")
            return
        if self._answer is not None and self._answer.head_passed:
            self._answer = None
        try:
            sent = self.sink.send(view[:taken]) if taken else 0
        except (BlockingIOError, InterruptedError):
            sent = 0
        except OSError as error:
            self._on_broken(self._sink_name, error)
            return
        self.moved_bytes += sent
        # The sink is full: copy the rest, and read no more until it is written.
        if sent < taken:
            self._keep(bytes(view[sent:taken]))
            # What waits is memory: a sink that takes little is offered less.
            if sent < taken >> 2:
                self._chunk = max(_SMALLEST, self._chunk >> 1)
            self._reads, self._writes = False, True
            self._loop.remove_reader(self.source)
            self._loop.add_writer(self.sink, failing(self._done, self._writable))
        elif count == self._chunk < _LARGEST:  # both sides are fast: use larger blocks
            self._chunk <<= 1

    def _writable(self) -> None:
        try:
            sent = self.sink.send(self._waiting)
        except (BlockingIOError, InterruptedError):
            sent = 0
        except OSError as error:
            self._on_broken(self._sink_name, error)
            return
        if sent:
            self.moved_at_s = self._loop.time()
            self.moved_bytes += sent
            self._waiting = self._waiting[sent:]
        if not self._waiting:
            self._keep(b"")
            if self._writes:
                self._writes = False
                self._loop.remove_writer(self.sink)
            self._read()
        elif not self._writes:
            self._writes = True
            self._loop.add_writer(self.sink, failing(self._done, self._writable))

    def _hand_end_on(self) -> None:
        self.stop()
        try:
            self.sink.shutdown(socket.SHUT_WR)
        except OSError as error:
            self._on_broken(self._sink_name, error)
            return
        end_on_close(self.sink)
        self.ended = True
        self._on_end()

    def _on_broken(self, side: str, error: OSError) -> None:
        self.stop()
        _end(self._done, f"{side}: {error.strerror or error}")

"""Bytes carried between a socket and a stream, both ways, until both have ended or one breaks."""

import asyncio
import socket
from contextlib import suppress
from itertools import islice
from typing import Final

from cedos.kernel import tcp_info
from cedos.proxy.http import OnlyAnswer, RequestBody
from cedos.proxy.own_tasks import failing
from cedos.proxy.splice import TunnelBytes, reset_on_close
from cedos.proxy.streams.stream import MOST_CHUNK_BYTES, Chunk, ProxiedStream

_BLOCK: Final = MOST_CHUNK_BYTES
# The most blocks read from one program in one turn of the event loop.
_READS: Final = 4

_MOST_CHUNKS: Final = 64
# The time for a program to read the bytes that arrived before the stream broke, or the session ended.
LAST_S: Final = 10.0

# The most unsent bytes in the kernel for a program that does not read. Without it each could hold
# megabytes until the host's TCP memory (tcp_mem) is full and the session's own connections stall.
_UNSENT_BYTES: Final = 1 << 18


class Carry:
    """A carrier: `run` returns how it ended: `complete`, `idle`, `program: ...` or `stream: ...`.

    If one side breaks, the other is reset: the stream at once, the socket when the caller closes it.
    """

    def __init__(
        self,
        program: socket.socket,
        stream: ProxiedStream,
        *,
        first: bytes = b"",  # goes to the stream before anything that the program sends
        # What of the program follows `first`; the rest is left unread, or dropped.
        body: RequestBody | None = None,
        idle_s: float | None = None,  # the longest time without a byte
        answer: OnlyAnswer | None = None,  # passes on what the stream brings
    ) -> None:
        self.program, self.stream = program, stream
        # By number: for a socket that it does not know a selector formats its addresses (slow).
        self._file = program.fileno()
        with suppress(OSError):  # a socket that is not of TCP has no such limit
            tcp_info.wake_below(program, _UNSENT_BYTES)
        self._loop = asyncio.get_running_loop()
        self._up: Chunk = first
        self._body = body
        self._idle_s = idle_s
        self._answer, self._first_down = answer, b""
        self._ended: asyncio.Future[str] = self._loop.create_future()
        self._reads = self._writes = False
        self._up_done, self._down_done = stream.finished, False
        self._timer: asyncio.TimerHandle | None = None
        self._last: asyncio.TimerHandle | None = None
        self._moved = -1

    async def run(self) -> TunnelBytes:
        """Carry until both directions have ended; an end of either side raises nothing."""
        stream = self.stream
        if self._idle_s is not None:
            self._timer = self._loop.call_later(self._idle_s, self._check_idle)
        stream.watch(failing(self._ended, self._stream_changed))
        try:
            self._stream_changed()
            ended = await self._ended
        finally:
            for timer in (self._timer, self._last):
                if timer is not None:
                    timer.cancel()
            self._stop()
            stream.drop()
            if not stream.over:
                reset_on_close(self.program)
        return TunnelBytes(stream.sent_bytes, stream.received_bytes, ended)

    @property
    def _asked(self) -> bool:
        """Tell whether the only request has gone."""
        return self._body is not None and self._body.over and not self._up

    def _end(self, how: str) -> None:
        if not self._ended.done():
            self._ended.set_result(how)

    def _stop(self) -> None:
        self.stream.watch(lambda: None)
        self._read(on=False)
        self._write(on=False)

    def _check_idle(self) -> None:
        assert self._idle_s is not None
        moved = self.stream.sent_bytes + self.stream.received_bytes
        if moved == self._moved:
            self._end("idle")
        else:
            self._moved = moved
            self._timer = self._loop.call_later(self._idle_s, self._check_idle)

    def _stream_changed(self) -> None:
        """Carry on: the stream has something to read, or room, or it broke."""
        if self._ended.done():
            return
        self._down()
        self._go_up()
        if (broken := self.stream.broken) is not None:
            if not (self.stream.waiting or self._first_down):
                self._end(f"stream: {broken}")
            elif self._last is None:
                self._last = self._loop.call_later(LAST_S, self._end, f"stream: {broken}")
        elif self._up_done and self._down_done:
            self._end("complete")

    # From the program to the stream

    def _go_up(self) -> None:
        if self._up_done:
            return
        if self._up:
            # (An empty view would keep its block.)
            self._up = self._up[self.stream.write(self._up) :] or b""
        if self._asked:
            self._up_done = True  # one request was all; its end follows with the answer's
            self._read(on=False)
        else:
            self._read(on=not self._up and self.stream.room_bytes > 0)

    def _readable(self) -> None:
        program, stream = self.program, self.stream
        for _ in range(_READS if self._body is None else 1):
            most = min(_BLOCK, stream.room_bytes)
            if self._body is not None:
                most = 0 if self._body.over else self._body.at_once(most)
            if most <= 0:
                break
            try:
                data = program.recv(most)
            except (BlockingIOError, InterruptedError):
                return
            except OSError as error:
                self._end(f"program: {error.strerror or error}")
                return
            if not data:
                self._up_done = True
                self._read(on=False)
                stream.finish()
                if self._down_done:
                    self._end("complete")
                return
            come = len(data)
            if self._body is not None:
                try:
                    data = data[: self._body.take(data)]
                except ValueError as error:
                    self._end(f"program: {error}")
                    return
            taken = stream.write(data)
            if taken < len(data):
                self._up = memoryview(data)[taken:]
                break
            if come < most:
                break
        self._go_up()

    # From the stream to the program

    def _down(self) -> None:
        """Write to the program what has come, as far as it takes it."""
        stream = self.stream
        waiting = stream.waiting
        if self._answer is not None and not self._first_down:
            come = b"".join(waiting)
            stream.on_read(len(come))
            try:
                self._first_down = self._answer.feed(come)
            except ValueError as error:
                self._end(f"stream: {error}")
                return
            if self._answer.head_passed:
                self._answer = None
        while self._first_down or waiting:
            parts = [self._first_down] if self._first_down else list(islice(waiting, _MOST_CHUNKS))
            try:
                sent = self.program.sendmsg(parts)
            except (BlockingIOError, InterruptedError):
                self._write(on=True)
                return
            except OSError as error:
                self._end(f"program: {error.strerror or error}")
                return
            whole = sent == sum(map(len, parts))
            if self._first_down:
                self._first_down = self._first_down[sent:]
            else:
                stream.on_read(sent)
            if not whole:
                self._write(on=True)
                return
        self._write(on=False)
        if stream.peer_ended and not waiting and not self._down_done:
            self._down_done = True
            with suppress(OSError):
                self.program.shutdown(socket.SHUT_WR)
            if self._asked:
                stream.finish()

    # The loop

    def _read(self, *, on: bool) -> None:
        if on != self._reads:
            self._reads = on
            if on:
                self._loop.add_reader(self._file, failing(self._ended, self._readable))
            else:
                self._loop.remove_reader(self._file)

    def _write(self, *, on: bool) -> None:
        if on != self._writes:
            self._writes = on
            if on:
                again = failing(self._ended, self._stream_changed)
                self._loop.add_writer(self._file, again)
            else:
                self._loop.remove_writer(self._file)

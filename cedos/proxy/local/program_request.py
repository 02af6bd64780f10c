"""A program's request to the proxy, in SOCKS 5 or HTTP, and its refusal.

The first bytes of a program, which are sent to the gateway right behind OPEN, before its answer.

If the gateway is then out of reach, the connection goes direct and sends them again, while the first copy
may still arrive. Where that may happen, only bytes that do no harm twice are sent early (RFC 9110, 9.2.1;
RFC 8446, 8; RFC 4253, 4.2).
"""

import asyncio
import socket
from contextlib import suppress
from dataclasses import dataclass
from http import HTTPStatus
from typing import Final

from cedos.kernel.interface_socket import receive
from cedos.proxy.http import (
    ESTABLISHED,
    ProxyRequest,
    RefusedError,
    RequestBody,
    RequestParser,
    answer,
)
from cedos.proxy.local.socks import VERSION, SocksError, SocksParser, SocksReply, reply, reply_of
from cedos.proxy.splice import reset_on_close
from cedos.proxy.streams.stream import ProxiedStream

_LINGER_S: Final = 1.0
_BLOCK: Final = 16_384
MOST_FIRST_BYTES: Final = 16_384
_HANDSHAKE: Final = b"\x16\x03"
_GREETING: Final = b"SSH-"
SAFE_METHODS: Final = (b"GET ", b"HEAD ", b"OPTIONS ")
_HEAD_END: Final = b"\r\n\r\n"


@dataclass(frozen=True, slots=True)
class ProgramRequest:
    """A connection that a program asks for."""

    host: str
    port: int
    accepted: bytes = b""  # the bytes for the program once it is connected
    first: bytes = b""  # the bytes that go to the origin first
    # The body of a request, whose end ends what the program may send after `first`; None: nothing does.
    body: RequestBody | None = None
    only: bool = False  # it is one request of HTTP, and its answer ends the connection
    socks: bool = False  # the program speaks SOCKS 5


async def read_request(program: socket.socket) -> ProgramRequest | None:
    """Return a program's request; None: it was refused, or the program has gone. OSError."""
    data = await receive(program, _BLOCK)
    if not data:
        return None
    return await (_socks(program, data) if data[0] == VERSION else _http(program, data))


async def _socks(program: socket.socket, data: bytes) -> ProgramRequest | None:
    loop, parser = asyncio.get_running_loop(), SocksParser()
    while data:
        try:
            request = parser.feed(data)
        except SocksError as error:
            await part_from(program, parser.answers + error.answer)
            return None
        if parser.answers:
            await loop.sock_sendall(program, parser.answers)
        if request is not None:
            return ProgramRequest(
                request.host,
                request.port,
                reply(SocksReply.SUCCEEDED),
                request.rest,
                socks=True,
            )
        data = await receive(program, _BLOCK)
    return None


async def _http(program: socket.socket, data: bytes) -> ProgramRequest | None:
    parser = RequestParser()
    request: ProxyRequest | None = None
    try:
        while request is None:
            request = parser.feed(data)
            if request is None and not (data := await receive(program, _BLOCK)):
                return None
        body = None if request.tunnel else RequestBody(request.body_bytes)
        rest = request.rest if body is None else request.rest[: body.take(request.rest)]
    except RefusedError as error:
        await part_from(program, answer(error))
        return None
    except ValueError as error:
        refused = RefusedError(HTTPStatus.BAD_REQUEST, "http_request_error", str(error))
        await part_from(program, answer(refused))
        return None
    return ProgramRequest(
        request.host,
        request.port,
        ESTABLISHED if request.tunnel else b"",
        request.head + rest,
        body,
        only=not request.tunnel,
    )


async def refuse(program: socket.socket, request: ProgramRequest, error: RefusedError) -> None:
    """Say why the connection was refused, in the program's protocol."""
    await part_from(program, reply(reply_of(error)) if request.socks else answer(error))


async def part_from(program: socket.socket, last: bytes = b"") -> None:
    """Send the last bytes; wait until the program closes, as closing first could reset them."""
    loop = asyncio.get_running_loop()
    with suppress(OSError, TimeoutError):
        async with asyncio.timeout(_LINGER_S):
            if last:
                await loop.sock_sendall(program, last)
            program.shutdown(socket.SHUT_WR)
            while await receive(program, _BLOCK):
                pass


def may_be_repeated(words: bytes) -> bool:
    """Tell whether they do no harm if an origin gets them twice: a greeting, or one safe request."""
    if words.startswith(_HANDSHAKE):
        # At most one record: early data may follow, such as a POST (RFC 8446, 2.3).
        return 5 <= len(words) <= 5 + int.from_bytes(words[3:5])
    if words.startswith(_GREETING):
        return words.find(b"\n") == len(words) - 1
    # Exactly one request: bytes behind it might be another one.
    return words.startswith(SAFE_METHODS) and words.find(_HEAD_END) == len(words) - len(_HEAD_END)


class FirstWords:
    """The bytes that a stream may take early: `begin` with the stream, `end` when it was answered.

    A program that waits for its proxy's yes hears it as the stream begins, one round trip before the
    gateway's answer. If that is no, the program's connection is reset, as a redirected one.
    """

    def __init__(
        self,
        program: socket.socket,
        said: bytes = b"",  # the bytes that the program has sent so far
        yes: bytes = b"",  # the bytes for which it waits until it sends more; empty: it may send any time
        *,
        once: bool,  # whether bytes are never sent a second time, so that all may be sent early
    ) -> None:
        self._program = program
        self._said = said
        self._yes = yes
        self._once = once
        self._taken = 0
        self._stream: ProxiedStream | None = None
        self._loop = asyncio.get_running_loop()
        self.broken = False  # whether the program's connection broke meanwhile
        self.accepted = False  # whether the program has heard `yes`

    @property
    def left(self) -> bytes:
        """The bytes that no stream has taken."""
        return self._said[self._taken :]

    @property
    def repeatable(self) -> bool:
        """Tell whether the bytes that were taken may be sent once more."""
        return not self._taken or may_be_repeated(self._said)

    def begin(self, stream: ProxiedStream) -> None:
        self._stream = stream
        if self._yes and not self.accepted:
            self.accepted = True
            reset_on_close(self._program)  # an end behind `yes` would look like the origin's
            try:
                self._program.send(self._yes)
            except OSError:
                self.broken = True
                return
        # Send the bytes that the program has sent already; else read once while the gateway connects.
        if self._said:
            self._say()
        else:
            self._loop.add_reader(self._program, self._readable)

    def end(self, *, again: bool = False) -> None:
        """Stop reading; `again`: the bytes have to be sent once more, elsewhere."""
        if self._stream is not None:
            self._stream = None
            self._loop.remove_reader(self._program)
        if again:
            self._taken = 0

    def _readable(self) -> None:
        try:
            self._said = self._program.recv(MOST_FIRST_BYTES)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            self.broken = True  # remember it: the next read would look like an orderly end
        self._loop.remove_reader(self._program)
        self._say()

    def _say(self) -> None:
        if self._stream is not None and (self._once or may_be_repeated(self._said)):
            self._taken = self._stream.write(self._said)

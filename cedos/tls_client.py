"""TLS to strangers' servers: its handshakes keep nothing else waiting.

OpenSSL decodes all certificates before it trusts any, and some keys take 0.2 s each. So threads shake
hands: one for each asker at a time, and only for so many bytes.
"""

import asyncio
import ssl
from collections.abc import Awaitable, Callable, Hashable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from typing import Any, Final

# Of what the server says. Chains of certificates have 4 to 12 kB; 24 KiB can take 10 s.
MOST_BYTES: Final = 24_576
_LEAST_READ: Final = 256  # as many bytes counts each reading: it takes a turn of a thread
MOST_THREADS: Final = 4
_NO_COMPRESSED_CERTIFICATES: Final = 1 << 33  # OpenSSL 3.2; Python has no name for it
# ECDHE alone: with DHE the server chooses the numbers, and one of 10,000 bits takes 0.6 s.
_CIPHERS: Final = "@SECLEVEL=2:ECDH+AESGCM:ECDH+CHACHA20:ECDH+AES:!aNULL:!eNULL:!aDSS:!SHA1:!AESCCM"


_threads: Final = ThreadPoolExecutor(MOST_THREADS, "handshakes")
_working: Final[dict[Hashable, Future[OSError | None]]] = {}


def tls_context() -> ssl.SSLContext:
    """Return Python's own context of a client, without what lets a server begin costly work later."""
    context = ssl.create_default_context()
    context.set_ciphers(_CIPHERS)
    context.options |= ssl.OP_NO_RENEGOTIATION | _NO_COMPRESSED_CERTIFICATES
    return context


async def _in_turn(asker: Hashable, work: Callable[[], OSError | None]) -> None:
    """Work in a thread once the asker's earlier work has ended, also work that no task awaits any more.

    Errors: those that the work returns.
    """
    while (earlier := _working.get(asker)) is not None:
        await asyncio.wait([asyncio.wrap_future(earlier)])
    working = _working[asker] = _threads.submit(work)
    working.add_done_callback(lambda _done: _working.pop(asker, None))
    if (error := await asyncio.wrap_future(working)) is not None:
        raise error


class TlsClient:
    """The client's end of one connection: an `ssl.SSLObject` that has shaken hands before it is used.

    Args:
        context: the client's.
        name: the server's, for which its certificate should be.
    """

    def __init__(self, context: ssl.SSLContext, name: str) -> None:
        self._received, self._to_send = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._end = context.wrap_bio(self._received, self._to_send, server_hostname=name)

    async def shake_hands(
        self,
        asker: Hashable,  # whose turn it takes
        send: Callable[[bytes], Awaitable[None]],
        receive: Callable[[], Awaitable[bytes]],
    ) -> None:
        """Finish the handshake. OSError: it failed, or the server cannot prove to be who it should."""
        left = MOST_BYTES
        with suppress(ssl.SSLWantReadError):
            self._end.do_handshake()  # (it only says hello)
        while True:
            await send(self._to_send.read())
            if not (data := await receive()):
                raise ConnectionResetError("the server broke off the handshake")
            if (left := left - max(len(data), _LEAST_READ)) < 0:
                raise ssl.SSLError(1, f"its handshake has more than {MOST_BYTES >> 10} KiB")
            self._received.write(data)
            with suppress(ssl.SSLWantReadError):
                await _in_turn(asker, self._step)
                break
        await send(self._to_send.read())

    def _step(self) -> OSError | None:
        try:
            self._end.do_handshake()
        except OSError as error:  # (also one of TLS)
            return error
        return None

    def context(self, more: bytes) -> ssl.SSLContext:
        """Return a context for asyncio that leads to this end; `more` came behind the handshake."""
        self._received.write(more)
        return _ShakenContext(self)

    def begin_handshake(self, incoming: ssl.MemoryBIO, outgoing: ssl.MemoryBIO) -> "_ShakenEnd":
        return _ShakenEnd(self._end, (incoming, self._received), (self._to_send, outgoing))


class _ShakenEnd:
    """A stand-in for asyncio's new `ssl.SSLObject`: bytes go on to the end that has shaken hands."""

    def __init__(self, end: ssl.SSLObject, *moves: tuple[ssl.MemoryBIO, ssl.MemoryBIO]) -> None:
        self._end = end
        self._take_in, self._give_out = moves

    def __getattr__(self, name: str) -> Any:
        return getattr(self._end, name)

    def do_handshake(self) -> None: ...

    def read(self, *arguments: Any) -> Any:
        return self._moving(self._end.read, *arguments)

    def write(self, data: bytes) -> Any:
        return self._moving(self._end.write, data)

    def unwrap(self) -> None:
        self._moving(self._end.unwrap)

    def _moving(self, call: Callable[..., Any], *arguments: Any) -> Any:
        _move(*self._take_in)
        try:
            return call(*arguments)
        finally:
            _move(*self._give_out)


def _move(source: ssl.MemoryBIO, sink: ssl.MemoryBIO) -> None:
    if source.pending:
        sink.write(source.read())
    if source.eof:  # its writer has ended it, and all is read
        sink.write_eof()


class _ShakenContext(ssl.SSLContext):
    """A context for one connection, whose handshake was before."""

    _client: TlsClient

    def __new__(cls, client: TlsClient) -> "_ShakenContext":
        made = super().__new__(cls, ssl.PROTOCOL_TLS_CLIENT)
        made._client = client
        return made

    def wrap_bio(  # type: ignore[override]
        self, incoming: ssl.MemoryBIO, outgoing: ssl.MemoryBIO, **_others: Any
    ) -> _ShakenEnd:
        return self._client.begin_handshake(incoming, outgoing)

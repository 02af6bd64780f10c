"""Web servers: the way to them, the client that asks, its limits, and the parsing of what they answer.

A server may answer anything. Each part of a head is parsed here, for all who ask; what cannot be used is
a TransferError, or counts as missing.
"""

import asyncio
import errno
import re
import socket
import ssl
import time
import zlib
from collections.abc import AsyncIterator, Callable, Hashable
from contextlib import suppress
from contextvars import ContextVar
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from enum import IntEnum
from functools import cache, partial
from ipaddress import ip_network
from typing import Any, Final

import aiohttp
from aiohttp import hdrs
from aiohttp.http import HttpProcessingError
from yarl import URL

from cedos import tls_client
from cedos.errors import TransferError, WebError
from cedos.global_unicast import is_global, is_within, meanings
from cedos.kernel.interface_socket import bind_to_interface
from cedos.kernel.policy_routing import DELIVERED_HERE, route_type
from cedos.model import Address

AGENT: Final = "cedos"  # many servers refuse agents that begin with "python"
CONNECT_S: Final = 10.0
SILENCE_S: Final = 60.0
# A server that brings less in `SILENCE_S` is given up.
LEAST_BYTES: Final = 16_384
# What comes unattended is given up beyond so many bytes, or where less of the disk is free.
MOST_FILE_BYTES: Final = 8 * 10**9
KEEP_FREE_BYTES: Final = 10**9
_MOST_LINE_BYTES: Final = 1 << 16  # some servers send one field of 10 kB
_MOST_FIELDS: Final = 128
# Answers that something else follows (1xx). A server could send them for ever, 20 us each.
MOST_INFORMATIONAL: Final = 16
# The heads before a body, and what comes with it: sizes of chunks and their extensions. A chunk of one
# byte has 5 of them.
_MOST_HEAD_BYTES: Final = 1 << 20
_MOST_FRAMING_BYTES: Final = 1 << 16
_FRAMING_OF_BYTE: Final = 5
_LONGEST_PLACE: Final = 8_192
_GROWTH: Final = 10  # no recording is compressed further
_GZIP: Final = b"\x1f\x8b"
_SMALL_BYTES: Final = 1 << 20
# The limits of a name (RFC 1035, 2.3.4), and of the letters in one that is not ASCII: each takes 11 us.
_LONGEST_NAME, _LONGEST_LABEL, _MOST_LETTERS = 253, 63, 100
_AUTHORITY: Final = re.compile(r"[^/?#]*//(?:[^/?#]*@)?([^/?#]*)")
_LABEL_ENDS: Final = re.compile("[.:\u3002\uff0e\uff61]")
_LEFT_OUT: Final = str.maketrans("", "", "\t\r\n")  # as yarl leaves them out
_LARGEST: Final = 1 << 62
_MOST_REASON: Final = 200
_REDIRECTS: Final = frozenset({301, 302, 303, 307, 308})

# The fields of a head: lower-case names; values in Latin-1, which keeps every byte.
Fields = dict[str, list[str]]


# Address ranges for benchmarks and documentation, which laboratories and tunnels use as their
# internet. No private host is there.
_PLAYED: Final = tuple(
    map(
        ip_network,
        ("192.0.2.0/24", "198.18.0.0/15", "198.51.100.0/24", "203.0.113.0/24", "2001:db8::/32",
         "3fff::/20"),
    )
)  # fmt: skip


class Distance(IntEnum):
    """The distance of an address from this host."""

    HOST = 0
    LINK = 1
    PRIVATE = 2
    INTERNET = 3


def distance(text: str) -> Distance:
    """Return how far an address is, wherever a translator leads it."""
    return min(map(_distance, meanings(text)))


def _distance(address: Address) -> Distance:
    if address.is_loopback or address.is_unspecified or route_type(address) in DELIVERED_HERE:
        return Distance.HOST
    if address.is_link_local:
        return Distance.LINK
    return (
        Distance.INTERNET if is_global(address) or is_within(address, _PLAYED) else Distance.PRIVATE
    )


@dataclass(slots=True)
class WebWay:
    """A way to web servers: its `socket` is the client's."""

    interface: str | None = None  # the network; None: as the host routes
    # How far addresses must be. A server leads to none that is nearer than its own: what it leads to
    # is its choice and not the user's.
    least: Distance = Distance.HOST
    # Return the user's rule that forbids the interface to a server (a host and a port), which has this
    # address there; empty: none. The kernel applies no rule to a socket that is bound to an interface.
    forbids: Callable[[str, tuple[str, int], str], str] = lambda _interface, _server, _address: ""
    refused: str = ""  # why it led no further; empty: it did
    ruled: str = ""  # the rule that forbids it; empty: none
    _tried: Distance = Distance.HOST
    _server: tuple[str, int] = "", 0
    _led_to: set[tuple[tuple[str, int], str]] = field(default_factory=set)
    _before_bytes: int = 0
    _answer: "_FinalAnswer | None" = None

    @property
    def received_bytes(self) -> int:
        """Return the bytes that have come: heads, bodies, and their framing."""
        return self._before_bytes + (self._answer.received_bytes if self._answer else 0)

    def begin(self, url: URL) -> None:
        """Note whom the next connections are for."""
        self._server = url.raw_host or "", url.port or 0

    def socket(self, address: Any) -> socket.socket:
        """Return a socket for a connection to an address. OSError: there may be none."""
        family, kind, protocol, _, where = address
        if self._is_forbidden(self._server, where[0]):
            raise OSError(errno.EACCES, self.ruled)
        self._tried = max(self._tried, far := distance(where[0]))
        if far < self.least:
            self.refused = f"{where[0]} is nearer to this host than the server that leads there"
            raise OSError(errno.EACCES, self.refused)
        self.refused = ""
        self._led_to.add((self._server, where[0]))
        one = socket.socket(family, kind, protocol)
        try:
            one.setblocking(False)
            if self.interface is not None:
                bind_to_interface(one, self.interface)
        except BaseException:
            one.close()
            raise
        return one

    def is_forbidden(self) -> bool:
        """Return whether a rule forbids by now what it has led to; `ruled` tells which."""
        return any(self._is_forbidden(*each) for each in self._led_to)

    def _is_forbidden(self, server: tuple[str, int], address: str) -> bool:
        self.ruled = "" if self.interface is None else self.forbids(self.interface, server, address)
        return bool(self.ruled)

    def on_answer(self, answer: aiohttp.ClientResponse) -> None:
        """Note that a server has answered; the bytes of the body are counted as they come."""
        self.least = max(self.least, self._tried)
        self._before_bytes = self.received_bytes
        self._answer = answer if isinstance(answer, _FinalAnswer) else None


class _FinalAnswer(aiohttp.ClientResponse):
    """An answer whose bytes are counted, with limits on those before it and on what frames its body.

    The server must end a body that ends with its connection: not an error of that, nor a FIN on the way
    to TLS.
    """

    received_bytes = 0

    async def start(self, connection: Any) -> "_FinalAnswer":
        protocol, left = connection.protocol, MOST_INFORMATIONAL + 1
        read = protocol.read

        async def count_body() -> Any:
            nonlocal left
            if (left := left - 1) < 0:
                raise HttpProcessingError(code=502, message="no answer behind informational ones")
            return await read()

        protocol.read = count_body
        self._bound_framing(protocol)
        self._refuse_cut(protocol, connection.transport.get_extra_info("ssl_object"))
        try:
            await super().start(connection)
        finally:
            del protocol.read
        if ",".join(self.headers.getall(hdrs.TRANSFER_ENCODING, ["chunked"])).lower() != "chunked":
            raise aiohttp.ClientPayloadError("its body has a coding that was not asked for")
        return self

    @staticmethod
    def _refuse_cut(protocol: Any, protected: ssl.SSLObject | None) -> None:
        ended = False

        def on_end() -> None:
            nonlocal ended
            with suppress(ssl.SSLError):  # it waits for more
                ended = protected is None or not protected.read(1)
            type(protocol).eof_received(protocol)

        def on_lost(error: Exception | None) -> None:
            body = protocol._payload
            if (error or not ended) and body is not None and not body.is_eof():
                body.set_exception(aiohttp.ClientPayloadError("the connection was cut off"))
            type(protocol).connection_lost(protocol, error)

        protocol.eof_received, protocol.connection_lost = on_end, on_lost

    def _bound_framing(self, protocol: Any) -> None:
        receive = partial(type(protocol).data_received, protocol)
        before, head_bytes = protocol._payload, None

        def on_data(data: bytes) -> None:
            nonlocal head_bytes
            self.received_bytes += len(data)
            receive(data)
            body: Any = self.content
            if body is None:
                body = protocol._payload
                if body is None or body is before or body.is_eof():
                    if self.received_bytes > _MOST_HEAD_BYTES:
                        error = HttpProcessingError(code=502, message="its head is too long")
                        protocol.set_exception(error)
                        self.close()
                    return
            had = body.total_bytes
            besides = self.received_bytes - had
            if head_bytes is None:
                head_bytes = besides
            most = _MOST_FRAMING_BYTES + _FRAMING_OF_BYTE * had
            if besides - head_bytes > most and not body.is_eof():
                body.set_exception(aiohttp.ClientPayloadError("frames without bytes"))
                self.close()

        protocol.data_received = on_data


# Who asks: each asker's handshakes wait for one another; empty: those with each server do.
asker: Final[ContextVar[Hashable]] = ContextVar("asker", default=None)


class _Arrivals(asyncio.Protocol):
    """The first bytes of a server, until the handshake reads them."""

    def __init__(self) -> None:
        self._data, self._came, self._ended = bytearray(), asyncio.Event(), False
        self._transport: Any = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._data += data
        self._came.set()
        if len(self._data) > tls_client.MOST_BYTES:
            self._transport.pause_reading()

    def connection_lost(self, error: Exception | None) -> None:
        self._ended = True
        self._came.set()

    async def send(self, data: bytes) -> None:
        self._transport.write(data)

    async def receive(self) -> bytes:
        """Return what came; empty: nothing will."""
        while not self._data and not self._ended:
            self._came.clear()
            await self._came.wait()
        return self.take()

    def take(self) -> bytes:
        data = bytes(self._data)
        self._data.clear()
        return data


class _Connector(aiohttp.TCPConnector):
    """A connector whose handshakes keep nothing else waiting."""

    async def _wrap_create_connection(self, *args: Any, **kwargs: Any) -> Any:
        connect: Callable[..., Any] = super()._wrap_create_connection
        if not (context := kwargs.pop("ssl", None)):
            return await connect(*args, **kwargs)
        (factory,), name, key = args, kwargs.pop("server_hostname"), kwargs["req"].connection_key
        async with asyncio.timeout(kwargs["timeout"].sock_connect):
            transport, arrivals = await connect(_Arrivals, **kwargs)
            try:
                end = tls_client.TlsClient(context, name)
                await end.shake_hands(asker.get() or name, arrivals.send, arrivals.receive)
                protocol = factory()
                # It has no turn of the loop between: what came is either here or still to be read.
                shaken = end.context(arrivals.take())
                secure = await self._loop.start_tls(transport, protocol, shaken)
                if secure is None:
                    raise ConnectionResetError("the server broke off the connection")
            except BaseException as error:
                transport.abort()
                if isinstance(error, ssl.CertificateError):
                    raise aiohttp.ClientConnectorCertificateError(key, error) from error
                if isinstance(error, ssl.SSLError):
                    raise aiohttp.ClientConnectorSSLError(key, error) from error
                if isinstance(error, OSError) and not isinstance(error, TimeoutError):
                    raise aiohttp.ClientConnectorError(key, error) from error
                raise
        protocol.connection_made(secure)
        return secure, protocol


def client(
    socket_factory: Callable[[Any], Any],
    *,
    silence_s: float | None = SILENCE_S,
    tls: ssl.SSLContext | None = None,  # None: one for all
    agent: str | None = AGENT,  # None: requests have only the headers that they are given
    **connector: Any,  # more arguments of aiohttp's connector
) -> aiohttp.ClientSession:
    """Return a client that keeps no cookies."""
    return aiohttp.ClientSession(
        connector=_Connector(
            socket_factory=socket_factory, ssl=tls or _one_tls_context(), **connector
        ),
        timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_S, sock_read=silence_s),
        headers={} if agent is None else {hdrs.USER_AGENT: agent},
        auto_decompress=False,  # a megabyte on the way could be a gigabyte here
        cookie_jar=aiohttp.DummyCookieJar(),
        response_class=_FinalAnswer,
        max_line_size=_MOST_LINE_BYTES,
        max_field_size=_MOST_LINE_BYTES,
    )


class LeastPace:
    """The least pace of a body: so many bytes in each `SILENCE_S` of a clock."""

    __slots__ = ("_came", "_least_bytes", "_now_s", "until_s")

    def __init__(
        self, now_s: Callable[[], float], least_bytes: Callable[[], int] = lambda: LEAST_BYTES
    ) -> None:
        self._now_s, self._least_bytes = now_s, least_bytes
        self._came, self.until_s = 0, now_s() + SILENCE_S

    def take(self, count: int) -> bool:
        """Count bytes that came; return whether there are enough, so that the time begins anew."""
        self._came += count
        if self._came < self._least_bytes():
            return False
        self._came, self.until_s = 0, self._now_s() + SILENCE_S
        return True


async def blocks(
    answer: aiohttp.ClientResponse,
    most_bytes: int,
    least_bytes: Callable[[], int] = lambda: LEAST_BYTES,
) -> AsyncIterator[bytes]:
    """Yield a body. TimeoutError: less than `least_bytes` of it came in `SILENCE_S`."""
    pace = LeastPace(asyncio.get_running_loop().time, least_bytes)
    while True:
        # The caller's own time counts, too: it may wait for the disk, not for people.
        try:
            async with asyncio.timeout_at(pace.until_s):
                block = await answer.content.read(most_bytes)
        except TimeoutError:
            if not pace.take(0):
                raise
            continue
        if not block:
            return
        pace.take(len(block))
        yield block


def tls_context() -> ssl.SSLContext:
    """Return a client's context that says which HTTP it speaks."""
    context = tls_client.tls_context()
    context.set_alpn_protocols(["http/1.1"])
    return context


_one_tls_context: Final = cache(tls_context)  # to read all authorities takes 20 ms


@dataclass(frozen=True, slots=True)
class AnswerHead:
    """A server's answer to a request for `url`, before the body."""

    url: URL
    status: int
    reason: str
    fields: Fields

    @classmethod
    def of(cls, url: URL, answer: aiohttp.ClientResponse) -> "AnswerHead":
        """Parse a head. TransferError: it has too many fields."""
        fields: Fields = {}
        if len(answer.raw_headers) > _MOST_FIELDS:
            raise TransferError(f"{url.host} answers with more than {_MOST_FIELDS} fields")
        for name, value in answer.raw_headers:
            fields.setdefault(name.decode("latin-1").lower(), []).append(value.decode("latin-1"))
        reason = (answer.reason or "").encode(errors="replace").decode(errors="replace")
        return cls(url, answer.status, reason[:_MOST_REASON], fields)

    def field(self, name: str) -> str:
        """Return the first value of a field; empty: there is none."""
        return self.fields.get(name.lower(), [""])[0]

    @property
    def says(self) -> str:
        return f"{self.status} {self.reason}".rstrip()

    def redirect(self) -> URL | None:
        """Return where the server sends the client; None: nowhere. TransferError: to no web server."""
        to = self.field(hdrs.LOCATION)
        if self.status not in _REDIRECTS or not to:
            return None
        # Servers write names in UTF-8, as browsers expect, or in Latin-1.
        raw = to.encode("latin-1")
        try:
            text = raw.decode()
        except UnicodeDecodeError:
            text = to
        with suppress(ValueError):  # a host that cannot be a name, say
            there = self.url.join(url_of(text[:_LONGEST_PLACE])).with_fragment(None)
            if there.scheme in ("http", "https") and there.host and len(text) <= _LONGEST_PLACE:
                return there
        raise TransferError(f"{self.url.host} leads to what is no URL of a web server")

    @property
    def size(self) -> int | None:
        """The body's size; None if the server does not say it."""
        return _number(self.field(hdrs.CONTENT_LENGTH))

    @property
    def encoding(self) -> str:
        """The body's coding, in lower-case letters; empty: it has none."""
        coding = self.field(hdrs.CONTENT_ENCODING).strip().lower()
        return "" if coding == "identity" else coding

    @property
    def part(self) -> tuple[int, int] | None:
        """The first byte of a part, and the size of the whole; None: it is no part of known bytes."""
        unit, _, rest = self.field(hdrs.CONTENT_RANGE).partition(" ")
        span, _, whole = rest.partition("/")
        first, size = _number(span.partition("-")[0]), _number(whole)
        if unit.lower() != "bytes" or first is None or size is None or first >= size:
            return None
        return first, size

    def continues(self, have: int, version: str, size: int | None = None) -> bool:
        """Return whether the body goes on at byte `have` of a version; "", None: an unknown one or size.

        A server may send one of another version though it was asked with `If-Range` (RFC 9110, 15.3.7).
        """
        name = hdrs.ETAG if date(version) is None else hdrs.LAST_MODIFIED
        same = not version or self.field(name) in ("", version)
        first, total = self.part or (-1, 0)
        right = first == have and size in (None, total) and same
        return self.status == 206 and right and not self.encoding

    @property
    def validator(self) -> str:
        return strong_validator(self.fields)

    @property
    def modified_unix_s(self) -> float:
        """The time of the object's last change if the server says it, else now."""
        for name in (hdrs.LAST_MODIFIED, hdrs.DATE):
            if (seconds := date(self.field(name))) is not None:
                return seconds
        return time.time()


async def decode_body(
    head: AnswerHead,
    answer: aiohttp.ClientResponse,
    most_bytes: int,
    growth: int = _GROWTH,
    least_bytes: Callable[[], int] = lambda: LEAST_BYTES,
) -> AsyncIterator[bytes]:
    """Yield a body, decoded where a server encodes it; it may grow `growth` times by that.

    WebError: another attempt may succeed. TransferError: none will. TimeoutError: as of `blocks`.
    """
    if not head.encoding:
        async for block in blocks(answer, most_bytes, least_bytes):
            yield block
        return
    if head.encoding not in ("gzip", "x-gzip", "deflate"):
        raise TransferError(
            f"the body is encoded as {head.encoding[:20]}, which nothing here reads"
        )
    decoder = zlib.decompressobj(zlib.MAX_WBITS | 32)  # of both kinds
    came, made, rest = 0, 0, b""
    try:
        async for block in blocks(answer, most_bytes, least_bytes):
            came, rest = came + len(block), rest + block
            while rest and (not decoder.eof or rest.startswith(_GZIP)):
                if decoder.eof:  # gzip may have several members (RFC 1952, 2.2)
                    decoder = zlib.decompressobj(zlib.MAX_WBITS | 16)
                data = decoder.decompress(rest, most_bytes)
                rest = decoder.unused_data if decoder.eof else decoder.unconsumed_tail
                made += len(data)
                if made > _SMALL_BYTES + growth * came:
                    raise TransferError("the body is compressed beyond all measure")
                yield data
            if decoder.eof and not _GZIP.startswith(rest):
                break  # what follows is no part of it, and may have no end
            # Blocks may be empty, without end; honest ones are hardly larger than what they hold.
            if came > _SMALL_BYTES + 2 * made:
                raise TransferError("the body is encoded into more than it is")
        yield decoder.flush()
    except zlib.error as error:
        raise WebError("the body is no gzip, which the server says that it is") from error
    if not decoder.eof:
        raise WebError("the server broke off before the end")


def url_of(text: str) -> URL:
    """Return the URL in a text of others. ValueError: it is none, or its host is no name for its length.

    yarl takes seconds for a host of thousands of letters (punycode).
    """
    found = _AUTHORITY.match(text.translate(_LEFT_OUT))
    host = found[1] if found is not None else ""
    most = _LONGEST_NAME if host.isascii() else _MOST_LETTERS
    if len(host) > most + len(".:65535") or any(
        len(label) > _LONGEST_LABEL for label in _LABEL_ENDS.split(host)
    ):
        raise ValueError("its host is longer than a name can be")
    try:
        url = URL(text)
        _ = url.host  # else it may raise later
    except (IndexError, UnicodeError) as error:  # for http://[]@/, for what is no Punycode
        raise ValueError("it is no URL") from error
    return url


def strong_validator(fields: Fields) -> str:
    """Return what tells one version from another (RFC 9110, 8.8): a strong tag, or a date; else ""."""
    tag = fields.get("etag", [""])[0]
    if tag and not tag.startswith("W/"):
        # It must come back as it was, and for no date; the client sends UTF-8.
        good = tag.isascii() and tag.isprintable() and len(tag) <= 1000 and date(tag) is None
        return tag if good else ""
    modified, dated = fields.get("last-modified", [""])[0], fields.get("date", [""])[0]
    at_s, now_s = date(modified), date(dated)
    # The object may change again within the second that the date counts in (8.8.2.2).
    return modified if at_s is not None and (now_s is None or at_s < now_s) else ""


def date(text: str) -> float | None:
    """Return the Unix time of a date (RFC 9110, 5.6.7), of the years 1 to 9999; None: no date."""
    if text.startswith(('"', "W/")):  # a tag, in which the parser finds dates, too
        return None
    try:
        return parsedate_to_datetime(text).timestamp()
    except (ValueError, TypeError, OverflowError):
        return None


def _number(text: str) -> int | None:
    good = text.isascii() and text.isdecimal() and len(text) < 20 and int(text) <= _LARGEST
    return int(text) if good else None

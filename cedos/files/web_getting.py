"""HTTP downloads from web servers over one chosen network, resumed after any failure.

A `Partial` keeps the received bytes with the server's validator. The next attempt continues them only if
the server still has that very version (RFC 9110, 13.1.5 and 14).
"""

import asyncio
import errno
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from ipaddress import ip_address
from typing import Any, Final
from urllib.parse import urlsplit

import aiohttp
from aiohttp import hdrs

from cedos.errors import HostError, TransferError, WebError
from cedos.files.partial import Partial
from cedos.session.io.advice import Chooser
from cedos.session.io.links import Egress, EgressReader

_BLOCK_BYTES: Final = 1 << 16
_CONNECT_S: Final = 10.0
_SILENCE_S: Final = 10.0
_WHOLE_S: Final = 60.0
_LARGEST: Final = 1 << 40
_MOST_HEADER_BYTES: Final = 1 << 16  # some servers send one field of 10 kB
_LOOK_UP_S: Final = 1.0
_SILENT: Final = "does not answer"
_WORDS: Final = {
    errno.ECONNREFUSED: "refused the connection",
    errno.ECONNRESET: "broke off the connection",
    errno.EPIPE: "broke off the connection",
    errno.ETIMEDOUT: _SILENT,
}
_NO_WAY: Final = frozenset(
    {errno.ENETUNREACH, errno.EHOSTUNREACH, errno.ENETDOWN, errno.ENODEV, errno.EADDRNOTAVAIL}
)

_FAILURES: Final = (aiohttp.ClientError, OSError, TimeoutError, UnicodeError)


async def fetch(
    url: str,
    partial: Partial,
    interface: str | None,
    on_bytes: Callable[[int, int | None], None] = lambda _have, _size: None,
) -> None:
    """Download a file until it is whole and has its name.

    Args:
        interface: the network; None: as the host routes.
        on_bytes: receives the bytes that are here and the file's size, None while that is unknown. The
            last call, with both equal, comes before the file has its name.

    Raises:
        WebError: this attempt failed; another one may go on.
        TransferError: the server does not have the file, or the disk cannot be written.
    """
    headers = {hdrs.ACCEPT_ENCODING: "identity"}  # a compressed body has no ranges of its own
    # Ask for the rest only if the server still has this version, else it sends the whole.
    if partial.have and partial.version:
        headers |= {hdrs.RANGE: f"bytes={partial.have}-", hdrs.IF_RANGE: partial.version}
    try:
        async with (
            _client(interface) as client,
            client.get(url, headers=headers) as answer,
        ):
            size = _begin(answer, partial)
            async for block in answer.content.iter_chunked(_BLOCK_BYTES):
                partial.write(block)
                if partial.have > _LARGEST or (size is not None and partial.have > size):
                    raise TransferError("more came than the server had said")
                on_bytes(partial.have, size)
    except _FAILURES as error:
        raise _failure(error) from error
    if size is not None and partial.have != size:
        raise WebError(f"the server broke off: {partial.have} of {size} bytes came")
    if size is None:
        on_bytes(partial.have, partial.have)
    await asyncio.to_thread(partial.finish, time.time())


async def read(url: str, most_bytes: int, interface: str | None) -> bytes:
    """Return something small.

    Raises:
        WebError: this attempt failed.
        TransferError: the server does not have it, or it is larger than `most_bytes`.
    """
    data = bytearray()
    try:
        async with (
            asyncio.timeout(_WHOLE_S),
            _client(interface) as client,
            client.get(url) as answer,
        ):
            if answer.status != 200:
                raise _refusal(answer.status, answer.reason)
            async for block in answer.content.iter_chunked(_BLOCK_BYTES):
                data += block
                if len(data) > most_bytes:
                    raise TransferError(f"more than {most_bytes} bytes came")
    except _FAILURES as error:
        raise _failure(error) from error
    return bytes(data)


def _client(interface: str | None) -> aiohttp.ClientSession:
    """Return a client whose connections leave through one interface, whatever the default route is."""

    def make(address: Any) -> socket.socket:
        family, kind, protocol, *_ = address
        one = socket.socket(family, kind, protocol)
        try:
            one.setblocking(False)
            if interface is not None:
                name = interface.encode() + b"\0"
                one.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, name)
        except BaseException:
            one.close()
            raise
        return one

    limits = aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_S, sock_read=_SILENCE_S)
    connector = aiohttp.TCPConnector(socket_factory=make, limit=1)
    return aiohttp.ClientSession(
        connector=connector, timeout=limits, headers={hdrs.USER_AGENT: "cedos"},
        max_line_size=_MOST_HEADER_BYTES, max_field_size=_MOST_HEADER_BYTES,
    )  # fmt: skip


def _begin(answer: aiohttp.ClientResponse, partial: Partial) -> int | None:
    """Prepare the part for an answer's body; return the file's size, None if it is unknown."""
    if answer.status == 206:
        unit, _, rest = answer.headers.get(hdrs.CONTENT_RANGE, "").partition(" ")
        span, _, whole = rest.partition("/")
        first = span.partition("-")[0]
        if unit != "bytes" or first != str(partial.have) or not whole.isdecimal():
            partial.discard()
            raise WebError("the server sent another part than was asked for")
        partial.begin(partial.have, partial.version, int(whole[:18]))
        return int(whole[:18])
    if answer.status == 416:
        partial.discard()
    if answer.status != 200:
        raise _refusal(answer.status, answer.reason)
    if answer.headers.get(hdrs.CONTENT_ENCODING, "identity") != "identity":
        # The body is decoded: neither its length nor its ranges are those of the file.
        partial.begin(0, "", _LARGEST)
        return None
    partial.begin(0, _validator(answer), answer.content_length or _LARGEST)
    return answer.content_length


def _validator(answer: aiohttp.ClientResponse) -> str:
    """Return what tells one version from another; empty if the server gives nothing reliable."""
    tag = answer.headers.get(hdrs.ETAG, "")
    if tag and not tag.startswith("W/"):
        return tag[:1000]
    modified, date = answer.headers.get(hdrs.LAST_MODIFIED, ""), answer.headers.get(hdrs.DATE)
    # The file may have changed again within the second that the date counts in (RFC 9110, 8.8.2.2).
    return modified[:1000] if modified != date else ""


def _refusal(status: int, reason: str | None) -> TransferError:
    """Return the error for a status: a `WebError` if the same request may succeed later."""
    kind = WebError if status in (416, 429) or status >= 500 else TransferError
    return kind(f"the server says {status} {reason or ''}".rstrip())


def _failure(error: Exception) -> TransferError:
    """Return the error for one of aiohttp's: a `WebError` if another attempt may succeed."""
    match error:
        case aiohttp.TooManyRedirects():
            return TransferError("the server redirects in circles")
        case aiohttp.RedirectClientError():
            return TransferError("the server redirects to what is no URL of a web server")
        case aiohttp.InvalidURL() | aiohttp.NonHttpUrlClientError():
            return TransferError("its URL cannot be fetched")
        case aiohttp.ClientResponseError():
            return TransferError("what answers there is no web server")
        case aiohttp.ClientConnectorDNSError():
            return WebError(_unknown_name(error))
        case aiohttp.ClientConnectorCertificateError():
            return WebError(f"the certificate of {error.host} is not valid")
        case aiohttp.ClientConnectorSSLError():
            return WebError(f"there is no TLS with {error.host}")
        case aiohttp.ClientConnectorError():
            return WebError(_unreachable(error.os_error))
        case TimeoutError():
            return WebError(f"the server {_SILENT}")
        case aiohttp.ServerDisconnectedError():
            return WebError("the server closed the connection without an answer")
        case aiohttp.ClientPayloadError():
            return WebError("the server broke off before the end")
        case OSError():
            return WebError(_unreachable(error))
        case UnicodeError():  # a label of the host's name is too long, say
            return TransferError("its URL cannot be fetched")
    return WebError("the connection to the server failed")


def _unknown_name(error: aiohttp.ClientConnectorError) -> str:
    if error.os_error.errno == socket.EAI_NONAME:
        return f"there is no server {error.host}"
    return f"the name {error.host} cannot be looked up now"


def _unreachable(error: OSError) -> str:
    if error.errno in _NO_WAY:
        return "no network leads to the server"
    return f"the server {_WORDS.get(error.errno or 0, 'cannot be reached')}"


def is_web(url: str) -> bool:
    """Return True for an http or https URL with a host."""
    try:
        parts = urlsplit(url)
        return parts.scheme in ("http", "https") and bool(parts.hostname)
    except ValueError:
        return False


class LeadingNetworks:
    """The networks that lead to servers, metered or not as the daemon (`chooser`) says."""

    def __init__(self, chooser: Chooser | None = None) -> None:
        self._chooser, self._reader = chooser, EgressReader()
        self._addresses: dict[str, tuple[float, list[str]]] = {}

    def close(self) -> None:
        self._reader.close()

    async def to(self, host: str) -> list[Egress]:
        """Return the networks that lead to a host, or far away while its name is unknown."""
        until_s, addresses = self._addresses.get(host, (0.0, []))
        if time.monotonic() >= until_s:
            addresses = await self._look_up(host) or addresses
            # The attempt itself finds out that there is no such name, and can say so.
            again_s = 60.0 if addresses else 5.0
            self._addresses[host] = time.monotonic() + again_s, addresses
        if self._chooser is not None:
            await self._chooser.learn()
        found: dict[str, Egress] = {}
        with suppress(ValueError, HostError):
            for address in addresses or ("192.0.2.1", "2001:db8::1"):
                for each in self._reader.egresses(ip_address(address)):
                    found.setdefault(each.interface, self._as_known(each))
        return list(found.values())

    async def _look_up(self, host: str) -> list[str]:
        loop = asyncio.get_running_loop()
        with suppress(OSError, ValueError):
            async with asyncio.timeout(_LOOK_UP_S):
                found = await loop.getaddrinfo(host, 0, type=socket.SOCK_STREAM)
                return [str(each[4][0]).partition("%")[0] for each in found]
        return []

    def _as_known(self, egress: Egress) -> Egress:
        known = self._chooser.network(egress.interface) if self._chooser is not None else None
        return egress if known is None else replace(egress, kind=known.kind, metered=known.metered)

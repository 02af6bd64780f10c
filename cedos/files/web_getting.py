"""A file from an ordinary web server, over one network; the next attempt goes on where this one ended.

What has come lies in a `Partial` with the server's validator, so that it survives crashes and reboots; it
is gone on with only where the server still has that very version (RFC 9110, 13.1.5 and 14).
"""

import asyncio
import socket
import time
from collections.abc import Callable
from typing import Any, Final

import aiohttp
from aiohttp import hdrs

from cedos.errors import TransferError, WebError
from cedos.files.partial import Partial
from cedos.files.web_errors import FAILURES, failure, refusal

_BLOCK_BYTES: Final = 1 << 16
_CONNECT_S: Final = 10.0
_SILENCE_S: Final = 10.0
_WHOLE_S: Final = 60.0
_LARGEST: Final = 1 << 40


async def fetch(
    url: str,
    partial: Partial,
    interface: str | None,
    proxy: str | None = None,
    came: Callable[[int, int | None], None] = lambda _have, _size: None,
) -> None:
    """Until it is whole and has its name; `came` hears of bytes here and of the size.

    Where no size was told, that is known when all is here; `came` hears of it before it has its name.

    `interface` None: as the host routes, or through the `proxy`, which then chooses.

    Raises:
        WebError: this attempt failed; another one may go on.
        TransferError: the server does not have it, or the disk cannot.
    """
    headers = {hdrs.ACCEPT_ENCODING: "identity"}  # a compressed body has no ranges of its own
    if partial.have and partial.version:
        headers |= {hdrs.RANGE: f"bytes={partial.have}-", hdrs.IF_RANGE: partial.version}
    try:
        async with (
            session(interface) as client,
            client.get(url, headers=headers, proxy=proxy) as answer,
        ):
            size = _begin(answer, partial)
            async for block in answer.content.iter_chunked(_BLOCK_BYTES):
                partial.write(block)
                if partial.have > _LARGEST or (size is not None and partial.have > size):
                    raise TransferError("more came than the server had said")
                came(partial.have, size)
    except FAILURES as error:
        raise failure(error) from error
    if size is not None and partial.have != size:
        raise WebError(f"the server broke off: {partial.have} of {size} bytes came")
    if size is None:
        came(partial.have, partial.have)
    await asyncio.to_thread(partial.finish, time.time())


async def read(url: str, most_bytes: int, interface: str | None, proxy: str | None = None) -> bytes:
    """Something small, at once.

    Raises:
        WebError: it could not be had this time.
        TransferError: the server does not have it, or it is more than `most_bytes`.
    """
    data = bytearray()
    try:
        async with (
            asyncio.timeout(_WHOLE_S),
            session(interface) as client,
            client.get(url, proxy=proxy) as answer,
        ):
            if answer.status != 200:
                raise refusal(answer.status, answer.reason)
            async for block in answer.content.iter_chunked(_BLOCK_BYTES):
                data += block
                if len(data) > most_bytes:
                    raise TransferError(f"more than {most_bytes} bytes came")
    except FAILURES as error:
        raise failure(error) from error
    return bytes(data)


def session(interface: str | None) -> aiohttp.ClientSession:
    """A client whose connections leave through one interface, whatever the host's default is."""

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
    return aiohttp.ClientSession(connector=connector, timeout=limits)


def _begin(answer: aiohttp.ClientResponse, partial: Partial) -> int | None:
    """Takes the head of an answer; the size of the whole thing, None where it is not told."""
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
        raise refusal(answer.status, answer.reason)
    partial.begin(0, _validator(answer), answer.content_length or _LARGEST)
    return answer.content_length


def _validator(answer: aiohttp.ClientResponse) -> str:
    """What tells one version from another; empty where the server gives nothing to rely on."""
    tag = answer.headers.get(hdrs.ETAG, "")
    if tag and not tag.startswith("W/"):
        return tag[:1000]
    modified, date = answer.headers.get(hdrs.LAST_MODIFIED, ""), answer.headers.get(hdrs.DATE)
    # It may have changed again within the second that the date counts in (RFC 9110, 8.8.2.2).
    return modified[:1000] if modified != date else ""

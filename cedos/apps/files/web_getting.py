"""HTTP downloads from web servers over one chosen network, resumed after any failure.

A `Partial` keeps the received bytes with the server's validator, and the URL that this is of. The next
attempt continues them only if the server still has that very version there (RFC 9110, 13.1.5 and 14).
"""

import asyncio
import errno
import socket
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from ipaddress import ip_address
from typing import Final

import aiohttp
from aiohttp import hdrs
from yarl import URL

from cedos import web
from cedos.apps.files.partial import Partial
from cedos.errors import CedosError, DiskError, HostError, TransferError, WebError
from cedos.kernel.own_file import to_its_end
from cedos.session.io.advice import Chooser
from cedos.session.io.links import Egress, EgressReader
from cedos.web import AnswerHead, WebWay

_BLOCK_BYTES: Final = 1 << 16
_SILENCE_S: Final = 10.0
_WHOLE_S: Final = 60.0
_LARGEST: Final = 1 << 40
_MOST_REDIRECTS: Final = 10
_LOOK_UP_S: Final = 1.0
_LOOK_S: Final = 1.0
_SMALL_BYTES: Final = 1 << 20
# A power failure costs so many bytes of a part at most.
_SURE_BYTES: Final = 1 << 24
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


async def fetch(
    url: str,
    partial: Partial,
    way: WebWay,
    # Receives the bytes that are here and the file's size, None while that is unknown. The last
    # call, with both equal, comes before the file has its name.
    on_bytes: Callable[[int, int | None], None] = lambda _have, _size: None,
) -> None:
    """Download a file until it is whole and has its name.

    WebError: this attempt failed; another one may go on. TransferError: the server does not have the
    file, or the disk cannot be written.
    """
    partial.drop_unsure()

    def headers(there: URL) -> dict[str, str]:
        # A compressed body has no ranges of its own.
        asked: dict[str, str] = {hdrs.ACCEPT_ENCODING: "identity"}
        # Ask for the rest only if the server still has this version, else it sends the whole.
        if partial.have and (validator := _validator_at(there, partial)):
            asked |= {hdrs.RANGE: f"bytes={partial.have}-", hdrs.IF_RANGE: validator}
        return asked

    try:
        async with _ask(url, headers, way) as (head, answer):
            size = _begin(head, partial)
            async for block in web.decode_body(head, answer, _BLOCK_BYTES):
                partial.write(block)
                if partial.have > _LARGEST or (size is not None and partial.have > size):
                    raise TransferError("the server sent more than it had announced")
                on_bytes(partial.have, size)
                if partial.unsure_bytes >= _SURE_BYTES:
                    await to_its_end(asyncio.to_thread(partial.make_sure))
    except (WebError, DiskError):
        raise
    except TransferError:
        partial.discard()  # no other attempt will go on with it
        raise
    if size is not None and partial.have != size:
        raise WebError(f"the server broke off: {partial.have} of {size} bytes came")
    if size is None:
        on_bytes(partial.have, partial.have)
    await to_its_end(asyncio.to_thread(partial.finish, time.time()))


async def read(url: str, most_bytes: int, way: WebWay) -> bytes:
    """Return something small.

    WebError: this attempt failed. TransferError: the server does not have it, or it is larger than
    `most_bytes`.
    """
    data = bytearray()
    headers: dict[str, str] = {hdrs.ACCEPT_ENCODING: "gzip, deflate"}
    try:
        async with asyncio.timeout(_WHOLE_S), _ask(url, lambda _: headers, way) as (head, answer):
            if head.status != 200:
                raise _refusal(head)
            async for block in web.decode_body(head, answer, _BLOCK_BYTES, most_bytes):
                data += block
                # What frames the body is no part of it, but comes over the network as well.
                if len(data) > most_bytes or way.received_bytes > most_bytes + _SMALL_BYTES:
                    raise TransferError(f"more than {most_bytes} bytes came")
    except TimeoutError as error:
        raise _failure(error) from error
    return bytes(data)


@asynccontextmanager
async def _ask(
    url: str, headers: Callable[[URL], dict[str, str]], way: WebWay
) -> AsyncIterator[tuple[AnswerHead, aiohttp.ClientResponse]]:
    """Ask for a URL, and where it leads to. Errors, also of the block: WebError, TransferError."""
    try:
        there = web.url_of(url)
        async with (
            _while_allowed(way),
            web.client(way.socket, silence_s=_SILENCE_S, limit=1) as client,
        ):
            for _ in range(_MOST_REDIRECTS):
                way.begin(there)
                async with asyncio.timeout(web.SILENCE_S):
                    asking = await client.get(there, headers=headers(there), allow_redirects=False)
                async with asking as answer:
                    way.on_answer(answer)
                    head = AnswerHead.of(there, answer)
                    if (to := head.redirect()) is None:
                        yield head, answer
                        return
                    there = to
    except CedosError:
        raise
    except Exception as error:  # any other one would end the transfers from all other servers
        if way.ruled:
            raise WebError(f"no network leads to the server but {forbidden(way.ruled)}") from error
        if way.refused:
            raise TransferError(way.refused) from error
        raise _failure(error) from error
    raise TransferError("the server redirects in circles")


@asynccontextmanager
async def _while_allowed(way: WebWay) -> AsyncIterator[None]:
    """End the block within a second after a rule forbids what it asks of. TimeoutError: it was ended."""
    loop = asyncio.get_running_loop()
    timer: asyncio.TimerHandle | None = None

    def look() -> None:
        nonlocal timer
        if way.is_forbidden():
            limit.reschedule(loop.time())
        else:
            timer = loop.call_later(_LOOK_S, look)

    try:
        async with asyncio.timeout(None) as limit:
            look()
            yield
    finally:
        if timer is not None:
            timer.cancel()


def _begin(head: AnswerHead, partial: Partial) -> int | None:
    """Prepare the part for an answer's body; return the file's size, None if it is unknown."""
    if head.status == 206:
        size = None if partial.size == _LARGEST else partial.size
        validator = _validator_at(head.url, partial)
        asked = bool(validator) or not partial.have
        if head.part is None or not (asked and head.continues(partial.have, validator, size)):
            partial.discard()
            raise WebError("the server sent another part than requested")
        partial.begin(partial.have, partial.version if validator else "", head.part[1])
        return head.part[1]
    if head.status == 416:
        partial.discard()
    if head.status != 200:
        raise _refusal(head)
    if head.encoding:
        # The body is decoded: neither its length nor its ranges are those of the file.
        partial.begin(0, "", _LARGEST)
        return None
    validator = head.validator
    partial.begin(0, validator and f"{head.url} {validator}", head.size or _LARGEST)
    return head.size


def _validator_at(url: URL, partial: Partial) -> str:
    """Return what tells the version of a part at a URL; empty: it is of another one, or unknown."""
    place, _, validator = partial.version.partition(" ")
    return validator if place == str(url) else ""


def _refusal(head: AnswerHead) -> TransferError:
    """Return the error for a status: a `WebError` if the same request may succeed later."""
    kind = WebError if head.status in (416, 429) or head.status >= 500 else TransferError
    return kind(f"the server says {head.says}")


def _failure(error: Exception) -> TransferError:
    """Return the error for one of aiohttp's: a `WebError` if another attempt may succeed."""
    match error:
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
        case ValueError():  # a label of the host's name is too long, say
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


def forbidden(why: str) -> str:
    """Return the words for networks that the user's rule forbids."""
    return f"those that are forbidden ({why})"


def is_web(url: str) -> bool:
    """Return True for an http or https URL with a host."""
    try:
        found = web.url_of(url)
    except ValueError:
        return False
    return found.scheme in ("http", "https") and bool(found.raw_host)


class LeadingNetworks:
    """The networks that lead to servers, metered or not as the daemon (`chooser`) says.

    `forbids`: as of a `WebWay`; networks that a rule forbids lead to no server.
    """

    def __init__(self, chooser: Chooser | None = None) -> None:
        self._chooser, self._reader = chooser, EgressReader()
        self.forbids = WebWay().forbids
        self._addresses: dict[str, tuple[float, list[str]]] = {}
        self._looking: dict[str, asyncio.Task[list[str]]] = {}

    def close(self) -> None:
        self._reader.close()

    def egresses(self, address: str) -> tuple[Egress, ...]:
        """Return the interfaces that lead to an address, whatever rules say."""
        with suppress(ValueError, HostError):
            return self._reader.egresses(ip_address(address))
        return ()

    async def to(self, url: str) -> list[Egress]:
        """Return the networks that lead to a URL's host, or far away while its name is unknown.

        WebError: rules forbid all of them.
        """
        host, port = "", 0
        with suppress(ValueError):
            there = web.url_of(url)
            host, port = there.raw_host or "", there.port or 0
        until_s, addresses = self._addresses.get(host, (0.0, []))
        if time.monotonic() >= until_s:
            addresses = await self._look_up(host) or addresses
            # The attempt itself finds out that there is no such name, and can say so.
            again_s = 60.0 if addresses else 5.0
            self._addresses[host] = time.monotonic() + again_s, addresses
        if self._chooser is not None:
            await self._chooser.learn()
        found: dict[str, Egress] = {}
        why = ""
        for address in addresses or ("192.0.2.1", "2001:db8::1"):
            for each in self.egresses(address):
                if ruled := self.forbids(each.interface, (host, port), address):
                    why = ruled
                else:
                    found.setdefault(each.interface, self._as_known(each))
        if why and not found:
            raise WebError(f"no network leads to the server but {forbidden(why)}")
        return list(found.values())

    async def _look_up(self, host: str) -> list[str]:
        # A thread cannot be ended: at most one looks up a name.
        if (looking := self._looking.get(host)) is None:
            looking = self._looking[host] = asyncio.create_task(_addresses(host))
            looking.add_done_callback(lambda _done: self._looking.pop(host))
        done, _ = await asyncio.wait({looking}, timeout=_LOOK_UP_S)
        return looking.result() if done else []

    def _as_known(self, egress: Egress) -> Egress:
        known = self._chooser.network(egress.interface) if self._chooser is not None else None
        return egress if known is None else replace(egress, kind=known.kind, metered=known.metered)


async def _addresses(host: str) -> list[str]:
    """Return the addresses of a host; none if no server answers."""
    loop = asyncio.get_running_loop()
    with suppress(OSError, ValueError):
        found = await loop.getaddrinfo(host, 0, type=socket.SOCK_STREAM)
        return [str(each[4][0]).partition("%")[0] for each in found]
    return []

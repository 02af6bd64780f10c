"""Asks origins for one thing after another; none to which this host may not connect."""

import errno
import re
import socket
from collections.abc import Awaitable, Callable, Hashable, Mapping, Sequence
from typing import Any, Final

import aiohttp
from aiohttp import hdrs
from aiohttp.abc import AbstractResolver, ResolveResult
from yarl import URL

from cedos import web

LONGEST_HEAD: Final = 1 << 17
_AUTOMATIC: Final = (hdrs.ACCEPT, hdrs.ACCEPT_ENCODING, hdrs.USER_AGENT)

_SILENT: Final = {
    errno.ETIMEDOUT, errno.EHOSTUNREACH, errno.ENETUNREACH, errno.EHOSTDOWN, errno.ENETDOWN,
}  # fmt: skip


# Return the addresses of a name. The second argument is the asker, who has a share of all
# look-ups. Raises OSError.
LookUp = Callable[[str, Hashable], Awaitable[Sequence[str]]]

_MOST_ADDRESSES: Final = 8


class _SharedResolver(AbstractResolver):
    """A resolver for aiohttp, whose own one has all askers wait for a few threads."""

    def __init__(self, look_up: LookUp) -> None:
        self._look_up = look_up

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[ResolveResult]:
        found = await self._look_up(host, web.asker.get())
        if not found:
            raise OSError(socket.EAI_NONAME, "its name is not found")
        return [
            ResolveResult(
                hostname=host,
                host=address,
                port=port,
                family=socket.AF_INET6 if ":" in address else socket.AF_INET,
                proto=0,
                flags=socket.AI_NUMERICHOST,
            )
            for address in found[:_MOST_ADDRESSES]
        ]

    async def close(self) -> None: ...


class OriginClient:
    """A client of origins, which connects only to permitted addresses.

    Args:
        refused: why there may be no connection to that address and port, in words; empty: there may.
        look_up: finds the addresses of names; None: this host's resolver, for every client.
    """

    def __init__(self, refused: Callable[[str, int], str], look_up: LookUp | None = None) -> None:
        self._refused = refused
        self._resolver = None if look_up is None else _SharedResolver(look_up)
        self._client: aiohttp.ClientSession | None = None

    async def ask(
        self, url: URL, headers: Mapping[str, str], asker: Hashable = None
    ) -> aiohttp.ClientResponse:
        """Send a GET; return the answer's head, for the caller to read on and to close.

        Raises: aiohttp.ClientError, OSError, TimeoutError (`words` says which).
        """
        if self._client is None:
            # Each request has a connection of its own. A reused one may have been closed, and nothing
            # would say whether the origin received the request; and idle ones would have no bound.
            # A cache of names would join look-ups: one asker would wait behind another one's others.
            self._client = web.client(
                self._socket, silence_s=None, tls=web.tls_context(), agent=None, limit=0,
                force_close=True, resolver=self._resolver, use_dns_cache=False,
            )  # fmt: skip
        web.asker.set(asker)
        try:
            answer = await self._client.get(
                url, headers=headers, allow_redirects=False, skip_auto_headers=_AUTOMATIC
            )
        except (aiohttp.ClientError, OSError, TimeoutError):
            raise
        except ValueError as error:  # a part of its name is too long, say
            raise aiohttp.ClientError("its URL cannot be asked") from error
        if sum(len(name) + len(value) for name, value in answer.raw_headers) > LONGEST_HEAD:
            answer.close()
            raise aiohttp.ClientError(f"its head is longer than {LONGEST_HEAD} bytes")
        return answer

    async def close(self) -> None:
        if self._client is not None:
            await self._client.close()
            self._client = None

    def _socket(self, address: Any) -> socket.socket:
        family, kind, protocol, _, where = address
        if why := self._refused(where[0], where[1]):
            raise OSError(why)
        one = socket.socket(family, kind, protocol)
        one.setblocking(False)
        one.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        return one


def words(error: BaseException) -> str:
    """Return in words why an origin could not be asked."""
    if isinstance(error, TimeoutError):
        return "no answer in time"
    if isinstance(error, aiohttp.ClientResponseError):
        return "its answer cannot be read"
    if isinstance(error, aiohttp.ClientConnectorCertificateError):
        return "its certificate is not one to trust"
    if isinstance(error, aiohttp.ClientConnectorDNSError):
        return "its name is not found"
    if isinstance(error, aiohttp.ClientConnectorError):
        return _not_connected(error.os_error)
    return str(error) or type(error).__name__


def _not_connected(error: OSError) -> str:
    """Put a failed connection in words, also asyncio's list of several addresses."""
    numbers = {int(number) for number in re.findall(r"\[Errno (\d+)\]", str(error))}
    if numbers == {errno.ECONNREFUSED}:
        return "it refuses the connection"
    if numbers & _SILENT:
        return "it does not answer"
    return str(error.strerror or error)

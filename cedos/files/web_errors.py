"""What went wrong with a web server, in words, and whether trying again may help."""

import errno
import socket
from typing import Final

import aiohttp

from cedos.errors import TransferError, WebError

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

FAILURES: Final = (aiohttp.ClientError, OSError, TimeoutError, UnicodeError)
"""All that a client of aiohttp raises where it cannot have something."""


def refusal(status: int, reason: str | None) -> TransferError:
    """For an answer without what was asked for: a `WebError` where the same question may help later."""
    kind = WebError if status in (416, 429) or status >= 500 else TransferError
    return kind(f"the server says {status} {reason or ''}".rstrip())


def failure(error: Exception) -> TransferError:
    """For one of `FAILURES`: a `WebError` where another attempt may go on, else it is refused."""
    match error:
        case aiohttp.TooManyRedirects():
            return TransferError("the server redirects in circles")
        case aiohttp.RedirectClientError():
            return TransferError("the server redirects to what is no URL of a web server")
        case aiohttp.InvalidURL() | aiohttp.NonHttpUrlClientError():
            return TransferError("its URL cannot be fetched")
        case aiohttp.ClientHttpProxyError():
            return WebError(f"the proxy says {error.status} {error.message}".rstrip())
        case aiohttp.ClientResponseError():
            return TransferError("what answers there is no web server")
        case aiohttp.ClientConnectorDNSError():
            return WebError(_unknown_name(error))
        case aiohttp.ClientConnectorCertificateError():
            return WebError(f"the certificate of {error.host} is not valid")
        case aiohttp.ClientConnectorSSLError():
            return WebError(f"there is no TLS with {error.host}")
        case aiohttp.ClientProxyConnectionError():
            return WebError(_unreachable("the proxy", error.os_error))
        case aiohttp.ClientConnectorError():
            return WebError(_unreachable("the server", error.os_error))
        case TimeoutError():
            return WebError(f"the server {_SILENT}")
        case aiohttp.ServerDisconnectedError():
            return WebError("the server closed the connection without an answer")
        case aiohttp.ClientPayloadError():
            return WebError("the server broke off before the end")
        case OSError():
            return WebError(_unreachable("the server", error))
        case UnicodeError():  # a part of the host's name is longer than any can be, say
            return TransferError("its URL cannot be fetched")
    return WebError("the connection to the server failed")


def _unknown_name(error: aiohttp.ClientConnectorError) -> str:
    if error.os_error.errno == socket.EAI_NONAME:
        return f"there is no server {error.host}"
    return f"the name {error.host} cannot be looked up now"


def _unreachable(who: str, error: OSError) -> str:
    if error.errno in _NO_WAY:
        return f"no network leads to {who}"
    return f"{who} {_WORDS.get(error.errno or 0, 'cannot be reached')}"

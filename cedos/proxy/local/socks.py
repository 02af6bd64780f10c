"""SOCKS 5 (RFC 1928) without passwords: a parser of requests for connections."""

from dataclasses import dataclass
from enum import IntEnum
from http import HTTPStatus
from ipaddress import IPv4Address, IPv6Address
from typing import Final

from cedos.proxy.http import RefusedError, authority, ipv6_text

VERSION: Final = 5
_NO_PASSWORD, _CONNECT = 0, 1
_IPV4, _NAME, _IPV6 = 1, 3, 4
_ADDRESS_BYTES: Final = {_IPV4: 4, _IPV6: 16}


class SocksReply(IntEnum):
    """A code of a reply (RFC 1928, section 6)."""

    SUCCEEDED = 0
    FAILURE = 1
    NOT_ALLOWED = 2
    NETWORK_UNREACHABLE = 3
    HOST_UNREACHABLE = 4
    REFUSED = 5
    TTL_EXPIRED = 6
    COMMAND_UNKNOWN = 7
    ADDRESS_TYPE_UNKNOWN = 8


@dataclass(frozen=True, slots=True)
class SocksRequest:
    """A program's request."""

    host: str
    port: int
    rest: bytes  # the bytes behind the request


class SocksError(Exception):
    """A request that cannot be served; `answer` is sent before the connection is closed."""

    def __init__(self, words: str, answer: bytes) -> None:
        super().__init__(words)
        self.answer = answer


class SocksParser:
    """A parser: `feed` it until it returns a request, and send `answers` to the program each time."""

    def __init__(self) -> None:
        self._data = b""
        self._greeted = False
        self.answers = b""

    def feed(self, data: bytes) -> SocksRequest | None:
        """Take bytes of the program; return its request once it is complete. SocksError."""
        self._data += data
        self.answers = b""
        if not self._greeted and not self._greet():
            return None
        return self._request()

    def _greet(self) -> bool:
        data = self._data
        if len(data) < 2 or len(data) < 2 + data[1]:
            return False
        if data[0] != VERSION:
            raise SocksError("not SOCKS 5", b"")
        if _NO_PASSWORD not in data[2 : 2 + data[1]]:
            raise SocksError("it wants a password to be asked for", bytes([VERSION, 0xFF]))
        self._data, self._greeted = data[2 + data[1] :], True
        self.answers = bytes([VERSION, _NO_PASSWORD])
        return True

    def _request(self) -> SocksRequest | None:
        data = self._data
        if len(data) < 5:
            return None
        version, command, _, kind = data[:4]
        if version != VERSION:
            raise SocksError("not SOCKS 5", b"")
        begin = 5 if kind == _NAME else 4
        length = data[4] if kind == _NAME else _ADDRESS_BYTES.get(kind)
        if length is None:
            raise SocksError("no such kind of address", reply(SocksReply.ADDRESS_TYPE_UNKNOWN))
        if len(data) < begin + length + 2:
            return None
        if command != _CONNECT:
            raise SocksError("no such command here", reply(SocksReply.COMMAND_UNKNOWN))
        raw, port = data[begin : begin + length], data[begin + length : begin + length + 2]
        try:
            host = _host_of(kind, raw)
        except (ValueError, RefusedError):
            raise SocksError("the host is not a name", reply(SocksReply.FAILURE)) from None
        number = int.from_bytes(port, "big")
        if not number:
            raise SocksError("there is no port 0", reply(SocksReply.FAILURE))
        return SocksRequest(host, number, data[begin + length + 2 :])


def _host_of(kind: int, raw: bytes) -> str:
    if kind == _IPV4:
        return str(IPv4Address(raw))
    if kind == _IPV6:
        return ipv6_text(IPv6Address(raw))
    text = raw.decode("ascii")
    # Some programs send an address as if it were a name.
    return authority(f"[{text}]" if ":" in text else text)[0]


def reply(code: SocksReply) -> bytes:
    """Return the answer to a request; the program does not learn from which address it was connected."""
    return bytes([VERSION, code, 0, _IPV4]) + bytes(6)


def reply_of(refused: RefusedError) -> SocksReply:
    """Return the SOCKS code of a refusal."""
    by_kind = {
        "connection_refused": SocksReply.REFUSED,
        "connection_timeout": SocksReply.TTL_EXPIRED,
        "dns_error": SocksReply.HOST_UNREACHABLE,
        "dns_timeout": SocksReply.HOST_UNREACHABLE,
        "destination_ip_unroutable": SocksReply.NETWORK_UNREACHABLE,
    }
    if refused.status is HTTPStatus.FORBIDDEN:
        return SocksReply.NOT_ALLOWED
    return by_kind.get(refused.kind, SocksReply.FAILURE)

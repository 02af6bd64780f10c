"""SOCKS 5 as programs speak it (RFC 1928), without passwords: bytes in, what to do out. Pure."""

from dataclasses import dataclass
from enum import IntEnum
from functools import lru_cache
from http import HTTPStatus
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import Final

from cedos.proxy.answers import RefusedError
from cedos.proxy.request import authority

VERSION: Final = 5
_NO_PASSWORD, _NONE_THAT_IS_KNOWN = 0x00, 0xFF
_CONNECT, _ASSOCIATE = 1, 3
_IPV4, _NAME, _IPV6 = 1, 3, 4
_ADDRESS_BYTES: Final = {_IPV4: 4, _IPV6: 16}
_PACKET_HEAD: Final = 4  # reserved (2), fragment, kind of address
_KNOWN: Final = 1_024
"""Addresses as they are written, and read, with each datagram."""


class SocksReply(IntEnum):
    """RFC 1928, section 6."""

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
    """What a program wants to be connected with; `rest`: what came behind its request.

    `associates`: it wants to send datagrams, from that address and port (0: it does not say).
    """

    host: str
    port: int
    rest: bytes
    associates: bool = False


class SocksError(Exception):
    """It is not SOCKS 5, or asks for what is not there; `answer` goes back before the end."""

    def __init__(self, words: str, answer: bytes) -> None:
        super().__init__(words)
        self.answer = answer


class SocksParser:
    """`feed` until there is a request; what it puts into `answers` goes back at once."""

    def __init__(self) -> None:
        self._data = b""
        self._greeted = False
        self.answers = b""

    def feed(self, data: bytes) -> SocksRequest | None:
        """Raises: SocksError."""
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
        if command not in (_CONNECT, _ASSOCIATE):
            raise SocksError("no such command here", reply(SocksReply.COMMAND_UNKNOWN))
        raw, port = data[begin : begin + length], data[begin + length : begin + length + 2]
        try:
            host = host_of(kind, raw)
        except (ValueError, RefusedError):
            raise SocksError("the host is not a name", reply(SocksReply.FAILURE)) from None
        number = int.from_bytes(port, "big")
        associates = command == _ASSOCIATE
        if not number and not associates:
            raise SocksError("there is no port 0", reply(SocksReply.FAILURE))
        return SocksRequest(host, number, data[begin + length + 2 :], associates)


@lru_cache(maxsize=_KNOWN)
def host_of(kind: int, raw: bytes) -> str:
    if kind == _IPV4:
        return str(IPv4Address(raw))
    if kind == _IPV6:
        return str(IPv6Address(raw))
    text = raw.decode("ascii")
    # (Some programs hand addresses on as names.)
    return authority(f"[{text}]" if ":" in text else text)[0]


def reply(code: SocksReply, bound: tuple[str, int] = ("0.0.0.0", 0)) -> bytes:  # noqa: S104
    """The answer to a request; which address it is connected from is nobody's business.

    `bound`: where an association takes datagrams.
    """
    return bytes([VERSION, code, 0]) + pack_address(*bound)


@lru_cache(maxsize=_KNOWN)
def pack_address(host: str, port: int) -> bytes:
    """Kind, address and port, as requests, replies and datagrams have them (RFC 1928, section 5)."""
    address = ip_address(host)
    kind = _IPV4 if address.version == 4 else _IPV6
    return bytes([kind]) + address.packed + port.to_bytes(2)


def reply_of(refused: RefusedError) -> SocksReply:
    """What a refusal is called in SOCKS."""
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


@dataclass(frozen=True, slots=True)
class SocksPacket:
    """A datagram of an association (RFC 1928, section 7)."""

    host: str
    port: int
    data: bytes

    def pack(self) -> bytes:
        return bytes(3) + pack_address(self.host, self.port) + self.data


def parse_packet(datagram: bytes) -> SocksPacket | None:
    """What a program sends; None: it is to be dropped, as fragments are."""
    if len(datagram) < _PACKET_HEAD + 1 or datagram[2]:
        return None
    kind = datagram[3]
    begin = _PACKET_HEAD + (kind == _NAME)
    length = datagram[_PACKET_HEAD] if kind == _NAME else _ADDRESS_BYTES.get(kind)
    if length is None or len(datagram) < begin + length + 2:
        return None
    at = begin + length
    port = int.from_bytes(datagram[at : at + 2])
    try:
        host = host_of(kind, datagram[begin:at])
    except (ValueError, RefusedError):
        return None
    return SocksPacket(host, port, datagram[at + 2 :]) if port else None

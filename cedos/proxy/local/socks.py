"""SOCKS 5 (RFC 1928) without passwords: a parser of requests, and a program's datagrams."""

import asyncio
import socket
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from enum import IntEnum
from functools import lru_cache
from http import HTTPStatus
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import Final

from cedos.kernel.interface_socket import receive
from cedos.kernel.socket_owners import UNKNOWN, SocketOwners
from cedos.proxy.http import RefusedError, authority, ipv6_text
from cedos.proxy.local.program_packets import Came, ProgramPackets

VERSION: Final = 5
_NO_PASSWORD, _NONE_THAT_IS_KNOWN = 0x00, 0xFF
_CONNECT, _ASSOCIATE = 1, 3
_IPV4, _NAME, _IPV6 = 1, 3, 4
_ADDRESS_BYTES: Final = {_IPV4: 4, _IPV6: 16}
_PACKET_HEAD: Final = 4  # reserved (2), fragment, kind of address
# The most cached addresses. Each datagram has one.
_KNOWN: Final = 1_024


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
    # The program wants to send datagrams, from this address and port (0: unknown).
    associates: bool = False


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
        return ipv6_text(IPv6Address(raw))
    text = raw.decode("ascii")
    # Some programs send an address as if it were a name.
    return authority(f"[{text}]" if ":" in text else text)[0]


def reply(code: SocksReply, bound: tuple[str, int] = ("0.0.0.0", 0)) -> bytes:  # noqa: S104
    """Return the answer to a request; `bound`: the address and port that take an association's datagrams.

    For a connection it stays zero: the program does not learn from which address it was made.
    """
    return bytes([VERSION, code, 0]) + pack_address(*bound)


@lru_cache(maxsize=_KNOWN)
def pack_address(host: str, port: int) -> bytes:
    """Pack kind, address and port as requests, replies and datagrams have them (RFC 1928, section 5)."""
    address = ip_address(host)
    kind = _IPV4 if address.version == 4 else _IPV6
    return bytes([kind]) + address.packed + port.to_bytes(2)


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


@dataclass(frozen=True, slots=True)
class SocksPacket:
    """A datagram of an association (RFC 1928, section 7)."""

    host: str
    port: int
    data: bytes

    def pack(self) -> bytes:
        return bytes(3) + pack_address(self.host, self.port) + self.data


def parse_packet(datagram: bytes) -> SocksPacket | None:
    """Parse a program's datagram; None: it is a fragment or malformed, and is dropped."""
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


_AT_ONCE: Final = 64
_LARGEST: Final = 65_535
# The time after which the kernel is asked again which socket sends.
CHECKED_S: Final = 0.1


class SocksAssociation:
    """A program's datagrams, for as long as the connection that asked for them (`serve`).

    They are accepted from one socket only, which has the same user as that connection: the first one that
    sends here.
    """

    def __init__(
        self,
        program: socket.socket,  # that connection
        port: int,  # the port from which the program says that it will send; 0: it does not say
        user: int,  # the user of that connection
        owners: SocketOwners,  # tells the user of a socket that sends
        # Returns the carrier of a user's packets, which calls back with the answers.
        packets: Callable[[int, Came], ProgramPackets],
    ) -> None:
        self._program, self._port = program, port
        self._user, self._owners, self._checked_s = user, owners, 0.0
        self._loop = asyncio.get_running_loop()
        self._peer: tuple[str, int] | None = None
        self._packets = packets(user, self._came)

    async def serve(self) -> None:
        """Serve until the program closes the connection. OSError: a socket cannot be made."""
        loop, program = self._loop, self._program
        own, peer = program.getsockname()[0], program.getpeername()[0]
        with socket.socket(program.family, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK) as near:
            near.bind((own, 0))
            loop.add_reader(near, self._readable, near, peer)
            self._near = near
            try:
                await loop.sock_sendall(
                    program, reply(SocksReply.SUCCEEDED, (_plain(own), near.getsockname()[1]))
                )
                while await receive(program, 1024):
                    pass
            finally:
                loop.remove_reader(near)
                await self._packets.end()

    def _readable(self, near: socket.socket, host: str) -> None:
        for _ in range(_AT_ONCE):
            try:
                data, sender = near.recvfrom(_LARGEST)
            except OSError:
                return
            if sender[0] != host or not self._is_program(sender[:2]):
                continue  # another program's
            packet = parse_packet(data)
            if packet is not None:
                self._packets.send(packet.host, packet.port, packet.data)

    def _is_program(self, sender: tuple[str, int]) -> bool:
        if self._peer is None:
            if self._port not in (0, sender[1]) or not self._is_users(sender):
                return False
            self._peer = sender
        elif sender == self._peer and self._loop.time() > self._checked_s + CHECKED_S:
            return self._is_users(sender)  # another program may have the port by now
        return sender == self._peer

    def _is_users(self, sender: tuple[str, int]) -> bool:
        self._checked_s = self._loop.time()
        owner = self._owners.find(socket.IPPROTO_UDP, sender, self._near.getsockname()[:2])
        return owner is not None and (
            UNKNOWN.user in (owner.user, self._user) or owner.user == self._user
        )

    def _came(self, host: str, port: int, data: bytes) -> None:
        if self._peer is not None:
            with suppress(OSError, ValueError):  # it does not read, or is gone; or no address
                self._near.sendto(SocksPacket(host, port, data).pack(), self._peer)


def _plain(host: str) -> str:
    return host.partition("%")[0]

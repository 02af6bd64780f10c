"""Tells a program that a place has refused its datagram: as a router would, by ICMP."""

import socket
import struct
from contextlib import suppress
from ipaddress import ip_address
from typing import Final

_ICMP_FILTER, _ICMPV6_FILTER, _SOL_RAW = 1, 1, 255
_NOTHING4, _NOTHING6 = b"\xff" * 4, b"\xff" * 32
_UNREACHABLE4, _UNREACHABLE6 = (3, 3), (1, 4)  # type and code: that port (RFC 792, RFC 4443)
_ICMP: Final = struct.Struct("!BBHI")
_IPV4: Final = struct.Struct("!BBHHHBBH4s4s")
_IPV6: Final = struct.Struct("!IHBB16s16s")
_UDP: Final = struct.Struct("!HHHH")


class Refusals:
    """Of this host alone. Without CAP_NET_RAW it says nothing, as if the datagram had been lost."""

    def __init__(self) -> None:
        self._sockets: dict[int, socket.socket] = {}
        for version, family, protocol in (
            (4, socket.AF_INET, socket.IPPROTO_ICMP),
            (6, socket.AF_INET6, socket.IPPROTO_ICMPV6),
        ):
            with suppress(OSError):
                one = socket.socket(family, socket.SOCK_RAW | socket.SOCK_NONBLOCK, protocol)
                self._sockets[version] = one
                if version == 4:
                    one.setsockopt(_SOL_RAW, _ICMP_FILTER, _NOTHING4)
                else:
                    one.setsockopt(socket.IPPROTO_ICMPV6, _ICMPV6_FILTER, _NOTHING6)

    def tell(self, program: tuple[str, int], place: tuple[str, int]) -> None:
        """What the program sent from its address and port to the place's has not been taken."""
        one = self._sockets.get(ip_address(place[0]).version)
        if one is not None:
            with suppress(OSError):
                one.sendto(unreachable(program, place), (program[0], 0))

    def close(self) -> None:
        for one in self._sockets.values():
            one.close()


def unreachable(sender: tuple[str, int], receiver: tuple[str, int]) -> bytes:
    """An ICMP message about a datagram's headers; the checksum of IPv6's is left to the kernel."""
    source, destination = ip_address(sender[0]).packed, ip_address(receiver[0]).packed
    udp = _UDP.pack(sender[1], receiver[1], _UDP.size, 0)
    if len(source) == 4:
        length = _IPV4.size + _UDP.size
        about = _IPV4.pack(0x45, 0, length, 0, 0, 64, socket.IPPROTO_UDP, 0, source, destination)
        message = _ICMP.pack(*_UNREACHABLE4, 0, 0) + about + udp
        return _ICMP.pack(*_UNREACHABLE4, _checksum(message), 0) + about + udp
    about = _IPV6.pack(6 << 28, _UDP.size, socket.IPPROTO_UDP, 64, source, destination)
    return _ICMP.pack(*_UNREACHABLE6, 0, 0) + about + udp


def _checksum(data: bytes) -> int:
    """RFC 1071."""
    total: int = sum(struct.unpack(f"!{len(data) // 2}H", data))
    total = (total & 0xFFFF) + (total >> 16)
    return ~(total + (total >> 16)) & 0xFFFF

"""Hands a program the answer to its question, as if the resolver that it asked had sent it.

The datagram goes over the loopback to the program's own socket. One that is bound to the interface of its
address (a stub resolver's, systemd-resolved's) takes it, too: what is sent to an own address counts as
received where that address is. systemd-resolved also asks the resolvers of all networks by itself.
"""

import socket
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Final

from cedos.errors import HostError, PrivilegeError
from cedos.model import Address, FlowKey

_IPV4: Final = struct.Struct("!BBHHHBBH4s4s")
_IPV6: Final = struct.Struct("!IHBB16s16s")
_UDP: Final = struct.Struct("!HHHH")
_HOPS: Final = 64
_ADDRESSES: Final = Path("/proc/thread-self/net/if_inet6")


def datagram(key: FlowKey, payload: bytes) -> bytes:
    """Return the IP packet from the flow's remote end to its local one."""
    source, destination = key.remote.packed, key.local.packed
    length = _UDP.size + len(payload)
    pseudo = source + destination + struct.pack("!II", length, socket.IPPROTO_UDP)
    bare = _UDP.pack(key.remote_port, key.local_port, length, 0) + payload
    # 0 would say that there is no checksum (RFC 768).
    sum_ = _checksum(pseudo + bare) or 0xFFFF
    udp = _UDP.pack(key.remote_port, key.local_port, length, sum_) + payload
    if key.local.version == 4:
        # The kernel fills in the header's checksum and number.
        head = _IPV4.pack(
            0x45, 0, _IPV4.size + length, 0, 0, _HOPS, socket.IPPROTO_UDP, 0, source, destination
        )
    else:
        head = _IPV6.pack(6 << 28, length, socket.IPPROTO_UDP, _HOPS, source, destination)
    return head + udp


def _checksum(data: bytes) -> int:
    data += b"\0" * (len(data) % 2)
    total = int(sum(struct.unpack(f"!{len(data) // 2}H", data)))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF


def links_of(address: Address) -> list[int]:
    """Return the interfaces of this thread's namespace with a link-local address, by index."""
    try:
        lines = _ADDRESSES.read_text(encoding="ascii").splitlines()
    except OSError:  # no IPv6 here
        return []
    return [
        int(index, 16)
        for octets, index, *_ in map(str.split, lines)
        if bytes.fromhex(octets) == address.packed
    ]


class AnswerDelivery:
    """Raw sockets of the calling thread's namespace. PrivilegeError, HostError: there are none."""

    def __init__(self) -> None:
        self._sockets: dict[int, socket.socket] = {}
        try:
            for version, family in ((4, socket.AF_INET), (6, socket.AF_INET6)):
                try:
                    self._sockets[version] = socket.socket(
                        family, socket.SOCK_RAW | socket.SOCK_NONBLOCK, socket.IPPROTO_RAW
                    )
                except OSError as error:
                    if version == 4 or isinstance(error, PermissionError):
                        raise
        except PermissionError as error:
            self.close()
            raise PrivilegeError("answering look-ups needs CAP_NET_RAW") from error
        except OSError as error:
            self.close()
            raise HostError(f"this kernel has no raw sockets: {error.strerror}") from error

    def __call__(self, key: FlowKey, payload: bytes) -> None:
        """Hand an answer to the program. Errors: OSError."""
        packet = datagram(key, payload)
        sender = self._sockets[key.local.version]
        if key.local.version == 6 and key.local.is_link_local:
            # Several may have it (VLANs, say); the program's socket is on one of them.
            for index in links_of(key.local):
                sender.sendto(packet, (str(key.local), 0, 0, index))
        else:
            sender.sendto(packet, (str(key.local), 0))

    def close(self) -> None:
        for each in self._sockets.values():
            each.close()


Deliver = Callable[[FlowKey, bytes], None]

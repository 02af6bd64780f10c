"""The sharing protocol's sockets on one link: multicast and unicast, IPv4 and IPv6.

Invites go to a group of each IP version, all else from socket to socket (docs/sharing-protocol.md).
"""

import asyncio
import socket
import struct
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from cedos.apps.sharing.protocol.commands import LinkAddress
from cedos.apps.sharing.protocol.messages import GROUP_IPV4, GROUP_IPV6, PORT
from cedos.errors import HostError
from cedos.kernel.interface_socket import bind_to_interface

_MOST_BYTES: Final = 2_048
_AT_ONCE: Final = 32
_MEMBERSHIP4: Final = struct.Struct("=4s4si")
_MEMBERSHIP6: Final = struct.Struct("=16si")


class LinkSocket:
    """Sockets bound to an interface, within the event loop.

    Args:
        interface: of the shared link.
        received: takes each datagram and its sender.
        listens: take Invites: a helper's. A requestor's sockets have a port of their own.

    Raises:
        HostError: no socket can be opened there.
    """

    def __init__(
        self, interface: str, received: Callable[[bytes, LinkAddress], None], *, listens: bool
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._received = received
        self._index = _index(interface)
        self._sockets: dict[int, socket.socket] = {}
        why = ""
        for version, family in ((4, socket.AF_INET), (6, socket.AF_INET6)):
            try:
                self._sockets[version] = self._open(interface, version, family, listens)
            except OSError as error:  # the host, or the interface, lacks this version
                why = error.strerror or str(error)
        if not self._sockets:
            raise HostError(f"nothing can be sent to neighbours over {interface}: {why}")
        for version, opened in self._sockets.items():
            self._loop.add_reader(opened.fileno(), self._readable, version, opened)

    def send(self, data: bytes, to: LinkAddress | None) -> None:
        """Send a datagram; None: to the groups. What the kernel refuses is lost, as on any link."""
        if to is None:
            targets = [(4, GROUP_IPV4, PORT), (6, GROUP_IPV6, PORT)]
        else:
            targets = [(6 if ":" in to[0] else 4, to[0], to[1])]
        for version, address, port in targets:
            if (opened := self._sockets.get(version)) is not None:
                where = (address, port) if version == 4 else (address, port, 0, self._index)
                with suppress(OSError):
                    opened.sendto(data, where)

    def close(self) -> None:
        for opened in self._sockets.values():
            self._loop.remove_reader(opened.fileno())
            opened.close()
        self._sockets.clear()

    def _open(
        self, interface: str, version: int, family: socket.AddressFamily, listens: bool
    ) -> socket.socket:
        opened = socket.socket(
            family, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC
        )
        try:
            bind_to_interface(opened, interface)
            if version == 4:
                member = _MEMBERSHIP4.pack(bytes(4), bytes(4), self._index)
                opened.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, member)
                opened.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_TTL, 1)
                opened.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_LOOP, 0)
            else:
                opened.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
                opened.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_MULTICAST_IF, self._index)
                opened.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_MULTICAST_HOPS, 1)
                opened.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_MULTICAST_LOOP, 0)
            opened.bind(("", PORT if listens else 0))
            if listens:
                _join(opened, version, self._index)
        except OSError:
            opened.close()
            raise
        return opened

    def _readable(self, version: int, opened: socket.socket) -> None:
        for _ in range(_AT_ONCE):  # the rest has its turn after the loop's other work
            try:
                data, sender = opened.recvfrom(_MOST_BYTES)
            except OSError:
                return
            address = str(sender[0]).partition("%")[0]
            self._received(data, (address, int(sender[1]), self._index))


def _join(opened: socket.socket, version: int, index: int) -> None:
    if version == 4:
        member = _MEMBERSHIP4.pack(socket.inet_aton(GROUP_IPV4), bytes(4), index)
        opened.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, member)
    else:
        member = _MEMBERSHIP6.pack(socket.inet_pton(socket.AF_INET6, GROUP_IPV6), index)
        opened.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_JOIN_GROUP, member)


def _index(interface: str) -> int:
    try:
        return socket.if_nametoindex(interface)
    except OSError:
        raise HostError(f"there is no interface {interface}") from None

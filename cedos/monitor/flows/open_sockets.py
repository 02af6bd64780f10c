"""Which flows have a socket now: connection tracking remembers them for minutes after their ends."""

import socket
from dataclasses import dataclass

from cedos.kernel import sock_diag
from cedos.kernel.netlink import NETLINK_SOCK_DIAG, AsyncRequester
from cedos.model import FlowKey


@dataclass(frozen=True, slots=True)
class OpenSockets:
    """The sockets of this host at one instant; None: the kernel does not tell.

    A UDP socket without a peer, as servers have it, carries all flows of its port.
    """

    tcp: frozenset[FlowKey] | None
    udp_ports: frozenset[int] | None

    def carry(self, key: FlowKey) -> bool:
        """Whether a flow has a socket, or may have one."""
        if key.protocol == "udp":
            return self.udp_ports is None or key.local_port in self.udp_ports
        return self.tcp is None or key in self.tcp


async def open_sockets() -> OpenSockets:
    """The sockets now, of the namespace that the calling thread is in."""
    diag = AsyncRequester(NETLINK_SOCK_DIAG)
    try:
        return OpenSockets(await _tcp(diag), await _udp_ports(diag))
    finally:
        diag.close()


async def _tcp(diag: AsyncRequester) -> frozenset[FlowKey] | None:
    try:
        answers = [
            answer
            for family in (socket.AF_INET, socket.AF_INET6)
            for answer in await diag.dump(
                sock_diag.SOCK_DIAG_BY_FAMILY, sock_diag.flows_request(family)
            )
        ]
    except (OSError, TimeoutError):
        return None
    return frozenset(facts.key for answer in answers if (facts := sock_diag.parse(answer)))


async def _udp_ports(diag: AsyncRequester) -> frozenset[int] | None:
    try:
        answers = [
            answer
            for family in (socket.AF_INET, socket.AF_INET6)
            for answer in await diag.dump(
                sock_diag.SOCK_DIAG_BY_FAMILY, sock_diag.udp_sockets_request(family)
            )
        ]
    except (OSError, TimeoutError):  # without the module udp_diag
        return None
    return frozenset(filter(None, map(sock_diag.local_port, answers)))

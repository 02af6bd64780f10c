"""Which flows have a socket now: connection tracking remembers them for minutes after their ends."""

import socket
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from cedos.kernel import sock_diag
from cedos.kernel.netlink import NETLINK_SOCK_DIAG, AsyncRequester, NetlinkMessage
from cedos.model import FlowKey

_Known = TypeVar("_Known")


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
        return OpenSockets(
            await _all(diag, sock_diag.flows_request, _flow),
            await _all(diag, sock_diag.udp_sockets_request, sock_diag.local_port),
        )
    finally:
        diag.close()


async def _all(
    diag: AsyncRequester,
    request: Callable[[int], bytes],
    parse: Callable[[NetlinkMessage], _Known | None],
) -> frozenset[_Known] | None:
    """What is known of each socket; None: the kernel does not tell, as without a module udp_diag."""
    try:
        answers = [
            answer
            for family in (socket.AF_INET, socket.AF_INET6)
            for answer in await diag.dump(sock_diag.SOCK_DIAG_BY_FAMILY, request(family))
        ]
    except (OSError, TimeoutError):
        return None
    return frozenset(known for answer in answers if (known := parse(answer)))


def _flow(answer: NetlinkMessage) -> FlowKey | None:
    facts = sock_diag.parse(answer)
    return None if facts is None else facts.key

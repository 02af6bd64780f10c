"""Makes connection tracking forget one flow (linux/netfilter/nfnetlink_conntrack.h).

A flow's address is translated, or not, for as long as it is tracked: what was decided for its first
packet has to go before the next one can be decided on.
"""

import socket
import struct
from typing import Final

from cedos.kernel.netlink import attribute
from cedos.model import FlowKey
from cedos.steer.kernel.rescue_netlink import NESTED, Wire, netfilter

_DELETE: Final = 1 << 8 | 2
_ORIGINAL, _ADDRESSES, _PORTS = 1, 1, 2
_SOURCE4, _DESTINATION4, _SOURCE6, _DESTINATION6 = 1, 2, 3, 4
_PROTOCOL, _SOURCE_PORT, _DESTINATION_PORT = 1, 2, 3


def forget(wire: Wire, key: FlowKey) -> bool:
    """Deletes the entry of a flow that this host began; whether there was one. Errors: OSError."""
    version = key.local.version
    source, destination = (_SOURCE4, _DESTINATION4) if version == 4 else (_SOURCE6, _DESTINATION6)
    addresses = attribute(source, key.local.packed) + attribute(destination, key.remote.packed)
    ports = (
        attribute(_PROTOCOL, bytes([socket.IPPROTO_TCP]))
        + attribute(_SOURCE_PORT, struct.pack("!H", key.local_port))
        + attribute(_DESTINATION_PORT, struct.pack("!H", key.remote_port))
    )
    tuple_ = attribute(_ADDRESSES | NESTED, addresses) + attribute(_PORTS | NESTED, ports)
    try:
        wire.ask(_DELETE, netfilter(version) + attribute(_ORIGINAL | NESTED, tuple_))
    except FileNotFoundError:
        return False
    return True

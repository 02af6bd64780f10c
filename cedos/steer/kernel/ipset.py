"""The sets of rescued flows, one per IP version, that the packet filter asks (ipset's netlink).

An element is a flow's local address, its local port and the remote address: one message, and the
filter's rules stay as they are. (linux/netfilter/ipset/ip_set.h)
"""

import errno
import socket
import struct
from typing import Final

from cedos.kernel.netlink import NLM_F_ACK, attribute
from cedos.model import Address, FlowKey
from cedos.steer.kernel.rescue_netlink import NESTED, NETWORK_ORDER, NLM_F_CREATE, Wire, netfilter

NAMES: Final = {4: "cedos-rescued-4", 6: "cedos-rescued-6"}

_SUBSYSTEM: Final = 6 << 8
_CREATE, _DESTROY, _ADD, _DELETE, _HEADER, _TYPES = 2, 3, 9, 10, 12, 13
_PROTOCOL, _SETNAME, _TYPENAME, _REVISION, _FAMILY, _DATA = 1, 2, 3, 4, 5, 7
_IP, _PORT, _PROTO, _IP2 = 1, 4, 7, 20
_IPV4, _IPV6 = 1, 2
_TYPE: Final = b"hash:ip,port,ip\0"
# Understood by every kernel since 3.19.
_TYPE_REVISION: Final = 5
_SPOKEN: Final = 6


def create(wire: Wire, version: int) -> None:
    """Makes the set of an IP version; one that is there stays as it is. Errors: OSError."""
    family = socket.AF_INET if version == 4 else socket.AF_INET6
    payload = (
        _named(version)
        + attribute(_TYPENAME, _TYPE)
        + attribute(_REVISION, bytes([_TYPE_REVISION]))
        + attribute(_FAMILY, bytes([family]))
        + attribute(_DATA | NESTED, b"")
    )
    wire.ask(_SUBSYSTEM | _CREATE, payload, NLM_F_ACK | NLM_F_CREATE)


def destroy(wire: Wire, version: int) -> bool:
    """Removes a set with all that is in it; whether it was there. Errors: OSError (in use)."""
    try:
        wire.ask(_SUBSYSTEM | _DESTROY, _named(version))
    except FileNotFoundError:
        return False
    return True


def exists(wire: Wire, version: int) -> bool:
    """Whether a set is there; False also where the kernel has no sets."""
    try:
        wire.ask(_SUBSYSTEM | _HEADER, _named(version))
    except OSError:
        return False
    return True


def supported(wire: Wire) -> bool:
    """Whether the kernel has such sets. Errors: OSError (not allowed to ask)."""
    payload = (
        netfilter(4)
        + attribute(_PROTOCOL, bytes([_SPOKEN]))
        + attribute(_TYPENAME, _TYPE)
        + attribute(_FAMILY, bytes([socket.AF_INET]))
    )
    try:
        wire.ask(_SUBSYSTEM | _TYPES, payload)
    except OSError as error:
        if error.errno in (errno.EPERM, errno.EACCES):
            raise
        return False
    return True


def add(wire: Wire, key: FlowKey) -> None:
    """Puts a flow in; one that is in is fine. Errors: OSError."""
    wire.ask(_SUBSYSTEM | _ADD, _element(key))


def delete(wire: Wire, key: FlowKey) -> None:
    """Takes a flow out; one that is not in, or a set that is gone, is fine. Errors: OSError."""
    try:
        wire.ask(_SUBSYSTEM | _DELETE, _element(key))
    except OSError as error:
        if error.errno != errno.ENOENT:
            raise


def _named(version: int) -> bytes:
    return (
        netfilter(version)
        + attribute(_PROTOCOL, bytes([_SPOKEN]))
        + attribute(_SETNAME, NAMES[version].encode() + b"\0")
    )


def _element(key: FlowKey) -> bytes:
    inside = (
        attribute(_IP | NESTED, _address(key.local))
        + attribute(_PORT | NETWORK_ORDER, struct.pack("!H", key.local_port))
        + attribute(_PROTO, bytes([socket.IPPROTO_TCP]))
        + attribute(_IP2 | NESTED, _address(key.remote))
    )
    return _named(key.local.version) + attribute(_DATA | NESTED, inside)


def _address(address: Address) -> bytes:
    kind = _IPV4 if address.version == 4 else _IPV6
    return attribute(kind | NETWORK_ORDER, address.packed)

"""The sets of rescued flows, one per IP version, that the packet filter asks (ipset's netlink).

An element is a flow's local address, its local port and the remote address: one message, and the
filter's rules stay as they are. (linux/netfilter/ipset/ip_set.h)
"""

import errno
import socket
import struct
from typing import Final

from cedos.kernel.conntrack import netfilter_head
from cedos.kernel.netlink import (
    NLA_F_NET_BYTEORDER,
    NLM_F_ACK,
    NLM_F_CREATE,
    Requester,
    attribute,
    build_nested,
)
from cedos.kernel.rtnetlink import FAMILIES
from cedos.model import Address, FlowKey

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


def create(requester: Requester, version: int) -> None:
    """Make the set of an IP version; one that is there stays as it is. Errors: OSError."""
    payload = (
        _set_name(version)
        + attribute(_TYPENAME, _TYPE)
        + attribute(_REVISION, bytes([_TYPE_REVISION]))
        + attribute(_FAMILY, bytes([FAMILIES[version]]))
        + build_nested(_DATA)
    )
    requester.ask(_SUBSYSTEM | _CREATE, payload, NLM_F_ACK | NLM_F_CREATE)


def destroy(requester: Requester, version: int) -> bool:
    """Remove a set with all that is in it; return whether it was there. Errors: OSError (in use)."""
    try:
        requester.ask(_SUBSYSTEM | _DESTROY, _set_name(version))
    except FileNotFoundError:
        return False
    return True


def exists(requester: Requester, version: int) -> bool:
    """Return whether a set is there; False also where the kernel has no sets."""
    try:
        requester.ask(_SUBSYSTEM | _HEADER, _set_name(version))
    except OSError:
        return False
    return True


def is_supported(requester: Requester) -> bool:
    """Return whether the kernel has such sets. Errors: OSError (not allowed to ask)."""
    payload = (
        netfilter_head(4)
        + attribute(_PROTOCOL, bytes([_SPOKEN]))
        + attribute(_TYPENAME, _TYPE)
        + attribute(_FAMILY, bytes([socket.AF_INET]))
    )
    try:
        requester.ask(_SUBSYSTEM | _TYPES, payload)
    except OSError as error:
        if error.errno in (errno.EPERM, errno.EACCES):
            raise
        return False
    return True


def add(requester: Requester, key: FlowKey) -> None:
    """Put a flow in; one that is in is fine. Errors: OSError."""
    requester.ask(_SUBSYSTEM | _ADD, _element(key))


def delete(requester: Requester, key: FlowKey) -> None:
    """Take a flow out; one that is not in, or a set that is gone, is fine. Errors: OSError."""
    try:
        requester.ask(_SUBSYSTEM | _DELETE, _element(key))
    except OSError as error:
        if error.errno != errno.ENOENT:
            raise


def _set_name(version: int) -> bytes:
    return (
        netfilter_head(version)
        + attribute(_PROTOCOL, bytes([_SPOKEN]))
        + attribute(_SETNAME, NAMES[version].encode() + b"\0")
    )


def _element(key: FlowKey) -> bytes:
    inside = (
        build_nested(_IP, _address(key.local))
        + attribute(_PORT | NLA_F_NET_BYTEORDER, struct.pack("!H", key.local_port))
        + attribute(_PROTO, bytes([socket.IPPROTO_TCP]))
        + build_nested(_IP2, _address(key.remote))
    )
    return _set_name(key.local.version) + build_nested(_DATA, inside)


def _address(address: Address) -> bytes:
    kind = _IPV4 if address.version == 4 else _IPV6
    return attribute(kind | NLA_F_NET_BYTEORDER, address.packed)

"""One socket, by its 4-tuple: whether it still waits for its first answer (linux/inet_diag.h)."""

import socket
import struct
from typing import Final

from cedos.kernel.netlink import Message, attributes, unsigned
from cedos.model import Address, FlowKey
from cedos.steer.kernel.rescue import Connecting
from cedos.steer.kernel.rescue_netlink import Wire

NETLINK_SOCK_DIAG: Final = 4
_BY_FAMILY: Final = 20
_SYN_SENT: Final = 2
_WANT_INFO: Final = 1 << 1
_ANY_STATE, _ANY_COOKIE = 0xFFF, b"\xff" * 8
_REQUEST: Final = struct.Struct("=BBBxI")  # family, protocol, extensions, states
_IDENTITY: Final = struct.Struct("!HH16s16s4x8s")  # ports, addresses, interface 0, cookie
_HEAD: Final = struct.Struct("=BBBB48xI")  # family, state, timer, resent, identity, milliseconds
_ATTRIBUTES_AT: Final = 72
_UPPER, _MPTCP, _FLAGS = 19, 3, 7
_JOIN: Final = 1 << 3  # MPTCP_SUBFLOW_FLAG_JOIN_LOC


def connecting(wire: Wire, key: FlowKey) -> Connecting | None:
    """See `RescueKernel.connecting`. Errors: OSError."""
    family = socket.AF_INET if key.local.version == 4 else socket.AF_INET6
    identity = _IDENTITY.pack(
        key.local_port, key.remote_port, _padded(key.local), _padded(key.remote), _ANY_COOKIE
    )
    request = _REQUEST.pack(family, socket.IPPROTO_TCP, _WANT_INFO, _ANY_STATE) + identity
    try:
        # Without ACK: the answer itself ends it.
        (answer,) = wire.ask(_BY_FAMILY, request, 0)
    except FileNotFoundError:
        return None
    return parse(answer)


def parse(answer: Message) -> Connecting | None:
    """The socket as the kernel describes it; None where it waits no longer."""
    if len(answer.payload) < _ATTRIBUTES_AT:
        return None
    _, state, _, resent, milliseconds = _HEAD.unpack_from(answer.payload)
    if state != _SYN_SENT:
        return None
    upper = attributes(attributes(answer.payload, _ATTRIBUTES_AT).get(_UPPER, b""))
    flags = unsigned(attributes(upper.get(_MPTCP, b"")).get(_FLAGS)) or 0
    return Connecting(milliseconds / 1e3, resent, bool(flags & _JOIN))


def _padded(address: Address) -> bytes:
    return address.packed.ljust(16, b"\0")

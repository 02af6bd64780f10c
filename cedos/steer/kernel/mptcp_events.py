"""What the kernel's path manager tells of MPTCP connections, decoded (linux/mptcp_pm.h, MPTCP_ATTR_*).

Own decoding: every connection makes four events, and pyroute2 takes ten times as long for each
(figures: `cedos.kernel.netlink`).
"""

import struct
from collections.abc import Iterator, Mapping
from typing import Final

from cedos.kernel.addresses import address
from cedos.kernel.mptcp_netlink import EventKind, PathEvent
from cedos.kernel.netlink import attributes, messages, unsigned
from cedos.model import FlowKey

_GENERIC_HEADER_BYTES: Final = 4
_TOKEN, _BACKUP, _ERROR, _FLAGS, _SERVER_SIDE = 1, 11, 12, 13, 18
_LOCAL_4, _LOCAL_6, _REMOTE_4, _REMOTE_6, _LOCAL_PORT, _REMOTE_PORT = 5, 6, 7, 8, 9, 10
_DENY_JOIN, _AT_THE_SERVER = 1, 2
_KINDS: Final = {int(kind): kind for kind in EventKind}
_PORT: Final = struct.Struct("!H")


def path_events(data: bytes) -> Iterator[PathEvent]:
    """The events of one datagram; those that we do not use, and what is truncated, are left out."""
    for message in messages(data):
        kind = _KINDS.get(message.payload[0]) if message.payload else None
        if kind is None:
            continue
        found = attributes(message.payload, _GENERIC_HEADER_BYTES)
        token = unsigned(found.get(_TOKEN))
        if token is not None:
            flags = unsigned(found.get(_FLAGS)) or 0
            yield PathEvent(
                kind,
                token,
                _key(found),
                bool(unsigned(found.get(_BACKUP))),
                unsigned(found.get(_ERROR)) or 0,
                bool(unsigned(found.get(_SERVER_SIDE))) or bool(flags & _AT_THE_SERVER),
                not flags & _DENY_JOIN,
            )


def _key(found: Mapping[int, bytes]) -> FlowKey | None:
    local = found.get(_LOCAL_4) or found.get(_LOCAL_6, b"")
    remote = found.get(_REMOTE_4) or found.get(_REMOTE_6, b"")
    if len(local) not in {4, 16} or len(remote) not in {4, 16}:
        return None
    # Ports are in network order here, in host order in commands.
    return FlowKey(
        address(local),
        _port(found.get(_LOCAL_PORT)),
        address(remote),
        _port(found.get(_REMOTE_PORT)),
    )


def _port(octets: bytes | None) -> int:
    return int(_PORT.unpack(octets)[0]) if octets and len(octets) == _PORT.size else 0

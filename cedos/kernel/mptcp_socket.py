"""MPTCP sockets, and what the kernel says of one (linux/mptcp.h, `struct mptcp_info`)."""

import socket
import struct
from typing import Final, NamedTuple

IPPROTO_MPTCP: Final = 262
_SOL_MPTCP, _MPTCP_INFO = 284, 1
_INFO: Final = struct.Struct("=B7xI")  # further subflows; flags
_FLAG_FALLBACK: Final = 0x1


class MptcpInfo(NamedTuple):
    """The subflows of a connection, and whether it fell back to plain TCP."""

    subflows: int
    fallback: bool


def mptcp_info(connection: socket.socket) -> MptcpInfo | None:
    """What the kernel says of a connection; None where it says too little.

    Raises:
        OSError: it is plain TCP, or (on newer kernels) fell back to it.
    """
    raw = connection.getsockopt(_SOL_MPTCP, _MPTCP_INFO, _INFO.size)
    if len(raw) < _INFO.size:
        return None
    further, flags = _INFO.unpack(raw)
    return MptcpInfo(further + 1, bool(flags & _FLAG_FALLBACK))

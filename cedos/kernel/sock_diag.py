"""TCP sockets as the kernel describes them (linux/inet_diag.h, linux/mptcp.h).

One structure, read for four purposes: the facts of flows (`parse`), which sockets belong to which
MPTCP connection (`parse_tcp_socket`), whether one still waits for its first answer
(`parse_connecting`), and which socket of this host sends from an address (`owner_of`).
"""

import socket
import struct
from collections import Counter
from dataclasses import dataclass
from typing import Final

from cedos.kernel.netlink import Keeps, NetlinkMessage, attributes, read_unsigned
from cedos.kernel.tcp_info import TCP_INFO_COUNTED_BYTES, rtt_min_s, tcp_info_fields, unread
from cedos.model import Address, FlowKey, FlowSample, address

# The kernel goes through its sockets of all namespaces for a dump, which takes milliseconds. This older
# request (TCPDIAG_GETSOCK) has it do so once for both IP versions.
TCP_SOCKETS: Final = 18
SOCK_DIAG_BY_FAMILY: Final = 20
SOCK_DESTROY: Final = 21
# SKNLGRP_INET_TCP_DESTROY and SKNLGRP_INET6_TCP_DESTROY
DESTROY_GROUPS: Final = (1, 3)

ESTABLISHED, SYN_SENT = 1, 2
_LISTEN: Final = 10
# The states in which a TCP socket counts as a flow: all but TIME_WAIT, CLOSE, LISTEN, SYN_RECV.
_FLOW_STATES: Final = sum(1 << state for state in (1, 2, 4, 5, 8, 9, 11))
_CONNECTED_OR_LISTENING: Final = sum(1 << state for state in (1, 4, 5, 8, 9, 10, 11))
_ANY_STATE: Final = 0xFFF

_REQUEST: Final = struct.Struct("=BBBxI")  # family, protocol, extensions, states; then an identity
_DUMP: Final = struct.Struct("=xxxB48xI4x")  # any family, extensions, any identity, states
_IDENTITY: Final = struct.Struct("!HH16s16s4s8s")  # ports, addresses, interface, cookie
# Family, state, timer, retransmits, ports, addresses; interface, cookie; milliseconds to the timer.
_SOCKET: Final = struct.Struct("!BBBBHH16s16s")
_EXPIRES: Final = struct.Struct("=52xI")
_IDENTITY_BYTES: Final = slice(4, 52)
_SOCKET_BYTES: Final = 72
_OWNER: Final = struct.Struct("=44xQ12xII")  # the cookie; the user, the inode
_NO_COOKIE: Final = b"\xff" * 8
_NO_INTERFACE, _LOOPBACK_INTERFACE = struct.pack("=I", 0), struct.pack("=I", 1)
_WANT_TCP_INFO: Final = 1 << 1
# The most sockets that are kept of a dump, of one user and of all. A user can open 36,000 in a second.
MOST_OF_USER, MOST = 1_024, 4_096
_LOOPBACK: Final = (b"\x7f", bytes(15) + b"\1", bytes(10) + b"\xff\xff\x7f")
# INET_DIAG_*, INET_ULP_INFO_*, MPTCP_SUBFLOW_ATTR_*, MPTCP_SUBFLOW_FLAG_*
_INFO, _MARK, _ULP_INFO = 2, 15, 19
_ULP_MPTCP: Final = 3
_TOKEN_LOC, _FLAGS, _ID_LOC = 2, 8, 10
_FLAG_JOIN_LOC, _FLAG_BACKUP_LOC, _FLAG_CONNECTED = 1 << 3, 1 << 5, 1 << 7


@dataclass(frozen=True, slots=True)
class TcpSocket:
    """A TCP socket; `token` is that of its MPTCP connection, None for plain TCP.

    `backup` says that we marked it so, `local_id` is 0 for the connection's first address.
    """

    key: FlowKey
    listening: bool
    token: int | None = None
    backup: bool = False
    local_id: int = 0


@dataclass(frozen=True, slots=True)
class ConnectingSocket:
    """A TCP socket that still waits for the first answer (SYN_SENT).

    `resend_in_s` is how long until the kernel sends the first packet again, `resent` how often it
    has. `join`: it is a further subflow of an MPTCP connection, which belongs to its network. `user` is
    its owner's number.
    """

    resend_in_s: float
    resent: int
    join: bool
    user: int


def flows_request() -> bytes:
    """Return the request (a dump of `TCP_SOCKETS`) for all TCP flows."""
    return _DUMP.pack(_WANT_TCP_INFO, _FLOW_STATES)


def tcp_sockets_request() -> bytes:
    """Return the request (a dump of `TCP_SOCKETS`) for TCP sockets that are connected or listen."""
    return _DUMP.pack(_WANT_TCP_INFO, _CONNECTED_OR_LISTENING)


def some_of_each_user() -> Keeps:
    """Return which TCP sockets of a dump are kept: so many of each user, and none on loopback."""
    held, kept = Counter[int](), 0

    def keeps(answer: NetlinkMessage) -> bool:
        nonlocal kept
        if (owner := owner_of(answer)) is None or kept >= MOST:
            return False
        family, *_, local, _ = _SOCKET.unpack_from(answer.payload)
        if local.startswith(_LOOPBACK[:1] if family == socket.AF_INET else _LOOPBACK[1:]):
            return False
        _, user = owner
        if held[user] >= MOST_OF_USER:
            return False
        held[user] += 1
        kept += 1
        return True

    return keeps


def sockets_request(family: int, protocol: int) -> bytes:
    """Return the request (a dump) for all UDP sockets of a family, or the TCP ones in SYN_SENT."""
    states = _ANY_STATE if protocol == socket.IPPROTO_UDP else 1 << SYN_SENT
    return _REQUEST.pack(family, protocol, 0, states) + bytes(48)


def flow_request(key: FlowKey) -> bytes:
    return _build_request(key, 0, _FLOW_STATES)


def connecting_request(key: FlowKey) -> bytes:
    """Return the request for one TCP socket, in any state."""
    return _build_request(key, _WANT_TCP_INFO, _ANY_STATE)


def destroy_request(answer: NetlinkMessage, protocol: int = socket.IPPROTO_TCP) -> bytes:
    """Return the request that closes the very socket of an answer (CAP_NET_ADMIN)."""
    # The kernel finds a socket that is bound to an interface by that one only.
    family, identity = answer.payload[0], answer.payload[_IDENTITY_BYTES]
    return _REQUEST.pack(family, protocol, 0, _ANY_STATE) + identity


def sender_request(protocol: int, key: FlowKey, interface: int = 0) -> bytes:
    """Return the request for the socket (TCP or UDP) that has the local end of `key`.

    `interface`: of its packets; without it the kernel finds none that is bound to one.
    """
    family = socket.AF_INET if key.local.version == 4 else socket.AF_INET6
    local, remote = (each.packed.ljust(16, b"\0") for each in (key.local, key.remote))
    ends = key.local_port, key.remote_port, local, remote
    # For UDP, the kernel looks for the socket that would receive a packet from `remote`.
    if protocol == socket.IPPROTO_UDP:
        ends = key.remote_port, key.local_port, remote, local
    # Packets from there come over the loopback, to which the socket may be bound.
    bound = _LOOPBACK_INTERFACE if key.remote.is_loopback else struct.pack("=I", interface)
    identity = _IDENTITY.pack(*ends, bound, _NO_COOKIE)
    return _REQUEST.pack(family, protocol, 0, _ANY_STATE) + identity


def owner_of(message: NetlinkMessage) -> tuple[int, int] | None:
    """Return the cookie of the socket in an answer, as BPF and SO_COOKIE have it, and its user."""
    if not _is_socket(message):
        return None
    cookie, user, _ = _OWNER.unpack_from(message.payload)
    return cookie, user


def is_orphan(message: NetlinkMessage) -> bool:
    """Return whether its program has closed the socket in an answer, which the kernel still serves."""
    return _is_socket(message) and not _OWNER.unpack_from(message.payload)[2]


def _build_request(key: FlowKey, extensions: int, states: int) -> bytes:
    family = socket.AF_INET if key.local.version == 4 else socket.AF_INET6
    local, remote = (each.packed.ljust(16, b"\0") for each in (key.local, key.remote))
    ends = key.local_port, key.remote_port, local, remote
    identity = _IDENTITY.pack(*ends, _NO_INTERFACE, _NO_COOKIE)
    return _REQUEST.pack(family, socket.IPPROTO_TCP, extensions, states) + identity


def remote_end(message: NetlinkMessage) -> tuple[Address, int] | None:
    """Return the address and port to which the socket in an answer is connected; None: to none."""
    if not _is_socket(message):
        return None
    family, _, _, _, _, port, _, remote = _SOCKET.unpack_from(message.payload)
    return (address(remote[: 4 if family == socket.AF_INET else 16]), port) if port else None


def local_port(message: NetlinkMessage) -> int | None:
    """Return the local port of the socket in an answer; None for anything else."""
    return int(_SOCKET.unpack_from(message.payload)[4]) if _is_socket(message) else None


def mark_of(message: NetlinkMessage) -> int | None:
    """Return the mark (SO_MARK) of the socket in an answer.

    The kernel shows it with CAP_NET_ADMIN only.
    """
    if not _is_socket(message):
        return None
    return read_unsigned(attributes(message.payload, _SOCKET_BYTES).get(_MARK))


def parse(message: NetlinkMessage, at_s: float) -> FlowSample | None:
    """Return the socket of a dump's answer or a destroy notification, as it was at an instant.

    None for anything else, and for sockets that never were a flow (listening, unconnected).
    """
    if not _is_socket(message):
        return None
    data = message.payload
    family, state, _, _, local_port, remote_port, local, remote = _SOCKET.unpack_from(data)
    # A listening or unconnected socket has no remote port.
    if not remote_port or not local_port or family not in (socket.AF_INET, socket.AF_INET6):
        return None
    # An address has 16 bytes, of which IPv4 uses the first four.
    octets = 4 if family == socket.AF_INET else 16
    found = attributes(data, _SOCKET_BYTES)
    raw = found.get(_INFO, b"")
    info = tcp_info_fields(raw)
    return FlowSample(
        FlowKey(address(local[:octets]), local_port, address(remote[:octets]), remote_port),
        at_s,
        state,
        read_unsigned(_subflow(found).get(_TOKEN_LOC)) if _ULP_INFO in found else None,
        # Zero stands for no sample yet.
        info.rtt / 1e6 or None,
        rtt_min_s(info),
        info.delivery_rate * 8.0 or None,
        info.bytes_received,
        info.bytes_acked,
        info.total_retrans,
        info.last_data_recv / 1e3,
        info.unacked,
        info.last_ack_recv / 1e3,
        info.rcv_rtt / 1e6 or None,
        info.data_segs_out,
        unread(raw),
        info.rcv_ssthresh,
        len(raw) >= TCP_INFO_COUNTED_BYTES,
    )


def parse_tcp_socket(message: NetlinkMessage) -> TcpSocket | None:
    """Return one socket of the dump of `tcp_sockets_request`; None for anything else."""
    if not _is_socket(message):
        return None
    data = message.payload
    family, state, _, _, local_port, remote_port, local, remote = _SOCKET.unpack_from(data)
    if family not in (socket.AF_INET, socket.AF_INET6):
        return None
    octets = 4 if family == socket.AF_INET else 16
    key = FlowKey(address(local[:octets]), local_port, address(remote[:octets]), remote_port)
    if state == _LISTEN:
        return TcpSocket(key, True)
    subflow = _subflow(attributes(data, _SOCKET_BYTES))
    flags = read_unsigned(subflow.get(_FLAGS)) or 0
    return TcpSocket(
        key,
        False,
        # Without CONNECTED the subflow's handshake is not done, and the token means nothing yet.
        read_unsigned(subflow.get(_TOKEN_LOC)) if flags & _FLAG_CONNECTED else None,
        bool(flags & _FLAG_BACKUP_LOC),
        read_unsigned(subflow.get(_ID_LOC)) or 0,
    )


def parse_connecting(message: NetlinkMessage) -> ConnectingSocket | None:
    """Return the socket of an answer to `connecting_request`; None if it waits no longer."""
    data = message.payload
    if not _is_socket(message) or data[1] != SYN_SENT:
        return None
    flags = read_unsigned(_subflow(attributes(data, _SOCKET_BYTES)).get(_FLAGS)) or 0
    _, user, _ = _OWNER.unpack_from(data)
    return ConnectingSocket(
        _EXPIRES.unpack_from(data)[0] / 1e3, data[3], bool(flags & _FLAG_JOIN_LOC), user
    )


def _is_socket(message: NetlinkMessage) -> bool:
    kinds = (TCP_SOCKETS, SOCK_DIAG_BY_FAMILY)
    return message.type in kinds and len(message.payload) >= _SOCKET_BYTES


def _subflow(found: dict[int, bytes]) -> dict[int, bytes]:
    """Return MPTCP's attributes of a socket; empty for plain TCP."""
    upper = found.get(_ULP_INFO)
    return attributes(attributes(upper).get(_ULP_MPTCP, b"")) if upper else {}

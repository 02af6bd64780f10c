"""MPTCP: the path manager's commands and events.

The structures are those of linux/mptcp_pm.h (generic netlink). Ports are in commands in host order and
in events in network order.
"""

import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

from cedos.kernel import generic_netlink
from cedos.kernel.netlink import attribute, attributes, build_nested, messages, read_unsigned
from cedos.kernel.rtnetlink import FAMILIES
from cedos.model import Address, FlowKey, address

IPPROTO_MPTCP: Final = 262
FAMILY_NAME: Final = "mptcp_pm"
EVENT_GROUP: Final = "mptcp_pm_events"

# MPTCP_PM_CMD_*
_SET_FLAGS, _REMOVE, _SUBFLOW_CREATE, _SUBFLOW_DESTROY = 7, 9, 10, 11
# MPTCP_PM_ATTR_*, MPTCP_PM_ADDR_ATTR_*, MPTCP_PM_ADDR_FLAG_*
_ADDR, _TOKEN, _LOC_ID, _ADDR_REMOTE = 1, 4, 5, 6
_FAMILY, _ID, _ADDR4, _ADDR6, _PORT, _FLAGS, _IF_IDX = 1, 2, 3, 4, 5, 6, 7
_FLAG_SUBFLOW, _FLAG_BACKUP = 2, 4
# MPTCP_ATTR_* (of events) and the flags there
_EVENT_TOKEN, _EVENT_BACKUP, _EVENT_ERROR, _EVENT_FLAGS, _EVENT_SERVER_SIDE = 1, 11, 12, 13, 18
_SADDR4, _SADDR6, _DADDR4, _DADDR6, _SPORT, _DPORT = 5, 6, 7, 8, 9, 10
_DENY_JOIN, _SERVER_SIDE = 1, 2

_U16: Final = struct.Struct("=H")
_U32: Final = struct.Struct("=I")
_NETWORK_PORT: Final = struct.Struct("!H")


class MptcpEventKind(IntEnum):
    """The path manager's events that we use (enum mptcp_event_type)."""

    CREATED = 1
    ESTABLISHED = 2
    CLOSED = 3
    SUBFLOW_UP = 10
    SUBFLOW_DOWN = 11
    PRIORITY = 13


_KINDS: Final = {int(kind): kind for kind in MptcpEventKind}


@dataclass(frozen=True, slots=True)
class MptcpEvent:
    """An event of the path manager about a connection, or with a `key` about one of its subflows.

    `joinable`: the other end lets its address be joined (its SYN did not forbid it).
    """

    kind: MptcpEventKind
    token: int
    key: FlowKey | None = None
    backup: bool = False
    error: int = 0
    server_side: bool = False
    joinable: bool = True


@dataclass(frozen=True, slots=True)
class CreateSubflow:
    """Join a connection from another of our addresses; `local_id` 0 is the initial address."""

    token: int
    local: Address
    local_id: int
    index: int
    remote: Address
    remote_port: int
    backup: bool

    def __str__(self) -> str:
        kind = "backup" if self.backup else "active"
        where = f"{self.local} -> {self.remote} port {self.remote_port}"
        return f"mptcp {self.token:#010x}: create {kind} subflow {where}"


@dataclass(frozen=True, slots=True)
class DestroySubflow:
    """End one subflow of a connection."""

    token: int
    key: FlowKey

    def __str__(self) -> str:
        return f"mptcp {self.token:#010x}: destroy subflow {self.key.local} -> {self.key.remote}"


@dataclass(frozen=True, slots=True)
class RemoveAddress:
    """Tell the other end that a connection has lost one of our addresses (RFC 8684, 3.4.2).

    The kernel sends that over the paths that are left. The other end then sends again at once what was
    under way to the lost address.
    """

    token: int
    local: Address
    local_id: int

    def __str__(self) -> str:
        return f"mptcp {self.token:#010x}: {self.local} is gone"


@dataclass(frozen=True, slots=True)
class SetBackup:
    """Set or clear the backup flag of one subflow, here and (by MP_PRIO) at the other end."""

    token: int
    key: FlowKey
    backup: bool

    def __str__(self) -> str:
        kind = "backup" if self.backup else "active"
        return f"mptcp {self.token:#010x}: {self.key.local} -> {self.key.remote} {kind}"


PathManagerCommand = CreateSubflow | DestroySubflow | RemoveAddress | SetBackup


def command_request(command: PathManagerCommand) -> bytes:
    token = attribute(_TOKEN, _U32.pack(command.token))
    if isinstance(command, RemoveAddress):
        local_id = attribute(_LOC_ID, bytes([command.local_id]))
        return generic_netlink.request(_REMOVE, token + local_id)
    if isinstance(command, CreateSubflow):
        flags = _FLAG_SUBFLOW | (_FLAG_BACKUP if command.backup else 0)
        local: tuple[bytes, ...] = (
            *_address(command.local),
            attribute(_ID, bytes([command.local_id])),
            attribute(_FLAGS, _U32.pack(flags)),
            attribute(_IF_IDX, _U32.pack(command.index)),
        )
        remote = (*_address(command.remote), _port(command.remote_port))
        code = _SUBFLOW_CREATE
    else:
        # The other commands name a subflow by both of its ends.
        key = command.key
        local = (*_address(key.local), _port(key.local_port))
        remote = (*_address(key.remote), _port(key.remote_port))
        code = _SUBFLOW_DESTROY
        if isinstance(command, SetBackup):
            local += (attribute(_FLAGS, _U32.pack(_FLAG_BACKUP if command.backup else 0)),)
            code = _SET_FLAGS
    body = token + build_nested(_ADDR, *local) + build_nested(_ADDR_REMOTE, *remote)
    return generic_netlink.request(code, body)


def _address(of: Address) -> tuple[bytes, bytes]:
    family = attribute(_FAMILY, _U16.pack(FAMILIES[of.version]))
    return family, attribute(_ADDR4 if of.version == 4 else _ADDR6, of.packed)


def _port(port: int) -> bytes:
    return attribute(_PORT, _U16.pack(port))


def mptcp_events(data: bytes) -> Iterator[MptcpEvent]:
    """Yield the events of one datagram; unused and truncated ones are left out."""
    for message in messages(data):
        # The event's type is the command in the generic header, its first byte.
        kind = _KINDS.get(message.payload[0]) if message.payload else None
        if kind is None:
            continue
        found = attributes(message.payload, generic_netlink.HEADER_BYTES)
        token = read_unsigned(found.get(_EVENT_TOKEN))
        if token is not None:
            flags = read_unsigned(found.get(_EVENT_FLAGS)) or 0
            yield MptcpEvent(
                kind,
                token,
                _event_key(found),
                bool(read_unsigned(found.get(_EVENT_BACKUP))),
                read_unsigned(found.get(_EVENT_ERROR)) or 0,
                # Newer kernels say so in the flags.
                bool(read_unsigned(found.get(_EVENT_SERVER_SIDE))) or bool(flags & _SERVER_SIDE),
                not flags & _DENY_JOIN,
            )


def _event_key(found: Mapping[int, bytes]) -> FlowKey | None:
    local = found.get(_SADDR4) or found.get(_SADDR6, b"")
    remote = found.get(_DADDR4) or found.get(_DADDR6, b"")
    if len(local) not in {4, 16} or len(remote) not in {4, 16}:
        return None
    local_port, remote_port = _event_port(found.get(_SPORT)), _event_port(found.get(_DPORT))
    return FlowKey(address(local), local_port, address(remote), remote_port)


def _event_port(octets: bytes | None) -> int:
    return int(_NETWORK_PORT.unpack(octets)[0]) if octets and len(octets) == 2 else 0

"""The MPTCP path manager's generic netlink: commands and events (linux/mptcp_pm.h).

pyroute2's own class for it knows neither events nor what concerns one connection, so the messages
are described here. Ports are in commands in host order and in events in network order.
"""

import socket
import struct
from dataclasses import dataclass
from enum import IntEnum
from ipaddress import ip_address
from typing import Any, Final

from pyroute2.netlink import NLA_F_NESTED, ctrlmsg, genlmsg, nla

from cedos.kernel.netlink import attribute
from cedos.kernel.netlink_commands import Message, attributes
from cedos.model import Address, FlowKey

FAMILY_NAME: Final = "mptcp_pm"
EVENT_GROUP: Final = "mptcp_pm_events"

_GET_FAMILY, _CTRL_VERSION, _PM_VERSION = 3, 1, 1
_GET_ADDRESS, _SET_FLAGS, _REMOVE, _CREATE, _DESTROY = 3, 7, 9, 10, 11
_SUBFLOW, _BACKUP = 2, 4
_TOKEN = 4


class PathManagerMessage(genlmsg):
    """A command, or an endpoint of the kernel's (MPTCP_PM_ATTR_*)."""

    nla_map = (
        ("UNSPEC", "none"),
        ("ADDR", "AddressAttribute", NLA_F_NESTED),
        ("RCV_ADD_ADDRS", "uint32"),
        ("SUBFLOWS", "uint32"),
        ("TOKEN", "uint32"),
        ("LOC_ID", "uint8"),
        ("ADDR_REMOTE", "AddressAttribute", NLA_F_NESTED),
    )

    class AddressAttribute(nla):
        """MPTCP_PM_ADDR_ATTR_*."""

        nla_map = (
            ("UNSPEC", "none"),
            ("FAMILY", "uint16"),
            ("ID", "uint8"),
            ("ADDR4", "ip4addr"),
            ("ADDR6", "ip6addr"),
            ("PORT", "uint16"),
            ("FLAGS", "uint32"),
            ("IF_IDX", "int32"),
        )


class EventKind(IntEnum):
    """The path manager's events that we use (enum mptcp_event_type)."""

    CREATED = 1
    ESTABLISHED = 2
    CLOSED = 3
    SUBFLOW_UP = 10
    SUBFLOW_DOWN = 11
    PRIORITY = 13


@dataclass(frozen=True, slots=True)
class PathEvent:
    """What the kernel's path manager says of a connection, or with a `key` of one of its subflows.

    `joinable`: the other end lets its address be joined (its SYN did not forbid it).
    """

    kind: EventKind
    token: int
    key: FlowKey | None = None
    backup: bool = False
    error: int = 0
    server_side: bool = False
    joinable: bool = True


@dataclass(frozen=True, slots=True)
class CreatePath:
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
class DestroyPath:
    """End one subflow of a connection."""

    token: int
    key: FlowKey

    def __str__(self) -> str:
        return f"mptcp {self.token:#010x}: destroy subflow {self.key.local} -> {self.key.remote}"


@dataclass(frozen=True, slots=True)
class RemoveAddress:
    """Tell the other end that a connection has lost one of our addresses (RFC 8684, 3.4.2).

    Over the paths that are left it is told, and sends again at once what was under way to there.
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


PathCommand = CreatePath | DestroyPath | RemoveAddress | SetBackup


@dataclass(frozen=True, slots=True)
class Endpoint:
    """An endpoint of the kernel's own path manager."""

    id: int
    address: Address


def command_message(command: PathCommand) -> Message:
    """The request of a command (its type: the family's number)."""
    if isinstance(command, RemoveAddress):
        return _request(_REMOVE, TOKEN=command.token, LOC_ID=command.local_id)
    if isinstance(command, CreatePath):
        local = {
            **_address(command.local),
            "ID": command.local_id,
            "FLAGS": _SUBFLOW | (_BACKUP if command.backup else 0),
            "IF_IDX": command.index,
        }
        remote = {**_address(command.remote), "PORT": command.remote_port}
        code = _CREATE
    else:
        key = command.key
        local = {**_address(key.local), "PORT": key.local_port}
        remote = {**_address(key.remote), "PORT": key.remote_port}
        code = _DESTROY
        if isinstance(command, SetBackup):
            local["FLAGS"] = _BACKUP if command.backup else 0
            code = _SET_FLAGS
    return _request(code, TOKEN=command.token, ADDR=_nest(local), ADDR_REMOTE=_nest(remote))


def endpoints_request() -> Message:
    """Asks for the kernel's endpoints."""
    return _request(_GET_ADDRESS)


def addresses_of(token: int) -> bytes:
    """Asks for one connection's addresses, which only its own path manager may: a request's body.

    Packed here and not by pyroute2, as it goes with every new connection.
    """
    head = struct.pack("=BBH", _GET_ADDRESS, _PM_VERSION, 0)
    return head + attribute(_TOKEN, struct.pack("=I", token))


def parse_endpoint(message: Message) -> Endpoint | None:
    """One endpoint of such a dump."""
    nested = message.get_attr("ADDR")
    if nested is None:
        return None
    found = attributes(nested)
    address = _ip(found.get("ADDR4") or found.get("ADDR6"))
    return None if address is None else Endpoint(found.get("ID", 0), address)


def family_request() -> Message:
    """Asks (the type GENL_ID_CTRL) under which numbers the kernel has this family."""
    message = ctrlmsg()
    message.update(cmd=_GET_FAMILY, version=_CTRL_VERSION)
    message["attrs"] = [("CTRL_ATTR_FAMILY_NAME", FAMILY_NAME)]
    return message


def parse_family(message: Message) -> tuple[int, int | None]:
    """The family's message type, and its event group's number where it has one."""
    groups = {
        group.get_attr("CTRL_ATTR_MCAST_GRP_NAME"): group.get_attr("CTRL_ATTR_MCAST_GRP_ID")
        for group in message.get_attr("CTRL_ATTR_MCAST_GROUPS", [])
    }
    return message.get_attr("CTRL_ATTR_FAMILY_ID"), groups.get(EVENT_GROUP)


def _request(code: int, **values: Any) -> Message:
    message = PathManagerMessage()
    message.update(cmd=code, version=_PM_VERSION)
    message["attrs"] = list(values.items())
    return message


def _nest(values: dict[str, Any]) -> dict[str, Any]:
    return {"attrs": list(values.items())}


def _address(address: Address) -> dict[str, Any]:
    if address.version == 4:
        return {"FAMILY": socket.AF_INET, "ADDR4": str(address)}
    return {"FAMILY": socket.AF_INET6, "ADDR6": str(address)}


def _ip(text: str | None) -> Address | None:
    if text is None:
        return None
    address = ip_address(text)
    # An IPv6 socket that speaks IPv4; commands want it as IPv4.
    mapped = getattr(address, "ipv4_mapped", None)
    return mapped or address

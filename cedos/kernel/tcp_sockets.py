"""Living TCP sockets by sock_diag: which belong to MPTCP connections, and which are listening.

pyroute2 leaves what a protocol above TCP says of a socket as it is, so that is described here
(linux/mptcp.h, MPTCP_SUBFLOW_ATTR_*).
"""

import socket
from dataclasses import dataclass
from ipaddress import ip_address
from typing import Any, Final

from pyroute2.netlink import nla
from pyroute2.netlink.diag import (
    SOCK_DIAG_BY_FAMILY,
    SS_CLOSE_WAIT,
    SS_CLOSING,
    SS_ESTABLISHED,
    SS_FIN_WAIT1,
    SS_FIN_WAIT2,
    SS_LAST_ACK,
    SS_LISTEN,
    inet_addr_codec,
    inet_diag_msg,
    inet_diag_req,
)

from cedos.kernel.netlink_commands import Message, attributes
from cedos.model import Address, FlowKey

_FAMILIES: Final = (socket.AF_INET, socket.AF_INET6)
_WANT_INFO: Final = 1 << 1
_STATES: Final = sum(
    1 << state
    for state in (
        *(SS_ESTABLISHED, SS_FIN_WAIT1, SS_FIN_WAIT2, SS_CLOSE_WAIT),
        *(SS_LAST_ACK, SS_LISTEN, SS_CLOSING),
    )
)
_BACKUP_LOCAL, _CONNECTED = 1 << 5, 1 << 7


class SocketMessage(inet_addr_codec):
    """pyroute2's `inet_diag_msg`, with what MPTCP says of its subflows."""

    ffname = inet_diag_msg.ffname
    fields = inet_diag_msg.fields
    nla_map = tuple(
        (name, "Upper" if name == "INET_DIAG_ULP_INFO" else "hex")
        for name, _ in inet_diag_msg.nla_map
    )

    class Upper(nla):
        """INET_ULP_INFO_*: the protocol above TCP."""

        nla_map = (("UNSPEC", "none"), ("NAME", "asciiz"), ("TLS", "hex"), ("MPTCP", "Subflow"))

        class Subflow(nla):
            """MPTCP_SUBFLOW_ATTR_*."""

            nla_map = (
                ("UNSPEC", "none"),
                ("TOKEN_REM", "uint32"),
                ("TOKEN_LOC", "uint32"),
                ("RELWRITE_SEQ", "uint32"),
                ("MAP_SEQ", "uint64"),
                ("MAP_SFSEQ", "uint32"),
                ("SSN_OFFSET", "uint32"),
                ("MAP_DATALEN", "uint16"),
                ("FLAGS", "uint32"),
                ("ID_REM", "uint8"),
                ("ID_LOC", "uint8"),
            )


@dataclass(frozen=True, slots=True)
class SeenSocket:
    """A TCP socket; `token` is that of its MPTCP connection, None for plain TCP.

    `backup` says that we marked it so, `local_id` is 0 for the connection's first address.
    """

    key: FlowKey
    listening: bool
    token: int | None = None
    backup: bool = False
    local_id: int = 0


def request(family: int) -> Message:
    """Asks for an address family's TCP sockets."""
    message = inet_diag_req()
    message.update(
        sdiag_family=family,
        sdiag_protocol=socket.IPPROTO_TCP,
        idiag_ext=_WANT_INFO,
        idiag_states=_STATES,
    )
    return message


def parse(message: Message) -> SeenSocket | None:
    """One socket of the dump, a `SocketMessage`; None for anything else."""
    family = message.get("idiag_family")
    if message["header"]["type"] != SOCK_DIAG_BY_FAMILY or family not in _FAMILIES:
        return None
    key = FlowKey(
        _address(message["idiag_src"]),
        message["idiag_sport"],
        _address(message["idiag_dst"]),
        message["idiag_dport"],
    )
    if message["idiag_state"] == SS_LISTEN:
        return SeenSocket(key, True)
    upper = message.get_attr("INET_DIAG_ULP_INFO")
    subflow = upper.get_attr("MPTCP") if upper else None
    if subflow is None:
        return SeenSocket(key, False)
    found: dict[str, Any] = attributes(subflow)
    flags = found.get("FLAGS", 0)
    return SeenSocket(
        key,
        False,
        found.get("TOKEN_LOC") if flags & _CONNECTED else None,
        bool(flags & _BACKUP_LOCAL),
        found.get("ID_LOC", 0),
    )


def _address(text: str) -> Address:
    address = ip_address(text)
    # An IPv6 socket that speaks IPv4.
    mapped = getattr(address, "ipv4_mapped", None)
    return mapped or address

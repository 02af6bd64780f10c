"""The filter on connection tracking's events: what no handshake began never reaches this process.

Anybody can send segments in the middle of a connection that never was, and each of them is a new tracked
flow. The kernel tells a TCP flow's state with its beginning; only those whose first packet asks for a
connection, or answers that, are let through. All ends and everything about UDP are.
"""

import socket

from cedos.kernel.bpf.classic_assembly import NETLINK_ATTRIBUTE, NETLINK_NESTED, Assembler

_TYPE_AT, _ATTRIBUTES_AT, _HEAD_BYTES = 4, 20, 4  # of nlmsghdr with nfgenmsg; of an attribute
_NEW = 0x0100  # IPCTNL_MSG_CT_NEW of its subsystem
_ANY_LENGTH = 0xFFFFFFFF
# CTA_PROTOINFO, CTA_PROTOINFO_TCP and CTA_PROTOINFO_TCP_STATE: each within the one before
_ABOUT_PROTOCOL, _ABOUT_TCP, _TCP_STATE = 4, 1, 1
_SYN_SENT, _SYN_RECEIVED = 1, 2  # enum tcp_conntrack


def program() -> bytes:
    """For a netlink socket; what it cannot read passes."""
    code = Assembler()
    code.load(_TYPE_AT, 2)  # the kernel swaps bytes as if they came from a network; these did not
    code.if_equal(socket.htons(_NEW), otherwise="pass")
    code.load_immediate(_ATTRIBUTES_AT)
    code.load_x(_ABOUT_PROTOCOL)
    code.load(NETLINK_ATTRIBUTE, 4)  # A = where the attribute X is, from A on; 0: nowhere
    for within in (_ABOUT_TCP, _TCP_STATE):
        code.if_equal(0, then="pass")
        code.load_x(within)
        code.load(NETLINK_NESTED, 4)
    code.if_equal(0, then="pass")
    code.to_x()
    code.load(_HEAD_BYTES, 1, indexed=True)
    code.if_equal(_SYN_SENT, then="pass")
    code.if_equal(_SYN_RECEIVED, then="pass")
    code.give(0)
    code.label("pass")
    code.give(_ANY_LENGTH)
    return code.assemble()

"""Follow the kernel's events of nf_tables, which iptables runs on (linux/netfilter/nf_tables.h).

Only what is taken out is of interest: every loss of a part of ours is an event.
"""

from typing import Final

from cedos.kernel.netlink import NetlinkMessage, attributes, text

# NFNLGRP_NFTABLES of NETLINK_NETFILTER.
GROUP: Final = 7

_SUBSYSTEM: Final = 10 << 8
_DELETE_TABLE, _DELETE_CHAIN, _DELETE_RULE = 2, 5, 8
_HEAD_BYTES: Final = 4
_TABLE_NAME, _CHAIN_NAME, _RULE_CHAIN = 1, 3, 2
_TABLES: Final = ("filter", "mangle", "security", "raw", "nat")
_HOOKS: Final = ("INPUT", "FORWARD", "OUTPUT", "PREROUTING", "POSTROUTING")
_OURS: Final = "CEDOS_"


def takes_from_ours(message: NetlinkMessage) -> bool:
    """Return whether a chain or rule of ours, or a jump to one, may have gone."""
    kind = message.type - _SUBSYSTEM
    if kind not in (_DELETE_TABLE, _DELETE_CHAIN, _DELETE_RULE):
        return False
    found = attributes(message.payload, _HEAD_BYTES)
    if text(found.get(_TABLE_NAME)) not in _TABLES:
        return False
    if kind == _DELETE_TABLE:
        return True
    if kind == _DELETE_CHAIN:
        return text(found.get(_CHAIN_NAME)).startswith(_OURS)
    chain = text(found.get(_RULE_CHAIN))
    return chain in _HOOKS or chain.startswith(_OURS)

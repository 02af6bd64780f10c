"""Messages of nf_tables which tell that something of ours may have gone."""

import struct

import pytest

from cedos.host.steer.kernel.linux import takes_from_ours
from cedos.kernel.netlink import NetlinkMessage, attribute

NFT = 10 << 8
NEW_RULE, DELETE_TABLE, DELETE_CHAIN, DELETE_RULE = NFT + 6, NFT + 2, NFT + 5, NFT + 8
HEAD = struct.pack("=BBH", 2, 0, 7)


def told(kind, *attributes):
    payload = HEAD + b"".join(attribute(n, text.encode() + b"\0") for n, text in attributes)
    return NetlinkMessage(kind, 0, 0, payload)


@pytest.mark.parametrize(
    ("message", "ours"),
    [
        (told(DELETE_TABLE, (1, "filter")), True),
        (told(DELETE_TABLE, (1, "inet_firewall")), False),
        (told(DELETE_CHAIN, (1, "filter"), (3, "CEDOS_BAR_OUT")), True),
        (told(DELETE_CHAIN, (1, "filter"), (3, "DOCKER")), False),
        (told(DELETE_RULE, (1, "nat"), (2, "CEDOS_OUT")), True),
        (told(DELETE_RULE, (1, "filter"), (2, "OUTPUT")), True),  # a jump, perhaps
        (told(DELETE_RULE, (1, "filter"), (2, "DOCKER")), False),
        (told(DELETE_RULE, (1, "docker"), (2, "OUTPUT")), False),
        (told(NEW_RULE, (1, "filter"), (2, "OUTPUT")), False),
        (told(DELETE_RULE), False),
    ],
)  # fmt: skip
def test_only_losses_of_ours_count(message, ours):
    assert takes_from_ours(message) is ours

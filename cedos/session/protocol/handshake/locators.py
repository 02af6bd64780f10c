"""Names for a flow that only their issuer can read, and that are used once.

DTP and D2TP send flow id and host id in clear: whoever watches two networks sees one device move. A
locator is the flow id encrypted under a key that follows from the issuer's static key, so it needs no
table and survives a restart; a resumption that succeeds brings the next one. Where several processes
accept on one port, it also says whose the flow is: the first byte of its host's id, encrypted, too.
"""

import hmac
from typing import Final

from cedos.session.protocol.crypto import KeyPair, Random, expand, host_id
from cedos.session.protocol.handshake.messages import FLOW_ID_BYTES, LOCATOR_BYTES

_NAMED_BYTES: Final = 1 + FLOW_ID_BYTES
_SALT_BYTES: Final = LOCATOR_BYTES - _NAMED_BYTES


class Locators:
    """Not authenticated: an altered one names no flow, and a flow's secret has to be proved anyway."""

    def __init__(self, me: KeyPair) -> None:
        self._key = expand(me.private, "locators")

    def issue(self, flow_id: bytes, peer_key: bytes, random: Random) -> bytes:
        salt = random(_SALT_BYTES)
        return salt + self._masked(salt, bytes([share_byte(peer_key)]) + flow_id)

    def read(self, locator: bytes) -> tuple[bytes, int]:
        """The flow, and its peer's `share_byte`. Any bytes give some."""
        named = self._masked(locator[:_SALT_BYTES], locator[_SALT_BYTES:])
        return named[1:], named[0]

    def _masked(self, salt: bytes, named: bytes) -> bytes:
        mask = int.from_bytes(hmac.digest(self._key, salt, "sha256")[:_NAMED_BYTES], "big")
        return (mask ^ int.from_bytes(named, "big")).to_bytes(_NAMED_BYTES, "big")


def share_byte(peer_key: bytes) -> int:
    """What decides which of several processes serves a host: as evenly spread as hosts' ids."""
    return host_id(peer_key)[0]

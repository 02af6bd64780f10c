"""Names for a flow that only their issuer can read, and that are used once.

DTP and D2TP send flow id and host id in clear: whoever watches two networks sees one device move. A
locator is the flow id encrypted under a key that follows from the issuer's static key, so it needs no
table and survives a restart; a resumption that succeeds brings the next one.
"""

import hmac
from typing import Final

from cedos.session.protocol.crypto import KeyPair, Random, expand
from cedos.session.protocol.handshake.messages import FLOW_ID_BYTES, LOCATOR_BYTES

_SALT_BYTES: Final = LOCATOR_BYTES - FLOW_ID_BYTES


class Locators:
    """Not authenticated: an altered one names no flow, and a flow's secret has to be proved anyway."""

    def __init__(self, me: KeyPair) -> None:
        self._key = expand(me.private, "locators")

    def issue(self, flow_id: bytes, random: Random) -> bytes:
        salt = random(_SALT_BYTES)
        return salt + self._masked(salt, flow_id)

    def read(self, locator: bytes) -> bytes:
        """Any bytes give some flow id."""
        return self._masked(locator[:_SALT_BYTES], locator[_SALT_BYTES:])

    def _masked(self, salt: bytes, flow_id: bytes) -> bytes:
        mask = int.from_bytes(hmac.digest(self._key, salt, "sha256")[:FLOW_ID_BYTES], "big")
        return (mask ^ int.from_bytes(flow_id, "big")).to_bytes(FLOW_ID_BYTES, "big")

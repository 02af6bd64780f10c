"""Names for a flow that only their issuer can read, and that are used once.

DTP and D2TP send flow id and host id in clear, so an observer of two networks sees one device move. A
locator is the flow id encrypted under a key that follows from the issuer's static key. It needs no table
and survives a restart. Each successful resumption brings the next one.
"""

import hmac
from typing import Final

from cedos.session.protocol.crypto import KeyPair, Random, expand
from cedos.session.protocol.handshake.messages import FLOW_ID_BYTES, LOCATOR_BYTES

_SALT_BYTES: Final = LOCATOR_BYTES - FLOW_ID_BYTES


class Locators:
    """The issuer's end. A locator is not authenticated: an altered one names no flow.

    The peer has to prove the flow's secret anyway.
    """

    def __init__(self, me: KeyPair) -> None:
        self._key = expand(me.private, "locators")

    def issue(self, flow_id: bytes, random: Random) -> bytes:
        salt = random(_SALT_BYTES)
        return salt + self._masked(salt, flow_id)

    def read(self, locator: bytes) -> bytes:
        """Return the flow's id. Any bytes give one."""
        return self._masked(locator[:_SALT_BYTES], locator[_SALT_BYTES:])

    def _masked(self, salt: bytes, flow_id: bytes) -> bytes:
        mask = int.from_bytes(hmac.digest(self._key, salt, "sha256")[:FLOW_ID_BYTES], "big")
        return (mask ^ int.from_bytes(flow_id, "big")).to_bytes(FLOW_ID_BYTES, "big")

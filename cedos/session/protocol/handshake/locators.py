"""Names for a flow that only its issuer can read, and that are used once.

DTP and D2TP send flow id and host id in clear with every resumption: whoever watches two networks
sees one device move. Here each end gives the other a locator, the flow id encrypted under a key that
follows from its static key; so it needs no table and survives a restart. A resumption that succeeds
brings the next one.
"""

import hmac
from typing import Final

from cedos.session.protocol.crypto import KeyPair, Random, expand
from cedos.session.protocol.handshake.messages import FLOW_ID_BYTES, LOCATOR_BYTES

_SALT_BYTES: Final = LOCATOR_BYTES - FLOW_ID_BYTES


class Locators:
    """Issues and reads this host's locators.

    They are not authenticated: an altered one names a flow that does not exist, and a flow's secret
    has to be proved anyway.
    """

    def __init__(self, me: KeyPair) -> None:
        self._key = expand(me.private, "locators")

    def issue(self, flow_id: bytes, random: Random) -> bytes:
        salt = random(_SALT_BYTES)
        return salt + self._masked(salt, flow_id)

    def read(self, locator: bytes) -> bytes:
        """The flow id in a locator; any bytes give one."""
        return self._masked(locator[:_SALT_BYTES], locator[_SALT_BYTES:])

    def _masked(self, salt: bytes, flow_id: bytes) -> bytes:
        mask = int.from_bytes(hmac.digest(self._key, salt, "sha256")[:FLOW_ID_BYTES], "big")
        return (mask ^ int.from_bytes(flow_id, "big")).to_bytes(FLOW_ID_BYTES, "big")

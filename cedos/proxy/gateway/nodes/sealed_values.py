"""What nodes of one gateway write where others may read: sealed by the key of all of them. Pure.

A value is its version (1 byte), a nonce (12) and the sealed bytes with their tag. Each name has a key of
its own, and is authenticated with the value: one that was put under another name is none.
"""

import hmac
from typing import Final

from cryptography.exceptions import InvalidTag

from cedos.session.protocol.crypto import TAG_BYTES, Aead, KeyPair, Random, aead, expand

VERSION: Final = 1
NONCE_BYTES: Final = 12
ADDED_BYTES: Final = 1 + NONCE_BYTES + TAG_BYTES
_NAME_BYTES: Final = 16


class SealedValues:
    """`me`: the gateway's key pair, which all its nodes have."""

    def __init__(self, me: KeyPair, random: Random) -> None:
        root = expand(me.private, "shared by nodes")
        self._names, self._values = expand(root, "names"), expand(root, "values")
        self._random = random
        self.prefix = f"cedos:{expand(root, 'gateway', length=8).hex()}:"

    def name(self, kind: str, what: bytes) -> str:
        """Under which a value lies: it tells nobody else what it is of."""
        named = hmac.digest(self._names, kind.encode() + b"\0" + what, "sha256")
        return f"{self.prefix}{kind}:{named[:_NAME_BYTES].hex()}"

    def seal(self, name: str, plain: bytes) -> bytes:
        nonce = self._random(NONCE_BYTES)
        head = bytes([VERSION])
        return head + nonce + self._aead(name).encrypt(nonce, plain, head + name.encode())

    def open(self, name: str, value: bytes) -> bytes:
        """ValueError: it was not sealed under that name by a node of this gateway and version."""
        if len(value) < ADDED_BYTES:
            raise ValueError("it is too short")
        if value[0] != VERSION:
            raise ValueError(f"it is of version {value[0]}; this is {VERSION}")
        nonce, sealed = value[1 : 1 + NONCE_BYTES], value[1 + NONCE_BYTES :]
        try:
            return self._aead(name).decrypt(nonce, sealed, value[:1] + name.encode())
        except InvalidTag:
            raise ValueError("it was altered, or is another gateway's") from None

    def _aead(self, name: str) -> Aead:
        return aead(expand(self._values, "value", name.encode()), chacha=True)

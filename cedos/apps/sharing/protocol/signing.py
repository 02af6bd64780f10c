"""Signatures: Ed25519 (RFC 8032), each over a text that says what is signed. Pure."""

from typing import Final

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import (
    Ed25519PrivateKey,
    Ed25519PublicKey,
)

PUBLIC_BYTES: Final = 32
SIGNATURE_BYTES: Final = 64


class SigningKey:
    """An Ed25519 key; `private` are 32 random bytes."""

    __slots__ = ("_handle", "private", "public")

    def __init__(self, private: bytes) -> None:
        self._handle = Ed25519PrivateKey.from_private_bytes(private)
        self.private = private
        self.public = self._handle.public_key().public_bytes_raw()

    def sign(self, purpose: bytes, content: bytes) -> bytes:
        """Return the signature of a content; one for another purpose is never valid for this one."""
        return self._handle.sign(purpose + b"\0" + content)


def is_signed(public: bytes, purpose: bytes, content: bytes, signature: bytes) -> bool:
    """Return whether the owner of a public key signed this content for this purpose."""
    try:
        key = Ed25519PublicKey.from_public_bytes(public)
        key.verify(signature, purpose + b"\0" + content)
    except (InvalidSignature, ValueError):
        return False
    return True

"""The cryptography of sessions: keys, derivation, records. Pure; no primitive is our own.

Randomness is handed in, so that a test can replay a schedule of connections. Every AEAD key of a session
is made by `aead()`: one place to watch that no nonce is used twice.
"""

import hmac
from collections.abc import Callable, Sequence
from enum import IntEnum
from hashlib import sha256
from typing import Final, Protocol, TypeAlias

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM, ChaCha20Poly1305

Buffer: TypeAlias = bytes | bytearray | memoryview
Random: TypeAlias = Callable[[int], bytes]  # as `os.urandom`: so many unpredictable bytes

KEY_BYTES: Final = 32
TAG_BYTES: Final = 16
HOST_ID_BYTES: Final = 20
# A key protects at most this many records (64 GB at 256 KB): far inside the limits of AES-GCM for
# one key (NIST SP 800-38D; 2^32 blocks leave an advantage below 2^-64).
RECORDS_PER_KEY: Final = 1 << 18


class Suite(IntEnum):
    """The protection of records; agreed at set-up, the same for the flow's whole life."""

    CLEAR = 0  # only where both ends ask for it: loopback, benchmarks
    AES_128_GCM = 1  # where both ends' hardware has AES
    CHACHA20_POLY1305 = 2


class Aead(Protocol):
    def encrypt(self, nonce: Buffer, data: Buffer, associated_data: Buffer | None) -> bytes: ...

    def decrypt(self, nonce: Buffer, data: Buffer, associated_data: Buffer | None) -> bytes: ...


def aead(key: bytes, *, chacha: bool) -> Aead:
    """Return ChaCha20-Poly1305 (32 bytes) or AES-GCM (16 or 32) for a key."""
    return ChaCha20Poly1305(key) if chacha else AESGCM(key)


class KeyPair:
    """An X25519 key pair (RFC 7748), static or of one handshake; `private` are 32 random bytes."""

    __slots__ = ("_handle", "private", "public")

    def __init__(self, private: bytes) -> None:
        self._handle = X25519PrivateKey.from_private_bytes(private)
        self.private = private
        self.public = self._handle.public_key().public_bytes_raw()

    def exchange(self, public: bytes) -> bytes:
        """Return the shared secret; ValueError: a public key of low order, sent only by attackers."""
        return self._handle.exchange(X25519PublicKey.from_public_bytes(public))


def host_id(public: bytes) -> bytes:
    """Return a host's id, a hash of its static key; it says nothing about the device."""
    return sha256(b"cedos host id" + public).digest()[:HOST_ID_BYTES]


def expand(secret: bytes, label: str, context: bytes = b"", length: int = KEY_BYTES) -> bytes:
    """Return up to 32 bytes by HKDF-Expand (RFC 5869, SHA-256): independent keys out of one secret."""
    assert length <= KEY_BYTES
    info = b"cedos session 1 " + label.encode() + b"\0" + context
    return hmac.digest(secret, info + b"\x01", "sha256")[:length]


def extract(salt: bytes, material: bytes) -> bytes:
    return hmac.digest(salt, material, "sha256")


class RecordKey:
    """The key for the records of one direction of one connection; a counter is the nonce.

    After `RECORDS_PER_KEY` records both ends replace the key without a message; the counter goes on.
    A key that leaks reveals no records before its replacement.
    """

    __slots__ = ("_aead", "_count", "_secret", "_suite")

    def __init__(self, suite: Suite, secret: bytes) -> None:
        assert suite is not Suite.CLEAR
        self._suite = suite
        self._secret = secret
        self._count = 0
        self._aead = self._make()

    def _make(self) -> Aead:
        chacha = self._suite is Suite.CHACHA20_POLY1305
        return aead(expand(self._secret, "record", length=32 if chacha else 16), chacha=chacha)

    def _nonce(self) -> bytes:
        count = self._count
        if count and not count % RECORDS_PER_KEY:
            self._secret = expand(self._secret, "next record secret")
            self._aead = self._make()
        self._count = count + 1
        return count.to_bytes(12, "big")

    def seal(self, header: bytes, parts: Sequence[Buffer]) -> bytes:
        plain = parts[0] if len(parts) == 1 else b"".join(parts)
        return self._aead.encrypt(self._nonce(), plain, header)

    def open(self, header: Buffer, body: Buffer) -> bytes | None:
        """Return the plaintext of the next record; None: it is forged, replayed or out of order."""
        try:
            return self._aead.decrypt(self._nonce(), body, header)
        except InvalidTag:
            return None

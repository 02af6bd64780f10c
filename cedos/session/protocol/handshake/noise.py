"""Noise_IK: a handshake with a server whose static key is known (Noise specification, revision 34).

    <- s
    ...
    -> e, es, s, ss
    <- e, ee, se

X25519 and SHA-256, with AES-256-GCM or ChaCha20-Poly1305. The client's static key travels
encrypted; only the holder of the pinned key can read it or answer. Two messages, one round trip.
"""

import hmac
from hashlib import sha256
from typing import Final

from cryptography.exceptions import InvalidTag

from cedos.session.protocol.crypto import KEY_BYTES, TAG_BYTES, Aead, KeyPair, aead

# Message 1 carries an ephemeral key, the encrypted static key and a tag besides its payload.
FIRST_OVERHEAD: Final = KEY_BYTES + KEY_BYTES + TAG_BYTES + TAG_BYTES
SECOND_OVERHEAD: Final = KEY_BYTES + TAG_BYTES


class NoiseError(Exception):
    pass


def name(*, chacha: bool) -> bytes:
    return b"Noise_IK_25519_%s_SHA256" % (b"ChaChaPoly" if chacha else b"AESGCM")


class _Symmetric:
    """Noise's SymmetricState (5.2): the chaining key, the hash of all bytes so far, and a cipher."""

    def __init__(self, *, chacha: bool) -> None:
        called = name(chacha=chacha)
        self._chacha = chacha
        self.hash = called.ljust(32, b"\0") if len(called) <= 32 else sha256(called).digest()
        self._chaining = self.hash
        self._cipher: Aead | None = None
        self._count = 0

    # MixHash, MixKey and the names below are those of the Noise specification, 5.2.
    def mix_hash(self, data: bytes) -> None:
        self.hash = sha256(self.hash + data).digest()

    def mix_key(self, material: bytes) -> None:
        self._chaining, key = self._derive(material)
        self._cipher = aead(key, chacha=self._chacha)
        self._count = 0

    def _derive(self, material: bytes) -> tuple[bytes, bytes]:
        # HKDF with two outputs (Noise, 4.3).
        secret = hmac.digest(self._chaining, material, "sha256")
        first = hmac.digest(secret, b"\x01", "sha256")
        return first, hmac.digest(secret, first + b"\x02", "sha256")

    def _nonce(self) -> bytes:
        count = self._count
        self._count += 1
        # Noise 12.3 and 12.4: 32 zero bits, then 64 bits; ChaChaPoly little-endian, AESGCM big.
        return bytes(4) + count.to_bytes(8, "little" if self._chacha else "big")

    def encrypt(self, plain: bytes) -> bytes:
        assert self._cipher is not None
        # EncryptAndHash: the hash of all messages so far is authenticated as well.
        sealed = self._cipher.encrypt(self._nonce(), plain, self.hash)
        self.mix_hash(sealed)
        return sealed

    def decrypt(self, sealed: bytes) -> bytes:
        assert self._cipher is not None
        try:
            plain = self._cipher.decrypt(self._nonce(), sealed, self.hash)
        except InvalidTag as error:
            raise NoiseError("not made with the expected keys") from error
        self.mix_hash(sealed)
        return plain

    def split(self) -> tuple[bytes, bytes]:
        # Two keys, one for each direction, after the last message.
        return self._derive(b"")


class _NoiseHandshake:
    def __init__(self, prologue: bytes, responder_public: bytes, *, chacha: bool) -> None:
        self._state = _Symmetric(chacha=chacha)
        self._state.mix_hash(prologue)
        self._state.mix_hash(responder_public)

    def _mix(self, pair: KeyPair, public: bytes) -> None:
        """Mix the shared secret of two keys into the chaining key."""
        try:
            shared = pair.exchange(public)
        except ValueError as error:
            raise NoiseError("a public key that no honest host has") from error
        self._state.mix_key(shared)

    @property
    def hash(self) -> bytes:
        return self._state.hash

    def split(self) -> tuple[bytes, bytes]:
        return self._state.split()


class Initiator(_NoiseHandshake):
    def __init__(
        self, me: KeyPair, ephemeral: KeyPair, server: bytes, prologue: bytes, *, chacha: bool
    ) -> None:
        super().__init__(prologue, server, chacha=chacha)
        self._me, self._ephemeral, self._server = me, ephemeral, server

    def write(self, payload: bytes) -> bytes:
        """Return message 1; NoiseError: the responder's key is no key."""
        # -> e, es, s, ss
        self._state.mix_hash(self._ephemeral.public)
        self._mix(self._ephemeral, self._server)
        sealed_static = self._state.encrypt(self._me.public)
        self._mix(self._me, self._server)
        return self._ephemeral.public + sealed_static + self._state.encrypt(payload)

    def read(self, message: bytes) -> bytes:
        """Return the payload of message 2; NoiseError: altered, or of another static key."""
        if len(message) < SECOND_OVERHEAD:
            raise NoiseError("cut short")
        # <- e, ee, se
        ephemeral = message[:KEY_BYTES]
        self._state.mix_hash(ephemeral)
        self._mix(self._ephemeral, ephemeral)
        self._mix(self._me, ephemeral)
        return self._state.decrypt(message[KEY_BYTES:])


class Responder(_NoiseHandshake):
    def __init__(self, me: KeyPair, prologue: bytes, *, chacha: bool) -> None:
        super().__init__(prologue, me.public, chacha=chacha)
        self._me = me
        self._theirs = b""
        self.peer = b""

    def read(self, message: bytes) -> bytes:
        """Return the payload of message 1 and set `peer`; NoiseError: altered, or for another key."""
        if len(message) < FIRST_OVERHEAD:
            raise NoiseError("cut short")
        # -> e, es, s, ss
        self._theirs = message[:KEY_BYTES]
        self._state.mix_hash(self._theirs)
        self._mix(self._me, self._theirs)
        end = KEY_BYTES + KEY_BYTES + TAG_BYTES
        peer = self._state.decrypt(message[KEY_BYTES:end])
        self._mix(self._me, peer)
        payload = self._state.decrypt(message[end:])
        self.peer = peer
        return payload

    def write(self, ephemeral: KeyPair, payload: bytes) -> bytes:
        """Return message 2; NoiseError: the initiator's keys are no keys."""
        # <- e, ee, se
        self._state.mix_hash(ephemeral.public)
        self._mix(ephemeral, self._theirs)
        self._mix(ephemeral, self.peer)
        return ephemeral.public + self._state.encrypt(payload)

"""Signatures of datagrams, Ed25519 (RFC 8032) over a text that says what is signed, and freshness. Pure.

A receiver remembers the latest time of each signer, and refuses what is not later, or not of the present.
What answers a question carries the question's nonce besides, so that it is no use to another one.
"""

from collections import OrderedDict
from typing import Final

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import (
    Ed25519PrivateKey,
    Ed25519PublicKey,
)

from cedos.limits import TokenBucket

PUBLIC_BYTES: Final = 32
SIGNATURE_BYTES: Final = 64
# The largest accepted difference between the clocks of two hosts.
WINDOW_S: Final = 60.0
_SIGNERS: Final = 1024


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


class SendTimes:
    """The times in a host's own datagrams, microseconds: each is later than the one before."""

    def __init__(self) -> None:
        self._last_us = 0

    def next_time(self, now_s: float) -> int:
        self._last_us = max(self._last_us + 1, int(now_s * 1e6))
        return self._last_us


class AddressBuckets:
    """The datagrams that each address of the link may have verified: a few, and then two a second.

    Anyone can send forgeries, from an address or a few.
    """

    _MOST: Final = 64

    def __init__(self) -> None:
        self._buckets: OrderedDict[tuple[str, int], TokenBucket] = OrderedDict()

    def take(self, source: tuple[str, int, int], now_s: float) -> bool:
        """Return whether a datagram of a socket (address, port, interface) may be verified."""
        address, _, interface = source
        host = address, interface
        if host not in self._buckets:
            self._buckets[host] = TokenBucket(2, 4, now_s)
            if len(self._buckets) > self._MOST:
                self._buckets.popitem(last=False)
        self._buckets.move_to_end(host)
        return self._buckets[host].take(now_s)


class Freshness:
    """The latest time of each signer. When it is full of present ones, a new signer is refused."""

    def __init__(self) -> None:
        self._latest_us: OrderedDict[bytes, int] = OrderedDict()

    def take(self, signer: bytes, sent_us: int, now_s: float) -> bool:
        """Return whether a verified datagram is new, and remember it."""
        now_us = int(now_s * 1e6)
        window_us = int(WINDOW_S * 1e6)
        if abs(now_us - sent_us) > window_us or sent_us <= self._latest_us.get(signer, -1):
            return False
        # Forget signers whose latest datagram could no longer be replayed.
        while self._latest_us:
            oldest = next(iter(self._latest_us))
            if self._latest_us[oldest] >= now_us - window_us:
                break
            del self._latest_us[oldest]
        if signer not in self._latest_us and len(self._latest_us) >= _SIGNERS:
            return False
        self._latest_us[signer] = sent_us
        self._latest_us.move_to_end(signer)
        return True

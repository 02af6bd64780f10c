"""The credentials that prove a flow, 123 bytes however long it sleeps, and the locators that name it.

DTP and D2TP send flow id and host id in clear, so an observer of two networks sees one device move. A
locator is the flow id encrypted under a key that follows from the issuer's static key. It needs no
table and survives a restart. Each successful resumption brings the next one.
"""

import hmac
import struct
from dataclasses import dataclass, field
from typing import Final

from cedos.session.protocol.crypto import KEY_BYTES, KeyPair, Random, Suite, expand
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
        return salt + self._mask(salt, flow_id)

    def read(self, locator: bytes) -> bytes:
        """Return the flow's id. Any bytes give one."""
        return self._mask(locator[:_SALT_BYTES], locator[_SALT_BYTES:])

    def _mask(self, salt: bytes, flow_id: bytes) -> bytes:
        # XOR with a keyed hash of a fresh salt; the same operation gives the id back.
        mask = int.from_bytes(hmac.digest(self._key, salt, "sha256")[:FLOW_ID_BYTES], "big")
        return (mask ^ int.from_bytes(flow_id, "big")).to_bytes(FLOW_ID_BYTES, "big")


_PACKED: Final = struct.Struct(f">{FLOW_ID_BYTES}s{KEY_BYTES}s{KEY_BYTES}s{LOCATOR_BYTES}s6s6sHB")
CREDENTIALS_BYTES: Final = _PACKED.size
# The slice of a record that holds the other end's key.
PEER_KEY: Final = slice(FLOW_ID_BYTES + KEY_BYTES, FLOW_ID_BYTES + 2 * KEY_BYTES)
LAST_ATTEMPT: Final = (1 << 48) - 1
_WINDOW: Final = 16  # attempts may arrive out of order: joins over several networks at once


@dataclass(slots=True)
class Credentials:
    """An end's part of a flow's identity; shared by the flow and its handshakes.

    `attempt` counts this end's resumptions and joins, `seen` is the highest of the other end's, with
    the 16 before it in `window`. Values lost in a crash cost one more exchange, never safety.
    """

    flow_id: bytes
    secret: bytes = field(repr=False)
    peer_key: bytes
    suite: Suite
    locator: bytes = bytes(LOCATOR_BYTES)
    attempt: int = 0
    seen: int = 0
    window: int = 0

    def next_attempt(self) -> int:
        self.attempt += 1
        return self.attempt

    def is_new(self, attempt: int) -> bool:
        """Return whether the other end's attempt was not seen before: a replay gets no answer."""
        if attempt > self.seen:
            return True
        behind = self.seen - attempt
        return 0 < behind <= _WINDOW and not self.window >> (behind - 1) & 1

    def note(self, attempt: int) -> None:
        # Bit k - 1 of the window stands for attempt `seen` - k. A new highest attempt shifts all of them,
        # and marks the old highest one.
        if attempt > self.seen:
            ahead = attempt - self.seen
            passed = (self.window << 1 | 1) << (ahead - 1) if ahead <= _WINDOW else 0
            self.window = passed & (1 << _WINDOW) - 1
            self.seen = attempt
        else:
            self.window |= 1 << (self.seen - attempt - 1)

    def mac(self, what: str, *parts: bytes) -> bytes:
        """Return a proof of the flow's secret over some bytes; `what` keeps the uses apart."""
        key = expand(self.secret, "resumption proof")
        return hmac.digest(key, what.encode() + b"\0" + b"".join(parts), "sha256")

    def to_bytes(self) -> bytes:
        """Return the credentials as bytes. They are secret: only the owner may read such a file."""
        return _PACKED.pack(
            self.flow_id, self.secret, self.peer_key, self.locator,
            self.attempt.to_bytes(6, "big"), self.seen.to_bytes(6, "big"), self.window, self.suite,
        )  # fmt: skip

    @classmethod
    def from_bytes(cls, packed: bytes) -> "Credentials":
        """Return the credentials in bytes. ValueError: wrong length, or an unknown suite."""
        if len(packed) != CREDENTIALS_BYTES:
            raise ValueError(f"{len(packed)} bytes where credentials have {CREDENTIALS_BYTES}")
        flow_id, secret, peer_key, locator, attempt, seen, window, suite = _PACKED.unpack(packed)
        return cls(
            flow_id, secret, peer_key, Suite(suite), locator,
            int.from_bytes(attempt, "big"), int.from_bytes(seen, "big"), window,
        )  # fmt: skip

"""What a flow keeps to prove itself again: 123 bytes, however long it sleeps."""

import hmac
import struct
from dataclasses import dataclass, field
from typing import Final

from cedos.session.protocol.crypto import KEY_BYTES, Suite, expand
from cedos.session.protocol.handshake.messages import FLOW_ID_BYTES, LOCATOR_BYTES

_PACKED: Final = struct.Struct(f">{FLOW_ID_BYTES}s{KEY_BYTES}s{KEY_BYTES}s{LOCATOR_BYTES}s6s6sHB")
CREDENTIALS_BYTES: Final = _PACKED.size
PEER_KEY: Final = slice(FLOW_ID_BYTES + KEY_BYTES, FLOW_ID_BYTES + 2 * KEY_BYTES)
"""Where the other end's key lies in a record."""
LAST_ATTEMPT: Final = (1 << 48) - 1
_WINDOW: Final = 16  # attempts may arrive out of order: joins over several networks at once


@dataclass(slots=True)
class Credentials:
    """One end's part of a flow's identity; shared by the flow and its handshakes.

    `attempt` counts this end's resumptions and joins, `seen` is the highest of the other end's, with the
    16 before it in `window`. Values lost in a crash cost one exchange more, never safety.
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
        """Whether the other end's attempt has not been seen before: a replay is not answered."""
        if attempt > self.seen:
            return True
        behind = self.seen - attempt
        return 0 < behind <= _WINDOW and not self.window >> (behind - 1) & 1

    def note(self, attempt: int) -> None:
        if attempt > self.seen:
            ahead = attempt - self.seen
            passed = (self.window << 1 | 1) << (ahead - 1) if ahead <= _WINDOW else 0
            self.window = passed & (1 << _WINDOW) - 1
            self.seen = attempt
        else:
            self.window |= 1 << (self.seen - attempt - 1)

    def mac(self, what: str, *parts: bytes) -> bytes:
        """Proof of the flow's secret over some bytes; `what` keeps the uses apart."""
        key = expand(self.secret, "resumption proof")
        return hmac.digest(key, what.encode() + b"\0" + b"".join(parts), "sha256")

    def to_bytes(self) -> bytes:
        """Secret: files with them are for their owner alone."""
        return _PACKED.pack(
            self.flow_id, self.secret, self.peer_key, self.locator,
            self.attempt.to_bytes(6, "big"), self.seen.to_bytes(6, "big"), self.window, self.suite,
        )  # fmt: skip

    @classmethod
    def from_bytes(cls, packed: bytes) -> "Credentials":
        """ValueError: not so many bytes, or an unknown suite."""
        if len(packed) != CREDENTIALS_BYTES:
            raise ValueError(f"{len(packed)} bytes where credentials have {CREDENTIALS_BYTES}")
        flow_id, secret, peer_key, locator, attempt, seen, window, suite = _PACKED.unpack(packed)
        return cls(
            flow_id, secret, peer_key, Suite(suite), locator,
            int.from_bytes(attempt, "big"), int.from_bytes(seen, "big"), window,
        )  # fmt: skip

"""The outcome of a handshake: a step, an opened connection, or a failure."""

from dataclasses import dataclass, field
from enum import Enum, IntEnum
from typing import Protocol

from cedos.session.protocol.crypto import Suite, host_id
from cedos.session.protocol.handshake.credentials import Credentials
from cedos.session.protocol.handshake.messages import MessageKind


class ConnectionKind(IntEnum):
    RESUME = 0  # the dialling end has no other path: the older ones are dead
    JOIN = 1  # a further path beside those that live
    NEW = 2  # the flow's first


class FailureKind(Enum):
    LOST_STATE = "lost-state"  # the peer has no such flow (any more)
    REFUSED = "refused"
    WRONG_KEY = "wrong-key"
    VERSION = "version"
    BUSY = "busy"
    GARBLED = "garbled"
    TIMED_OUT = "timed-out"


@dataclass(frozen=True, slots=True)
class Failure:
    """The end of a path; only an authenticated failure may end a flow.

    `retry_after_s` 0: the peer named no time.
    """

    kind: FailureKind
    why: str
    authenticated: bool = False
    retry_after_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Opened:
    """A connection whose peer has proved who it is. `deadline_s` is what was granted; 0: none."""

    kind: ConnectionKind
    credentials: Credentials
    deadline_s: int = 0

    @property
    def host_id(self) -> bytes:
        return host_id(self.credentials.peer_key)


@dataclass(frozen=True, slots=True)
class Secrets:
    suite: Suite
    send: bytes = field(repr=False)
    receive: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class HandshakeStep:
    """The reaction to a message: send a reply, use the connection, or give it up.

    With `secrets` the messages are over and the initiator confirms; `opened` is `unproven` until
    then.
    """

    reply: bytes = b""
    opened: Opened | None = None
    secrets: Secrets | None = None
    failure: Failure | None = None
    unproven: bool = False


class Handshake(Protocol):
    def receive(self, kind: MessageKind, body: bytes, now: float) -> HandshakeStep:
        """Take the next message; raises MalformedError or NoiseError for a wrong one."""


def failure(
    kind: FailureKind,
    why: str,
    *,
    reply: bytes = b"",
    proved: bool = False,
    retry_after_s: float = 0.0,
) -> HandshakeStep:
    """Return a failure; `proved`: it is the peer's own word."""
    return HandshakeStep(reply=reply, failure=Failure(kind, why, proved, retry_after_s))

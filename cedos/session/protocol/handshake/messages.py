"""The bytes of the handshakes.

Every message, and every record after them, has a header of 4 bytes: the length of what follows
(24 bits, big-endian) and its kind.
"""

import struct
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Final

from cedos.session.protocol.crypto import KEY_BYTES, TAG_BYTES

HEADER: Final = struct.Struct(">I")  # length << 8 | kind
HEADER_BYTES: Final = 4
MAGIC: Final = b"ceds"
LOWEST_VERSION: Final = 1
VERSION: Final = 1
FLOW_ID_BYTES: Final = 16
LOCATOR_BYTES: Final = 28
COOKIE_BYTES: Final = 20
CHALLENGE_BYTES: Final = 16
MAC_BYTES: Final = 32
CONFIRM_BYTES: Final = 16
GREETING_BYTES: Final = 320  # no message of a handshake is longer


class MessageKind(IntEnum):
    SET_UP = 1
    SET_UP_ANSWER = 2
    RESUME = 3
    RESUME_ANSWER = 4
    STALE = 5
    COOKIE = 6
    NOTICE = 7
    CONFIRM = 8
    RECORD = 16


class Notice(IntEnum):
    """A hint without proof: it ends a connection, never a flow."""

    UNKNOWN_FLOW = 1
    WRONG_KEY = 2
    VERSION = 3
    BUSY = 4


class Purpose(IntEnum):
    OPEN = 0  # a new flow
    ASK = 1  # is this flow still known? Asked where a resumption was answered with a hint


class Status(IntEnum):
    """The acceptor's answer to a set-up, with proof."""

    ACCEPTED = 0
    DUPLICATE = 1  # another flow has this id: try again with another one
    LIMIT = 2
    NOT_ALLOWED = 3
    KNOWN = 4
    GONE = 5


class MalformedError(Exception):
    pass


# Layouts of the messages, in the order in which a handshake uses them.
_HELLO = struct.Struct(">4sBBB")  # magic, version, noise or kind, length of the cookie
_OFFER = struct.Struct(f">{FLOW_ID_BYTES}sBIB{LOCATOR_BYTES}s")
_GRANT = struct.Struct(f">BIBH{LOCATOR_BYTES}s")
_RESUME = struct.Struct(f">{LOCATOR_BYTES}s6s{CHALLENGE_BYTES}s{KEY_BYTES}s")
_ANSWER = struct.Struct(f">{CHALLENGE_BYTES}s{KEY_BYTES}s")
_STALE = struct.Struct(f">6s{MAC_BYTES}s")
_NOTICE = struct.Struct(">BBBH")
BOX_BYTES: Final = LOCATOR_BYTES + TAG_BYTES


def frame(kind: MessageKind, body: bytes) -> bytes:
    return HEADER.pack(len(body) << 8 | kind) + body


def _fields(layout: struct.Struct, body: bytes, name: str, behind: int = 0) -> tuple[Any, ...]:
    """Return the fields of a message with `behind` bytes after them; MalformedError: another length."""
    if len(body) != layout.size + behind:
        raise MalformedError(f"{name} of a strange length")
    return layout.unpack_from(body)


@dataclass(frozen=True, slots=True)
class Hello:
    """An initiator's first message: SET_UP (detail: 1 = ChaChaPoly) or RESUME (detail: 1 = join).

    The cookie is outside of what is hashed, so that the same hello can be sent again with one.
    """

    detail: int
    content: bytes
    # The cookie is not hashed: the hello with a cookie is the same hello.
    cookie: bytes = b""
    version: int = VERSION

    @property
    def bound(self) -> bytes:
        return MAGIC + bytes((self.version, self.detail))

    def pack(self) -> bytes:
        head = _HELLO.pack(MAGIC, self.version, self.detail, len(self.cookie))
        return head + self.cookie + self.content

    @classmethod
    def unpack(cls, body: bytes) -> "Hello":
        if len(body) < _HELLO.size:
            raise MalformedError("a hello that is cut short")
        magic, version, detail, cookie_bytes = _HELLO.unpack_from(body)
        if magic != MAGIC:
            raise MalformedError("it does not speak this protocol")
        if cookie_bytes not in (0, COOKIE_BYTES):
            raise MalformedError("a cookie of a strange length")
        end = _HELLO.size + cookie_bytes
        return cls(detail, body[end:], body[_HELLO.size : end], version)


@dataclass(frozen=True, slots=True)
class Offer:
    """The opener's request, encrypted in message 1 of the set-up. A deadline of 0: none."""

    flow_id: bytes
    purpose: int
    deadline_s: int
    hardware_aes: bool
    clear: bool
    locator: bytes  # by which the acceptor could dial back

    def pack(self) -> bytes:
        flags = self.hardware_aes | self.clear << 1
        return _OFFER.pack(self.flow_id, self.purpose, self.deadline_s, flags, self.locator)

    @classmethod
    def unpack(cls, payload: bytes) -> "Offer":
        flow_id, purpose, deadline_s, flags, locator = _fields(_OFFER, payload, "an offer")
        return cls(flow_id, purpose, deadline_s, bool(flags & 1), bool(flags & 2), locator)


@dataclass(frozen=True, slots=True)
class Granted:
    """The acceptor's grant, encrypted in message 2 of the set-up."""

    status: int
    deadline_s: int = 0
    suite: int = 0
    retry_after_s: int = 0
    locator: bytes = bytes(LOCATOR_BYTES)

    def pack(self) -> bytes:
        return _GRANT.pack(
            self.status, self.deadline_s, self.suite, min(self.retry_after_s, 0xFFFF), self.locator
        )

    @classmethod
    def unpack(cls, payload: bytes) -> "Granted":
        return cls(*_fields(_GRANT, payload, "a grant"))


@dataclass(frozen=True, slots=True)
class Resume:
    locator: bytes
    attempt: int
    challenge: bytes
    ephemeral: bytes

    def pack(self) -> bytes:
        return _RESUME.pack(
            self.locator, self.attempt.to_bytes(6, "big"), self.challenge, self.ephemeral
        )

    @classmethod
    def unpack(cls, content: bytes) -> tuple["Resume", bytes]:
        fields = _fields(_RESUME, content, "a resumption", MAC_BYTES)
        locator, attempt, challenge, ephemeral = fields
        resume = cls(locator, int.from_bytes(attempt, "big"), challenge, ephemeral)
        return resume, content[_RESUME.size :]


def pack_answer(challenge: bytes, ephemeral: bytes) -> bytes:
    """Return the acceptor's half of a resumption, without MAC and box."""
    return _ANSWER.pack(challenge, ephemeral)


def unpack_answer(body: bytes) -> tuple[bytes, bytes, bytes, bytes]:
    """Return the bytes under the MAC, the ephemeral key in them, the MAC, and the box.

    MalformedError: it is no answer.
    """
    _, ephemeral = _fields(_ANSWER, body, "an answer", MAC_BYTES + BOX_BYTES)
    mac_end = _ANSWER.size + MAC_BYTES
    return body[: _ANSWER.size], ephemeral, body[_ANSWER.size : mac_end], body[mac_end:]


def pack_stale(highest: int, mac: bytes) -> bytes:
    return _STALE.pack(highest.to_bytes(6, "big"), mac)


def unpack_stale(body: bytes) -> tuple[int, bytes]:
    highest, mac = _fields(_STALE, body, "a stale-message")
    return int.from_bytes(highest, "big"), mac


def pack_notice(notice: Notice, retry_after_s: float = 0.0) -> bytes:
    """Return a hint with the versions that this end speaks."""
    return _NOTICE.pack(notice, LOWEST_VERSION, VERSION, min(int(retry_after_s * 1000), 0xFFFF))


def unpack_notice(body: bytes) -> tuple[int, int, int, float]:
    """Return the hint, lowest and highest version, and seconds to wait. Raises MalformedError."""
    notice, lowest, highest, retry_ms = _fields(_NOTICE, body, "a notice")
    return notice, lowest, highest, retry_ms / 1000

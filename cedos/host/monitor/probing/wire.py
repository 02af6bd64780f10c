"""The messages between probes and `cedos probe-server`. Pure.

Every datagram ends with a tag: HMAC-SHA256 of all bytes before it, under a key that both ends hold, cut
to 16 bytes. A train begins with a round trip for which the server remembers nothing:

    client                      server
    HELLO   53 bytes      ->            without the right key the server does not answer
                          <-    COOKIE  53 bytes, made of the source address and the time
    ASK                   ->            the cookie has come back, so the source address is real
                          <-    TRAIN ..., or REFUSED

A peer without the key gets no answer at all. A spoofed source address gets at most as many bytes as were
sent in its name. A repeated ASK begins nothing, since a session is used once. `session` is the client's
own random number, so that an answer to an earlier probe does not fit. Each direction has its own message
types, so that no attacker can send a message back to its sender.
"""

import hmac
import struct
from dataclasses import dataclass
from enum import IntEnum
from ipaddress import IPv4Address, IPv6Address

KEY_BYTES = 32
SESSION_BYTES = 16
COOKIE_BYTES = 16
TAG_BYTES = 16
# A cookie is accepted for one to two times this long.
COOKIE_LIFE_S = 5.0
MIN_PACKETS, MAX_PACKETS = 2, 200
# Payload of a train's datagrams; the largest one fits an Ethernet frame over IPv6, too.
MIN_PACKET_BYTES, MAX_PACKET_BYTES = 64, 1452
_MAGIC = b"cPb2"
_HEAD = struct.Struct("!4sB16s")
_COOKIE = struct.Struct("!16s")
_ASK = struct.Struct("!16sHH")
_REFUSED = struct.Struct("!BI")
_TRAIN = struct.Struct("!HH")


class RefusalReason(IntEnum):
    SOURCE_LIMIT = 1
    TOTAL_LIMIT = 2
    TOO_LARGE = 3
    BUSY = 4


REASONS = {
    RefusalReason.SOURCE_LIMIT: "this source's rate limit is used up",
    RefusalReason.TOTAL_LIMIT: "the server's rate limit is used up",
    RefusalReason.TOO_LARGE: "it is larger than the server allows",
    RefusalReason.BUSY: "the server has too much to do",
}


@dataclass(frozen=True, slots=True)
class ProbeHello:
    session: bytes


@dataclass(frozen=True, slots=True)
class Cookie:
    """A cookie, which the client repeats from the same address."""

    session: bytes
    cookie: bytes


@dataclass(frozen=True, slots=True)
class TrainRequest:
    """A request for a train of `packets` datagrams with `packet_bytes` of payload each."""

    session: bytes
    cookie: bytes
    packets: int
    packet_bytes: int


@dataclass(frozen=True, slots=True)
class Refused:
    """A refusal; the client may try again after `retry_s`."""

    session: bytes
    reason: RefusalReason
    retry_s: float


@dataclass(frozen=True, slots=True)
class TrainPacket:
    """Datagram `index` of `packets`, padded to the size that was asked for."""

    session: bytes
    index: int
    packets: int


Message = ProbeHello | Cookie | TrainRequest | Refused | TrainPacket

_TYPES: tuple[type[Message], ...] = (ProbeHello, Cookie, TrainRequest, Refused, TrainPacket)
_NUMBERS = {kind: number for number, kind in enumerate(_TYPES, 1)}


def tag(key: bytes, data: bytes) -> bytes:
    """Return the tag that proves that a holder of the key wrote `data`."""
    return hmac.digest(key, data, "sha256")[:TAG_BYTES]


def encode(message: Message, key: bytes, size_bytes: int = 0) -> bytes:
    """Return a message as it is sent, padded to `size_bytes` if that is more (for trains)."""
    head = _HEAD.pack(_MAGIC, _NUMBERS[type(message)], message.session)
    plain = head + _body(message)
    plain += bytes(max(0, size_bytes - len(plain) - TAG_BYTES))
    return plain + tag(key, plain)


def _body(message: Message) -> bytes:
    match message:
        case ProbeHello():
            return bytes(COOKIE_BYTES)
        case Cookie():
            return _COOKIE.pack(message.cookie)
        case TrainRequest():
            return _ASK.pack(message.cookie, message.packets, message.packet_bytes)
        case Refused():
            return _REFUSED.pack(message.reason, min(round(message.retry_s * 1e3), 0xFFFFFFFF))
        case TrainPacket():
            return _TRAIN.pack(message.index, message.packets)


def decode(data: bytes, key: bytes) -> Message | None:
    """Return the message; None if it is truncated, not signed with the key, or invalid."""
    if len(data) < _HEAD.size + TAG_BYTES:
        return None
    plain, signed = data[:-TAG_BYTES], data[-TAG_BYTES:]
    magic, number, session = _HEAD.unpack_from(plain)
    if magic != _MAGIC or not 1 <= number <= len(_TYPES):
        return None
    if not hmac.compare_digest(tag(key, plain), signed):
        return None
    try:
        return _parsed(_TYPES[number - 1], session, plain[_HEAD.size :])
    except (struct.error, ValueError, IndexError):
        return None


def _parsed(kind: type[Message], session: bytes, body: bytes) -> Message | None:
    if kind is Cookie:
        return Cookie(session, *_COOKIE.unpack(body))
    if kind is TrainRequest:
        return TrainRequest(session, *_ASK.unpack(body))
    if kind is Refused:
        reason, retry_ms = _REFUSED.unpack(body)
        return Refused(session, RefusalReason(reason), retry_ms / 1e3)
    if kind is TrainPacket:
        index, packets = _TRAIN.unpack_from(body)
        return TrainPacket(session, index, packets) if index < packets else None
    return ProbeHello(session) if len(body) == COOKIE_BYTES else None


def cookie(
    secret: bytes, source: IPv4Address | IPv6Address, port: int, session: bytes, now_s: float
) -> bytes:
    """Return the cookie that a server with this secret gives this source and session now."""
    return _cookie(secret, source, port, session, int(now_s // COOKIE_LIFE_S))


def _cookie(
    secret: bytes, source: IPv4Address | IPv6Address, port: int, session: bytes, period: int
) -> bytes:
    data = source.packed + struct.pack("!HQ", port, period) + session
    return hmac.digest(secret, data, "sha256")[:COOKIE_BYTES]


def cookie_holds(
    given: bytes,
    secret: bytes,
    source: IPv4Address | IPv6Address,
    port: int,
    session: bytes,
    now_s: float,
) -> bool:
    """Return whether `given` is the cookie of this source and session, of this period or the last."""
    period = int(now_s // COOKIE_LIFE_S)
    return any(
        hmac.compare_digest(given, _cookie(secret, source, port, session, each))
        for each in (period, period - 1)
        if each >= 0
    )

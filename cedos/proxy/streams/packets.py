"""What travels in a session's datagrams: programs' packets, and questions for names. Pure.

One datagram is a kind (1 byte), a number (4 bytes, big endian) and what its kind needs
(docs/stream-protocol.md, "Datagrams"). One that is none raises ValueError, and ends the session.
"""

import struct
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

from cedos.proxy.streams.frames import LONGEST_HOST

LARGEST_PACKET: Final = 65_000
_HEAD: Final = struct.Struct("!BI")
_PACKET: Final = struct.Struct("!BIHB")
PACKET, QUESTION, ANSWER, UNDELIVERED = range(1, 5)


class Obstacle(IntEnum):
    """Why a packet has not been delivered."""

    NO_WAY = 1
    """The gateway has no route there: it lacks IPv6, say."""

    REFUSED = 2
    """The host has said that nobody listens at that port."""


@dataclass(frozen=True, slots=True)
class ProgramPacket:
    """Data that goes to, or came from, a host's port, by the association `stream`."""

    stream: int
    host: str
    port: int
    data: bytes

    def pack(self) -> bytes:
        host = self.host.encode()
        return _PACKET.pack(PACKET, self.stream, self.port, len(host)) + host + self.data


@dataclass(frozen=True, slots=True)
class UndeliveredPacket:
    """What the association `stream` has sent to a host's port was not delivered."""

    stream: int
    host: str
    port: int
    why: Obstacle

    def pack(self) -> bytes:
        host = self.host.encode()
        head = _PACKET.pack(UNDELIVERED, self.stream, self.port, len(host))
        return head + host + bytes([self.why])


@dataclass(frozen=True, slots=True)
class NameQuestion:
    """A message of DNS for the gateway's resolver."""

    number: int
    message: bytes

    def pack(self) -> bytes:
        return _HEAD.pack(QUESTION, self.number) + self.message


@dataclass(frozen=True, slots=True)
class NameAnswer:
    """What it answered to the question of that number; empty: nothing."""

    number: int
    message: bytes

    def pack(self) -> bytes:
        return _HEAD.pack(ANSWER, self.number) + self.message


Packet = ProgramPacket | UndeliveredPacket | NameQuestion | NameAnswer


def parse(datagram: bytes) -> Packet:
    """What is in a datagram. ValueError: nothing that is known."""
    try:
        kind, number = _HEAD.unpack_from(datagram)
        if kind in (PACKET, UNDELIVERED):
            _, _, port, length = _PACKET.unpack_from(datagram)
            begins = _PACKET.size + length
            host = datagram[_PACKET.size : begins].decode("ascii")
            if not port or not 0 < len(host) <= LONGEST_HOST or len(host) != length:
                raise ValueError("a packet without a host or a port")
            if kind == PACKET:
                return ProgramPacket(number, host, port, datagram[begins:])
            (why,) = struct.unpack("!B", datagram[begins:])
            return UndeliveredPacket(number, host, port, Obstacle(why))
    except (struct.error, UnicodeDecodeError) as error:
        raise ValueError(f"not a packet: {error}") from None
    if kind == QUESTION:
        return NameQuestion(number, datagram[_HEAD.size :])
    if kind == ANSWER:
        return NameAnswer(number, datagram[_HEAD.size :])
    raise ValueError(f"there are no packets of kind {kind}")

"""The stream protocol's frames and datagrams (docs/stream-protocol.md), to bytes and back. Pure.

A frame is a message of the session: its kind (1 byte), its stream (4 bytes, big endian) and what its kind
needs. A datagram of the session has a kind and a number likewise, and is in time or lost. Bytes that are
neither raise ValueError, and end the session.
"""

import re
import struct
from enum import IntEnum
from http import HTTPStatus
from typing import Final

from msgspec import Struct

LONGEST_HOST: Final = 253
LONGEST_DETAILS: Final = 1024
_HEAD: Final = struct.Struct("!BI")
_OPEN: Final = struct.Struct("!BIBHB")
_ASSOCIATE: Final = struct.Struct("!BIB")
USERS: Final = 1 << 8
_REFUSED: Final = struct.Struct("!BIHB")
_OFFSET: Final = struct.Struct("!BIQ")
# An error type stands in a header's line of the proxy's answer (RFC 9209, 2.3).
_ERROR_TYPE: Final = re.compile("[a-z_]+")
OPEN, ACCEPTED, REFUSED, DATA, END, RESET, WINDOW, ASSOCIATE = range(1, 9)


class OpenStream(Struct, frozen=True, gc=False):
    """A request for a connection to `host` (a name, or an address without brackets).

    `user`: a number below `USERS`, by which the gateway tells the users of a host from one another.
    """

    stream: int
    host: str
    port: int
    user: int = 0

    def pack(self) -> bytes:
        host = self.host.encode()
        return _OPEN.pack(OPEN, self.stream, self.user, self.port, len(host)) + host


class StreamAccepted(Struct, frozen=True, gc=False):
    """The answer that the connection stands."""

    stream: int

    def pack(self) -> bytes:
        return _HEAD.pack(ACCEPTED, self.stream)


class StreamRefused(Struct, frozen=True, gc=False):
    """A refusal, and why: a status of HTTP, an error type of RFC 9209, and words."""

    stream: int
    status: HTTPStatus
    kind: str
    details: str

    def pack(self) -> bytes:
        kind = self.kind.encode()
        details = self.details.encode()[:LONGEST_DETAILS]
        return _REFUSED.pack(REFUSED, self.stream, self.status, len(kind)) + kind + details


class StreamBytes(Struct, frozen=True, gc=False):
    """Bytes of a stream, the first of them at `offset`."""

    stream: int
    offset: int
    data: bytes | memoryview

    def pack(self) -> bytes:
        return b"".join((self.head(self.stream, self.offset), self.data))

    @staticmethod
    def head(stream: int, offset: int) -> bytes:
        """Return the bytes in front of the data."""
        return _OFFSET.pack(DATA, stream, offset)


class StreamEnd(Struct, frozen=True, gc=False):
    """The end of one direction; `offset`: how many bytes there were."""

    stream: int
    offset: int

    def pack(self) -> bytes:
        return _OFFSET.pack(END, self.stream, self.offset)


class StreamReset(Struct, frozen=True, gc=False):
    """A break of the stream, in both directions."""

    stream: int

    def pack(self) -> bytes:
        return _HEAD.pack(RESET, self.stream)


class StreamWindow(Struct, frozen=True, gc=False):
    """A window: the receiver may send up to `limit` bytes in all."""

    stream: int
    limit: int

    def pack(self) -> bytes:
        return _OFFSET.pack(WINDOW, self.stream, self.limit)


class OpenAssociation(Struct, frozen=True, gc=False):
    """A request for an association (docs/stream-protocol.md, "Datagrams")."""

    stream: int
    user: int = 0  # as that of `OpenStream`

    def pack(self) -> bytes:
        return _ASSOCIATE.pack(ASSOCIATE, self.stream, self.user)


Frame = (
    OpenStream
    | OpenAssociation
    | StreamAccepted
    | StreamRefused
    | StreamBytes
    | StreamEnd
    | StreamReset
    | StreamWindow
)


def parse(message: bytes | memoryview) -> Frame:
    """Parse a message. ValueError: it is no frame."""
    try:
        kind, stream = _HEAD.unpack_from(message)
        if kind == DATA:  # fast path: its bytes are not copied
            offset = _OFFSET.unpack_from(message)[2]
            frame: Frame = StreamBytes(stream, offset, memoryview(message)[_OFFSET.size :])
        else:
            frame = _parse(kind, stream, bytes(message))
    except (struct.error, UnicodeDecodeError) as error:
        raise ValueError(f"not a frame of streams: {error}") from None
    if stream == 0:
        raise ValueError("there is no stream 0")
    return frame


def _parse(kind: int, stream: int, data: bytes) -> Frame:
    exact = _HEAD.size
    frame: Frame
    if kind == OPEN:
        _, _, user, port, length = _OPEN.unpack_from(data)
        exact = _OPEN.size + length
        host = data[_OPEN.size : exact].decode("ascii")
        if not port or not 0 < len(host) <= LONGEST_HOST:
            raise ValueError("a connection is asked for without a host or a port")
        frame = OpenStream(stream, host, port, user)
    elif kind == REFUSED:
        _, _, status, length = _REFUSED.unpack_from(data)
        begins = _REFUSED.size + length
        if len(data) < begins or len(data) > begins + LONGEST_DETAILS:
            raise ValueError("a refusal of another length than it says")
        words = data[_REFUSED.size : begins].decode("ascii"), data[begins:].decode("ascii")
        if status < HTTPStatus.BAD_REQUEST or not _ERROR_TYPE.fullmatch(words[0]):
            raise ValueError(f"a refusal with status {status} or an error type that is none")
        return StreamRefused(stream, HTTPStatus(status), *words)
    elif kind in (END, WINDOW):
        number = _OFFSET.unpack_from(data)[2]
        exact = _OFFSET.size
        frame = StreamEnd(stream, number) if kind == END else StreamWindow(stream, number)
    elif kind == ASSOCIATE:
        exact = _ASSOCIATE.size
        frame = OpenAssociation(stream, _ASSOCIATE.unpack_from(data)[2])
    elif kind in (ACCEPTED, RESET):
        frame = StreamAccepted(stream) if kind == ACCEPTED else StreamReset(stream)
    else:
        raise ValueError(f"there are no frames of kind {kind}")
    if len(data) != exact:
        raise ValueError("a frame of another length than its kind has")
    return frame


LARGEST_PACKET: Final = 65_000
_PACKET: Final = struct.Struct("!BIHB")
PACKET, QUESTION, ANSWER, UNDELIVERED, SHARE_QUESTION, SHARE_ANSWER = range(1, 7)


class Obstacle(IntEnum):
    """A reason why a packet was not delivered."""

    NO_WAY = 1
    """The gateway has no route there, such as one for IPv6."""

    REFUSED = 2
    """The host answered that the port is closed (ICMP)."""


class ProgramPacket(Struct, frozen=True, gc=False):
    """Data to or from a host's port, by the association `stream`."""

    stream: int
    host: str
    port: int
    data: bytes

    def pack(self) -> bytes:
        host = self.host.encode()
        return _PACKET.pack(PACKET, self.stream, self.port, len(host)) + host + self.data


class UndeliveredPacket(Struct, frozen=True, gc=False):
    """The report that a packet of the association `stream` was not delivered."""

    stream: int
    host: str
    port: int
    why: Obstacle

    def pack(self) -> bytes:
        host = self.host.encode()
        head = _PACKET.pack(UNDELIVERED, self.stream, self.port, len(host))
        return head + host + bytes([self.why])


class GatewayQuestion(Struct, frozen=True, gc=False):
    """A message of DNS for the gateway's resolver, or one about shared bandwidth.

    `share`: as `cedos.apps.sharing.questions` has it.
    """

    number: int
    message: bytes
    share: bool = False

    def pack(self) -> bytes:
        return _HEAD.pack(SHARE_QUESTION if self.share else QUESTION, self.number) + self.message


class GatewayAnswer(Struct, frozen=True, gc=False):
    """The answer to the question of that number; empty: there was none."""

    number: int
    message: bytes
    share: bool = False

    def pack(self) -> bytes:
        return _HEAD.pack(SHARE_ANSWER if self.share else ANSWER, self.number) + self.message


Packet = ProgramPacket | UndeliveredPacket | GatewayQuestion | GatewayAnswer


def parse_packet(datagram: bytes) -> Packet:
    """Parse a datagram. ValueError: its kind is unknown."""
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
    message = datagram[_HEAD.size :]
    if kind in (QUESTION, SHARE_QUESTION):
        return GatewayQuestion(number, message, kind == SHARE_QUESTION)
    if kind in (ANSWER, SHARE_ANSWER):
        return GatewayAnswer(number, message, kind == SHARE_ANSWER)
    raise ValueError(f"there are no packets of kind {kind}")

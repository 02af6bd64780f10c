"""Handshakes in progress: ClientHellos that take more than one packet, over TCP or QUIC.

A QUIC client's Initial packets (versions 1 and 2; RFC 9000, 9001, 9369) are protected with keys
that any observer can derive from the first one's destination connection id. A hello may be spread
over several datagrams, in pieces of any order. After a Retry or a version negotiation the client
begins again, with other keys; its later Initials go to a connection id that the server chose, with
the keys of the first.
"""

import hmac
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from cedos.host.profiler.frame import CapturedPacket
from cedos.host.profiler.tls import MAX_BYTES, ClientHello, Reassembly, read_handshake, read_records
from cedos.model import FlowKey

VERSION_1, VERSION_2 = 0x00000001, 0x6B3343CF

_MAX_CONNECTION_ID_BYTES = 20
_MAX_PACKETS = 8  # in one datagram, or in several that offload has not yet split
_MAX_TRIES = 48  # decryptions for one flow
_MAX_FRAMES = 256  # that are read of a packet; Chromium's has some thirty
_MAX_ATTEMPTS = 4  # of the client: after a retry, a version negotiation
_SAMPLE_BYTES = 16
_PADDING, _PING, _ACK, _ACK_ECN, _CRYPTO = 0x00, 0x01, 0x02, 0x03, 0x06


class _Version(NamedTuple):
    initial_type: int
    salt: bytes
    label: str


_VERSIONS = {
    VERSION_1: _Version(0, bytes.fromhex("38762cf7f55934b34d179ae6a4c80cadccbb7f0a"), "quic "),
    VERSION_2: _Version(1, bytes.fromhex("0dede3def700a6db819381be6e269dcbf9bd2ed9"), "quicv2 "),
}


class InitialKeys(NamedTuple):
    """The keys that protect a client's Initial packets (RFC 9001, 5.2)."""

    key: bytes
    iv: bytes
    header: bytes


class InitialPacket(NamedTuple):
    """An Initial packet as it lies in a datagram; `number_at` is where its packet number begins."""

    version: int
    destination: bytes
    packet: bytes
    number_at: int


def client_keys(version: int, destination: bytes) -> InitialKeys:
    _, salt, label = _VERSIONS[version]
    initial = hmac.digest(salt, destination, "sha256")
    secret = _expand(initial, "client in", 32)
    return InitialKeys(
        _expand(secret, f"{label}key", 16),
        _expand(secret, f"{label}iv", 12),
        _expand(secret, f"{label}hp", 16),
    )


def initials(datagram: bytes) -> Iterator[InitialPacket]:
    """Yield the Initial packets of a datagram, whatever else it holds; stops at malformed data."""
    at = 0
    for _ in range(_MAX_PACKETS):
        try:
            first = datagram[at]
            if not first & 0x80:
                return  # a short header goes on to the datagram's end; zeros are padding
            version = int.from_bytes(datagram[at + 1 : at + 5], "big")
            known = _VERSIONS.get(version)
            if known is None:
                return  # version negotiation, or what we cannot read
            end = at + 6 + datagram[at + 5]
            destination = datagram[at + 6 : end]
            if len(destination) > _MAX_CONNECTION_ID_BYTES:
                return
            end += 1 + datagram[end]
            kind = (first >> 4 & 3) - known.initial_type & 3
            if kind == 3:
                return  # a retry has no length
            if kind == 0:
                token, end = _integer(datagram, end)
                end += token
            length, end = _integer(datagram, end)
        except IndexError:
            return
        if kind == 0 and end + length <= len(datagram):
            yield InitialPacket(version, destination, datagram[at : end + length], end - at)
        at = end + length


class InitialReader:
    def __init__(self) -> None:
        self.complete = False
        self._tries = 0
        self._attempts: list[_InitialAttempt] = []

    def feed(self, datagram: bytes) -> ClientHello | None:
        """Read a datagram from the client; return the hello as far as known, None if nothing is new."""
        told = None
        for packet in initials(datagram):
            if self.complete:
                break
            attempt, frames = self._decrypt(packet)
            if attempt is None or not attempt.take(frames):
                continue
            hello = read_handshake(attempt.stream.prefix)
            if hello is not None:
                told = hello
                self.complete = hello.complete
        return told

    def _decrypt(self, packet: InitialPacket) -> "tuple[_InitialAttempt | None, bytes]":
        """Return the attempt and the frames of a packet: a known attempt, newest first, or a new one."""
        for attempt in reversed(self._attempts):
            frames = self._try(attempt.opener(packet.version), packet)
            if frames is not None:
                return attempt, frames
        if len(self._attempts) < _MAX_ATTEMPTS:
            attempt = _InitialAttempt(packet.destination)
            frames = self._try(attempt.opener(packet.version), packet)
            if frames is not None:
                self._attempts.append(attempt)
                return attempt, frames
        return None, b""

    def _try(self, opener: "_PacketOpener", packet: InitialPacket) -> bytes | None:
        self._tries += 1
        return opener.open(packet) if self._tries <= _MAX_TRIES else None


class _InitialAttempt:
    """A client's try to connect: one connection id, and the stream that its hello goes over."""

    def __init__(self, destination: bytes) -> None:
        self.stream = Reassembly()
        self._destination = destination
        self._openers: dict[int, _PacketOpener] = {}

    def opener(self, version: int) -> "_PacketOpener":
        """By version: a client may change it on the way (RFC 9368)."""
        if version not in self._openers:
            self._openers[version] = _PacketOpener(client_keys(version, self._destination))
        return self._openers[version]

    def take(self, frames: bytes) -> bool:
        """Add the CRYPTO frames; return whether the stream has grown at its front."""
        grown = False
        for offset, piece in crypto_frames(frames):
            grown |= self.stream.add(offset, piece)
        return grown


def crypto_frames(frames: bytes) -> Iterator[tuple[int, bytes]]:
    """Offset and bytes of the CRYPTO frames of an Initial packet, as far as it makes sense."""
    at = 0
    try:
        for _ in range(_MAX_FRAMES):
            if at >= len(frames):
                return
            kind = frames[at]
            if kind == _PADDING:
                at = len(frames) - len(frames[at:].lstrip(b"\0"))
            elif kind == _PING:
                at += 1
            elif kind == _CRYPTO:
                offset, at = _integer(frames, at + 1)
                length, at = _integer(frames, at)
                if offset < MAX_BYTES:
                    yield offset, frames[at : at + length]
                at += length
            elif kind in (_ACK, _ACK_ECN):
                _, at = _integer(frames, at + 1)
                _, at = _integer(frames, at)
                ranges, at = _integer(frames, at)
                for _ in range(1 + 2 * ranges + (3 if kind == _ACK_ECN else 0)):
                    _, at = _integer(frames, at)
            else:
                return  # a close, or nothing that belongs here
    except IndexError:
        return


def _integer(data: bytes, at: int) -> tuple[int, int]:
    """Return a variable-length integer (RFC 9000, 16) and its end; IndexError if it is cut."""
    first = data[at]
    end = at + (1 << (first >> 6))
    if end > len(data):
        raise IndexError
    if end == at + 1:
        return first, end
    return int.from_bytes(data[at:end], "big") & (1 << 8 * (end - at) - 2) - 1, end


def _expand(secret: bytes, label: str, size: int) -> bytes:
    """Return HKDF-Expand-Label without context (RFC 8446, 7.1), of at most 32 bytes."""
    full = b"tls13 " + label.encode()
    info = size.to_bytes(2, "big") + bytes([len(full)]) + full + b"\0\x01"
    return hmac.digest(secret, info, "sha256")[:size]


class _PacketOpener:
    """Takes the protection off packets, given their keys."""

    def __init__(self, keys: InitialKeys) -> None:
        # Imported with the first Initial: the daemon's start does not wait for it.
        from cryptography.exceptions import InvalidTag  # noqa: PLC0415
        from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes  # noqa: PLC0415
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM  # noqa: PLC0415

        # One block at a time, each a mask of its own (RFC 9001, 5.4.3).
        self._header = Cipher(algorithms.AES(keys.header), modes.ECB())  # noqa: S305
        self._payload = AESGCM(keys.key)
        self._iv = int.from_bytes(keys.iv, "big")
        self._refused = InvalidTag

    def open(self, packet: InitialPacket) -> bytes | None:
        """Return the packet's frames; None if it was not protected with these keys."""
        raw, at = packet.packet, packet.number_at
        sample = raw[at + 4 : at + 4 + _SAMPLE_BYTES]
        if len(sample) < _SAMPLE_BYTES:
            return None
        mask = self._header.encryptor().update(sample)
        first = raw[0] ^ mask[0] & 0x0F
        size = (first & 3) + 1
        number = bytes(a ^ b for a, b in zip(raw[at : at + size], mask[1:], strict=False))
        nonce = (self._iv ^ int.from_bytes(number, "big")).to_bytes(12, "big")
        associated = bytes([first]) + raw[1:at] + number
        try:
            return self._payload.decrypt(nonce, raw[at + size :], associated)
        except self._refused:
            return None


_NUMBERS = 1 << 32
# The most handshakes that are read at once, each of at most 16 KB. Beyond it the oldest is
# dropped.
_MAX_HANDSHAKES = 256


# The bytes that are parsed again for all pieces of a hello together.
#
# Each piece is read with all before it. From a client that sends tiny pieces, they are read only
# once they have doubled.
_READ_BYTES = 32 * MAX_BYTES


@dataclass(slots=True)
class _HelloUnderWay:
    """`segment` is TCP's number of the first byte; `left_bytes` may still be read piece by piece."""

    segment: int
    stream: Reassembly
    left_bytes: int = _READ_BYTES
    due_bytes: int = 0

    def read(self) -> ClientHello | None:
        """Return the hello as far as known, if that may be more than the last time."""
        known = self.stream.prefix
        if self.left_bytes <= 0 and len(known) < self.due_bytes:
            return None
        self.left_bytes -= len(known)
        self.due_bytes = 2 * len(known)
        return read_records(known)


class Handshakes:
    """Reads each flow's hello as its packets come; each answers what is known by then, if new."""

    def __init__(self) -> None:
        self._segments: OrderedDict[FlowKey, _HelloUnderWay] = OrderedDict()
        self._initials: OrderedDict[FlowKey, InitialReader] = OrderedDict()

    def __len__(self) -> int:
        return len(self._segments) + len(self._initials)

    def begin(self, captured: CapturedPacket) -> ClientHello | None:
        under_way = _HelloUnderWay(captured.segment, Reassembly())
        under_way.stream.add(0, captured.payload)
        hello = under_way.read()
        self._segments.pop(captured.key, None)
        if hello is None or not hello.complete:
            self._segments[captured.key] = under_way
            if len(self._segments) > _MAX_HANDSHAKES:
                self._segments.popitem(last=False)
        return hello

    def proceed(self, captured: CapturedPacket) -> ClientHello | None:
        """Read a TCP segment that may continue a hello; return the hello, None if there is none."""
        begun = self._segments.get(captured.key)
        if begun is None:
            return None
        offset = (captured.segment - begun.segment) % _NUMBERS
        if offset >= MAX_BYTES or not begun.stream.add(offset, captured.payload):
            return None
        hello = begun.read()
        if hello is not None and hello.complete:
            del self._segments[captured.key]
        return hello

    def initial(self, captured: CapturedPacket) -> ClientHello | None:
        reader = self._initials.get(captured.key)
        if reader is None:
            reader = self._initials[captured.key] = InitialReader()
            if len(self._initials) > _MAX_HANDSHAKES:
                self._initials.popitem(last=False)
        return None if reader.complete else reader.feed(captured.payload)

    def forget(self, key: FlowKey) -> None:
        self._segments.pop(key, None)
        self._initials.pop(key, None)

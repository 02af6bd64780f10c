"""TLS ClientHellos: the server name in them (RFC 8446, 4.1.2; RFC 6066, 3), and their reassembly.

With Encrypted ClientHello (RFC 9849) the name is the outer one, that of the front that many sites
share. Browsers send the extension to every server, mostly filled with noise: so a name is believed,
and `ech` says that it may be a front's.

`Reassembly` puts pieces of a byte stream in order: late, repeated, overlapping or hostile ones, in
bounded memory.
"""

from typing import NamedTuple

from cedos.host.profiler.http import server_name

_HANDSHAKE, _CLIENT_HELLO = 22, 1
_SERVER_NAME, _ENCRYPTED_CLIENT_HELLO = 0, 0xFE0D
_HOST_NAME, _OUTER = 0, 0
_RECORD_HEADER_BYTES = 5
_HANDSHAKE_HEADER_BYTES = 4
_FIXED_BYTES = _HANDSHAKE_HEADER_BYTES + 2 + 32  # version and random


class ClientHello(NamedTuple):
    """`ech`: the real name may be another one, encrypted; `complete`: all of the hello was there."""

    name: str | None
    ech: bool
    complete: bool


def read_records(data: bytes) -> ClientHello | None:
    """Read a hello in one or more TLS records, cut anywhere; None if it is not one."""
    if len(data) < _RECORD_HEADER_BYTES or data[0] != _HANDSHAKE or data[1] != 3:
        return None
    return read_handshake(_join_records(data))


def read_handshake(data: bytes) -> ClientHello | None:
    """Read a hello without records, as it goes over QUIC; None if it is not one, or not yet."""
    if len(data) < _HANDSHAKE_HEADER_BYTES or data[0] != _CLIENT_HELLO:
        return None
    end = _HANDSHAKE_HEADER_BYTES + int.from_bytes(data[1:4], "big")
    name, ech, complete = None, False, len(data) >= end
    hello = data[:end]
    try:
        at = _FIXED_BYTES
        at += 1 + hello[at]  # session id
        at += 2 + (hello[at] << 8 | hello[at + 1])  # cipher suites
        at += 1 + hello[at]  # compression methods
        at += 2  # length of all extensions: what counts is where the bytes end
        while at < len(hello):
            kind = hello[at] << 8 | hello[at + 1]
            length = hello[at + 2] << 8 | hello[at + 3]
            at += 4
            if kind == _SERVER_NAME:
                name = _first_name(hello[at : at + length])
            elif kind == _ENCRYPTED_CLIENT_HELLO:
                ech = hello[at] == _OUTER
            at += length
    except IndexError:
        pass  # cut, or lying about its lengths: what was read until there counts
    return ClientHello(name, ech, complete)


def _join_records(data: bytes) -> bytes:
    """Return the handshake bytes of all records."""
    parts, at = [], 0
    while at + _RECORD_HEADER_BYTES < len(data) and data[at] == _HANDSHAKE:
        length = data[at + 3] << 8 | data[at + 4]
        at += _RECORD_HEADER_BYTES
        parts.append(data[at : at + length])
        at += length
    return b"".join(parts)


def _first_name(extension: bytes) -> str | None:
    """Return the host name of a server_name extension: a list with at most one of each kind."""
    if len(extension) < 5 or extension[2] != _HOST_NAME:
        return None
    length = extension[3] << 8 | extension[4]
    name = extension[5 : 5 + length]
    return server_name(name) if len(name) == length else None


# The length up to which a stream is read: post-quantum ClientHellos have 2 KB.
MAX_BYTES = 16_384

_MAX_WAITING = 64  # pieces behind a gap; Chromium cuts its hello into about twenty, shuffled


class Reassembly:
    """The contiguous beginning (`prefix`) of a stream whose pieces come in any order."""

    __slots__ = ("_waiting", "prefix")

    def __init__(self) -> None:
        self.prefix = b""
        self._waiting: dict[int, bytes] = {}

    def add(self, offset: int, piece: bytes) -> bool:
        """Add a piece; return whether the prefix has grown. Of repeated bytes the first copy counts."""
        end = min(offset + len(piece), MAX_BYTES)
        if end <= len(self.prefix):
            return False
        if offset > len(self.prefix):
            self._keep(offset, piece[: end - offset])
            return False
        self.prefix += piece[len(self.prefix) - offset : end - offset]
        for start in sorted(self._waiting):
            if start > len(self.prefix):
                break
            self.prefix += self._waiting.pop(start)[len(self.prefix) - start :]
        return True

    def _keep(self, offset: int, piece: bytes) -> None:
        known = self._waiting.pop(offset, b"")
        waiting = sum(len(each) for each in self._waiting.values())
        if len(known) >= len(piece):
            piece = known
        if len(self._waiting) < _MAX_WAITING and waiting + len(piece) <= MAX_BYTES:
            self._waiting[offset] = piece
        elif known:
            self._waiting[offset] = known

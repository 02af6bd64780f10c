"""The server name in a TLS ClientHello (RFC 8446, 4.1.2; RFC 6066, 3).

With Encrypted ClientHello (RFC 9849) the name is the outer one, that of the front that many sites share.
Browsers send the extension to every server, mostly filled with noise: so a name is believed, and `ech`
says that it may be a front's.
"""

from typing import NamedTuple

from cedos.profiler.names import server_name

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
    """Reads a hello in one or more TLS records, cut anywhere; None where it is not one."""
    if len(data) < _RECORD_HEADER_BYTES or data[0] != _HANDSHAKE or data[1] != 3:
        return None
    return read_handshake(_joined(data))


def read_handshake(data: bytes) -> ClientHello | None:
    """Reads a hello without records, as it goes over QUIC; None where it is not one, or not yet."""
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


def _joined(data: bytes) -> bytes:
    """The handshake bytes of all records."""
    parts, at = [], 0
    while at + _RECORD_HEADER_BYTES < len(data) and data[at] == _HANDSHAKE:
        length = data[at + 3] << 8 | data[at + 4]
        at += _RECORD_HEADER_BYTES
        parts.append(data[at : at + length])
        at += length
    return b"".join(parts)


def _first_name(extension: bytes) -> str | None:
    """The host name in a server_name extension: a list with at most one of each kind."""
    if len(extension) < 5 or extension[2] != _HOST_NAME:
        return None
    length = extension[3] << 8 | extension[4]
    name = extension[5 : 5 + length]
    return server_name(name) if len(name) == length else None

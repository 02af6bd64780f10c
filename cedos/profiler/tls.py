"""The server name in a TLS ClientHello (RFC 8446, 4.1.2; RFC 6066, 3).

With Encrypted ClientHello this is the outer name, that of the front that many sites share: sizes are
then learned for the front.
"""

from cedos.profiler.names import server_name

_HANDSHAKE, _CLIENT_HELLO = 22, 1
_SERVER_NAME_EXTENSION, _HOST_NAME = 0, 0
_RECORD_HEADER_BYTES = 5
_FIXED_BYTES = 4 + 2 + 32  # handshake header, version, random


def parse_client_hello(payload: bytes) -> str | None:
    """The name that the client asks for; None where there is none or it lies beyond a cut.

    `payload` may end anywhere. An address given as a name counts as a name.
    """
    if len(payload) < _RECORD_HEADER_BYTES or payload[0] != _HANDSHAKE or payload[1] != 3:
        return None
    hello = _handshake(payload)
    if len(hello) < _FIXED_BYTES or hello[0] != _CLIENT_HELLO:
        return None
    try:
        at = _FIXED_BYTES
        at += 1 + hello[at]  # session id
        at += 2 + (hello[at] << 8 | hello[at + 1])  # cipher suites
        at += 1 + hello[at]  # compression methods
        at += 2  # length of all extensions: what counts is where the bytes end
        while True:
            kind = hello[at] << 8 | hello[at + 1]
            length = hello[at + 2] << 8 | hello[at + 3]
            at += 4
            if kind == _SERVER_NAME_EXTENSION:
                return _first_name(hello[at : at + length])
            at += length
    except IndexError:
        return None


def _handshake(payload: bytes) -> bytes:
    """The handshake bytes of all records, joined: a hello may be spread over several."""
    length = payload[3] << 8 | payload[4]
    hello = payload[_RECORD_HEADER_BYTES : _RECORD_HEADER_BYTES + length]
    at = _RECORD_HEADER_BYTES + length
    while length and at + _RECORD_HEADER_BYTES < len(payload) and payload[at] == _HANDSHAKE:
        length = payload[at + 3] << 8 | payload[at + 4]
        at += _RECORD_HEADER_BYTES
        hello += payload[at : at + length]
        at += length
    return hello


def _first_name(extension: bytes) -> str | None:
    """The host name in a server_name extension: a list with at most one of each kind."""
    if len(extension) < 5 or extension[2] != _HOST_NAME:
        return None
    length = extension[3] << 8 | extension[4]
    name = extension[5 : 5 + length]
    return server_name(name) if len(name) == length else None

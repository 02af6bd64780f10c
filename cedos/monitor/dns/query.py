"""DNS questions for one IPv4 address; what comes back is judged by `dns_answer`.

Format: RFC 1035, section 4.
"""

import struct

_HEADER = struct.Struct("!6H")
_QUESTION_END = struct.Struct("!2H")
_A, _IN = 1, 1
_RECURSE = 0x0100
_MAX_LABEL, _MAX_NAME = 63, 253


def query(number: int, name: str) -> bytes:
    """The question for the IPv4 address of `name`; ValueError where that is no valid name."""
    labels = name.rstrip(".").split(".")
    try:
        encoded = [label.encode("ascii") for label in labels]
    except UnicodeEncodeError as error:
        raise ValueError(f"{name!r}: ASCII (punycode) would be right") from error
    if len(name.rstrip(".")) > _MAX_NAME or any(not 0 < len(e) <= _MAX_LABEL for e in encoded):
        raise ValueError(f"{name!r} is no domain name")
    body = b"".join(bytes((len(label),)) + label for label in encoded) + b"\0"
    return _HEADER.pack(number, _RECURSE, 1, 0, 0, 0) + body + _QUESTION_END.pack(_A, _IN)

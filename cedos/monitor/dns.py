"""DNS messages as far as timing a lookup needs: one A question, and whether an answer fits it.

Format: RFC 1035, section 4.
"""

import struct
from dataclasses import dataclass

_HEADER = struct.Struct("!6H")
_QUESTION_END = struct.Struct("!2H")
_A, _IN = 1, 1
_RESPONSE, _RECURSE = 0x8000, 0x0100
_MAX_LABEL, _MAX_NAME = 63, 253


@dataclass(frozen=True, slots=True)
class Answer:
    """A response's identity: number, error code (0 = none), and the question it repeats."""

    number: int
    code: int
    name: str
    kind: int


def query(number: int, name: str) -> bytes:
    """The question for the IPv4 address of `name`.

    Raises:
        ValueError: no valid name.
    """
    labels = name.rstrip(".").split(".")
    try:
        encoded = [label.encode("ascii") for label in labels]
    except UnicodeEncodeError as error:
        raise ValueError(f"{name!r}: ASCII (punycode) would be right") from error
    if len(name.rstrip(".")) > _MAX_NAME or any(not 0 < len(e) <= _MAX_LABEL for e in encoded):
        raise ValueError(f"{name!r} is no domain name")
    body = b"".join(bytes((len(label),)) + label for label in encoded) + b"\0"
    return _HEADER.pack(number, _RECURSE, 1, 0, 0, 0) + body + _QUESTION_END.pack(_A, _IN)


def parse(data: bytes) -> Answer | None:
    """The identity of a response; None for anything that is not a response to one question."""
    if len(data) < _HEADER.size:
        return None
    number, flags, questions, _, _, _ = _HEADER.unpack_from(data)
    if not flags & _RESPONSE or questions != 1:
        return None
    labels, offset = [], _HEADER.size
    while offset < len(data) and data[offset]:
        length = data[offset]
        # The first name of a message has nothing to point back to, so compression is a mistake here.
        if length > _MAX_LABEL or offset + 1 + length > len(data):
            return None
        labels.append(data[offset + 1 : offset + 1 + length].decode("latin-1").lower())
        offset += 1 + length
    offset += 1
    if offset + _QUESTION_END.size > len(data):
        return None
    kind, _ = _QUESTION_END.unpack_from(data, offset)
    return Answer(number, flags & 0xF, ".".join(labels), kind)


def answers(data: bytes, number: int, name: str) -> bool:
    """Whether a datagram answers the question `number` for `name`, be it with an error."""
    found = parse(data)
    return (
        found is not None
        and found.number == number
        and found.kind == _A
        and found.name == name.rstrip(".").lower()
    )

"""What a stub has to know of DNS messages: what is asked, answers of its own (RFC 1035, 6891). Pure."""

import struct
from dataclasses import dataclass
from typing import Final

from cedos.monitor.dns.message import asked, parse

LARGEST_BYTES: Final = 65_535
PLAIN_BYTES: Final = 512
_HEADER: Final = struct.Struct("!6H")
_RESPONSE, _OPERATION, _TRUNCATED = 0x8000, 0x7800, 0x0200
_RECURSE, _RECURSES = 0x0100, 0x0080
SERVER_FAILED: Final = 2
NO_SUCH_NAME: Final = 3
_OPT: Final = 41
_TRANSFERS: Final = frozenset({251, 252})  # whole zones: nothing that a program asks a resolver for


@dataclass(frozen=True, slots=True)
class AskedName:
    """`number` is the asker's own; `ends` where the question does; `takes_bytes`: by UDP."""

    number: int
    name: str
    kind: int
    ends: int
    takes_bytes: int


def read(message: bytes) -> AskedName | None:
    """The one question in a message; None: it is none, or one that no stub is asked."""
    found = asked(message)
    if found is None or len(message) > LARGEST_BYTES or found[1] in _TRANSFERS:
        return None
    number, flags, _, answers, authorities, extra = _HEADER.unpack_from(message)
    if flags & _OPERATION or answers or authorities:
        return None
    ends = _end_of_name(message, _HEADER.size) + 4
    return AskedName(number, *found, ends, _takes(message, ends, extra))


def numbered(message: bytes, number: int) -> bytes:
    """The same message under another number."""
    return struct.pack("!H", number) + message[2:]


def answers(message: bytes, question: AskedName, number: int) -> bool:
    """Whether a message is an answer to a question that was sent under `number`."""
    reply = parse(message)
    return reply is not None and (reply.number, reply.name, reply.kind) == (
        number,
        question.name,
        question.kind,
    )


def is_truncated(message: bytes) -> bool:
    return len(message) >= _HEADER.size and bool(_HEADER.unpack_from(message)[1] & _TRUNCATED)


def error_of(message: bytes) -> int:
    """A response's error code, 0: none."""
    return int(_HEADER.unpack_from(message)[1]) & 15


def truncated(message: bytes, question: AskedName) -> bytes:
    """An answer that does not fit, without its records: the asker comes again by TCP."""
    number, flags = _HEADER.unpack_from(message)[:2]
    return _HEADER.pack(number, flags | _TRUNCATED, 1, 0, 0, 0) + message[12 : question.ends]


def failed(message: bytes, question: AskedName) -> bytes:
    """That nobody answered: the asker need not wait."""
    flags = _RESPONSE | _RECURSES | (_HEADER.unpack_from(message)[1] & _RECURSE) | SERVER_FAILED
    return _HEADER.pack(question.number, flags, 1, 0, 0, 0) + message[12 : question.ends]


def _end_of_name(message: bytes, at: int) -> int:
    """Where the question's name ends; `asked` has seen that it does."""
    while message[at]:
        if message[at] >= 0xC0:
            return at + 2
        at += 1 + message[at]
    return at + 1


def _takes(message: bytes, at: int, records: int) -> int:
    """What the asker takes by UDP, as its OPT record says (RFC 6891, 6.2.3)."""
    # (OPT's name is the root: one byte.)
    if records and len(message) >= at + 11 and message[at] == 0:
        kind, size = struct.unpack_from("!HH", message, at + 1)
        if kind == _OPT:
            return max(PLAIN_BYTES, int(size))
    return PLAIN_BYTES

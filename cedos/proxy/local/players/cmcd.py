"""What a player says of itself with each request: Common Media Client Data (CTA-5004). Pure.

In fields `CMCD-Request`, `CMCD-Object`, `CMCD-Status`, `CMCD-Session`, or as the query argument `CMCD`:
keys with values, by commas. What does not follow the grammar is no word at all.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final
from urllib.parse import unquote_to_bytes

_LONGEST: Final = 4_096
_MOST_KEYS: Final = 64
_LONGEST_ID: Final = 64
_FIELDS: Final = frozenset((b"cmcd-request", b"cmcd-object", b"cmcd-status", b"cmcd-session"))
PRECEDING: Final = "i"
"""Of `PlayerWord.kind`: what precedes segments, and plays nothing itself."""

_PAIR = re.compile(
    rb"[ \t]*([A-Za-z0-9.-]{1,64})"
    rb'(?:=(?:"((?:[^"\\\x00-\x1f\x7f]|\\["\\])*)"|([^\x00-\x20\x7f",;=]+)))?[ \t]*(?:,|\Z)'
)
_ARGUMENT = re.compile(rb"[?&]CMCD=([^&#]*)")
_INTEGER = re.compile(rb"[0-9]{1,9}")
_DECIMAL = re.compile(rb"[0-9]{1,3}(?:\.[0-9]{1,6})?")


@dataclass(frozen=True, slots=True)
class PlayerWord:
    """None: it does not say.

    `buffer_s` is what it has in store of this type of object, as it asks, and `duration_s` how long what
    it asks for plays; `rate`: how fast it plays. `urgent`: it starts, or stands still.
    """

    session: str | None = None
    kind: str | None = None
    buffer_s: float | None = None
    bitrate_bps: float | None = None
    duration_s: float | None = None
    rate: float = 1.0
    urgent: bool = False


def parse(target: bytes, fields: Sequence[tuple[bytes, bytes]]) -> PlayerWord | None:
    """A request's; None: it says nothing, or nothing that can be understood."""
    said = [value for name, value in fields if name.lower() in _FIELDS]
    if not said:
        argument = _ARGUMENT.search(target)
        if argument is None or len(argument[1]) > 3 * _LONGEST:
            return None
        said = [unquote_to_bytes(argument[1])]
    values: dict[bytes, tuple[bytes | None, bytes | None]] = {}
    for text in said:
        if not _take(text, values):
            return None
    try:
        return _word(values)
    except ValueError:
        return None


def without(target: bytes) -> bytes:
    """A request's target as it is however often, and with whatever word, it is made."""
    return _ARGUMENT.sub(b"", target)


def _take(text: bytes, values: dict[bytes, tuple[bytes | None, bytes | None]]) -> bool:
    """Adds its pairs (key: string, token); False: they are none, or too many, or one is there twice."""
    if not 0 < len(text) <= _LONGEST or text.rstrip(b" \t").endswith(b","):
        return False
    at = 0
    while at < len(text):
        pair = _PAIR.match(text, at)
        if pair is None or pair[1] in values or len(values) >= _MOST_KEYS:
            return False
        values[pair[1]] = (pair[2], pair[3])
        at = pair.end()
    return True


def _word(values: dict[bytes, tuple[bytes | None, bytes | None]]) -> PlayerWord:
    """ValueError: a key has a value of another type than it may."""
    buffer_ms, duration_ms = _integer(values, b"bl"), _integer(values, b"d")
    kbps = _integer(values, b"br")
    rate = _typed(values, b"pr", _DECIMAL)
    session, kind = values.get(b"sid"), values.get(b"ot")
    if session is not None and (session[0] is None or len(session[0]) > _LONGEST_ID):
        raise ValueError("sid")
    if kind is not None and (kind[1] is None or len(kind[1]) > 2):
        raise ValueError("ot")
    return PlayerWord(
        None if session is None or session[0] is None else session[0].decode("latin-1"),
        None if kind is None or kind[1] is None else kind[1].decode("latin-1"),
        None if buffer_ms is None else buffer_ms / 1e3,
        1e3 * kbps if kbps else None,
        None if duration_ms is None else duration_ms / 1e3,
        float(rate) if rate is not None else 1.0,
        _flag(values, b"su") or _flag(values, b"bs"),
    )


def _integer(values: dict[bytes, tuple[bytes | None, bytes | None]], key: bytes) -> int | None:
    found = _typed(values, key, _INTEGER)
    return None if found is None else int(found)


def _typed(
    values: dict[bytes, tuple[bytes | None, bytes | None]], key: bytes, form: "re.Pattern[bytes]"
) -> bytes | None:
    value = values.get(key)
    if value is None:
        return None
    if value[1] is None or not form.fullmatch(value[1]):
        raise ValueError(key)
    return value[1]


def _flag(values: dict[bytes, tuple[bytes | None, bytes | None]], key: bytes) -> bool:
    """A key alone is true."""
    value = values.get(key)
    if value is None:
        return False
    if value[0] is not None or value[1] not in (None, b"true", b"false"):
        raise ValueError(key)
    return value[1] != b"false"

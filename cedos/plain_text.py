"""Text from elsewhere, as terminals, logs and pages may show it.

Names of files, networks, servers and programs may hold control letters that move the cursor, begin a line
or turn the direction of reading.
"""

import json
from typing import Any, Final

import msgspec

_PUT_IN_PLACE: Final = "\N{REPLACEMENT CHARACTER}"


def plain(text: str) -> str:
    """Return a text in one line, with a mark for each letter that does not print."""
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() else _PUT_IN_PLACE for each in text)


def plain_json(value: Any, *, indent: int = 0) -> str:
    """Return JSON in which what does not print is escaped; `indent` 0: in one line."""
    try:
        text = msgspec.json.encode(value, enc_hook=str).decode()
        text = msgspec.json.format(text, indent=indent) if indent else text
    except UnicodeEncodeError:  # a name that is not UTF-8: Python's `json` reads it back
        value = msgspec.to_builtins(value, enc_hook=str)
        text = json.dumps(value, indent=indent or None)
    return "".join(each if each.isprintable() or each == "\n" else _escaped(each) for each in text)


def _escaped(letter: str) -> str:
    units = letter.encode("utf-16-be")
    return "".join(f"\\u{units[at : at + 2].hex()}" for at in range(0, len(units), 2))

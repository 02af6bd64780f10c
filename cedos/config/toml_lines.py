"""The line of each key of a TOML text, for error messages, which tomllib does not tell.

The text must be valid. Elements of arrays and keys of inline tables have no line of their own.
"""

import re
import tomllib
from typing import Any

# A path into the parsed document: table keys, and indices into arrays.
Key = tuple[str | int, ...]

_HEADER = re.compile(r"\s*(\[\[?)([^\[\]]+)\]\]?\s*(?:#.*)?")
_LONG_STRING = re.compile(r'"""(?:[^\\]|\\.)*?"""|\'\'\'.*?\'\'\'', re.DOTALL)


def key_lines(text: str) -> dict[Key, int]:
    """Map keys of a valid TOML text to their lines, from 1.

    An implied table has the line that implies it.
    """
    lines: dict[Key, int] = {}
    last: dict[Key, int] = {}  # arrays of tables: the index of the last element so far
    table: Key = ()
    # What a string of several lines contains is no key.
    text = _LONG_STRING.sub(lambda found: "\n" * found[0].count("\n"), text)
    for number, line in enumerate(text.split("\n"), 1):
        if header := _HEADER.fullmatch(line):
            key = _within(_parts(header[2]), last)
            if not key:
                continue
            if header[1] == "[[":
                last[key] = last.get(key, -1) + 1
                key = (*key, last[key])
            table = key
        elif "=" in line and (parts := _parts(line.partition("=")[0])):
            key = (*table, *parts)
        else:
            continue
        # The table's own header is preferred to a header of a table inside it.
        for length in range(1, len(key)):
            lines.setdefault(key[:length], number)
        lines[key] = number
    return lines


def _within(key: Key, last: dict[Key, int]) -> Key:
    """Return the key with the index of the last element after each array of tables."""
    resolved: Key = ()
    for position, part in enumerate(key):
        resolved = (*resolved, part)
        if position < len(key) - 1 and resolved in last:
            resolved = (*resolved, last[resolved])
    return resolved


def _parts(dotted: str) -> Key:
    """Return the parts of a dotted key; none: the text is no key. tomllib knows the escapes."""
    try:
        value: Any = tomllib.loads(f"{dotted.strip()} = 0")
    except (tomllib.TOMLDecodeError, RecursionError):
        return ()
    parts: list[str] = []
    while isinstance(value, dict) and value:
        ((name, value),) = value.items()
        parts.append(name)
    return tuple(parts)

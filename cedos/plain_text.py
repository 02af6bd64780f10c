"""Text from elsewhere, as terminals, logs and pages may show it.

Names of files, networks, servers and programs may hold control letters that move the cursor, begin a line
or turn the direction of reading.
"""

import json
from math import floor, isfinite, log10
from typing import Any, Final

import msgspec

_PUT_IN_PLACE: Final = "\N{REPLACEMENT CHARACTER}"
_MOST_DECIMALS = 9


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
    return "".join(each if each.isprintable() or each == "\n" else _escape(each) for each in text)


def _escape(letter: str) -> str:
    units = letter.encode("utf-16-be")
    return "".join(f"\\u{units[at : at + 2].hex()}" for at in range(0, len(units), 2))


def round_figures(value: float, figures: int = 2) -> str:
    """Return a number with so many significant figures; a value too small to show is 0."""
    if value == 0.0 or not isfinite(value):
        return f"{value:g}"
    decimals = min(max(figures - 1 - floor(log10(abs(value))), 0), _MOST_DECIMALS)
    text = f"{value:.{decimals}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def lasting(time_s: float) -> str:
    """Return a duration such as `95 s`, `94 minutes`, `1.7 hours` or `26 days`."""
    for limit_s, divisor, unit in ((600.0, 1, "s"), (6000.0, 60, "minutes"), (2e5, 3600, "hours")):
        if time_s < limit_s:
            return f"{round_figures(time_s / divisor)} {unit}"
    return f"{round_figures(time_s / 86_400)} days"

"""The addresses of a DASH list's segments, told as one with a number or a time in it. Pure.

ISO/IEC 23009-1, 5.3.9.4.4.
"""

import re
from typing import Final

_IDENTIFIER = re.compile(r"\$(?:(RepresentationID)|(Bandwidth|Number|Time)(?:%0([0-9]{1,2})d)?)?\$")
_VARIABLES: Final = ("Number", "Time")
_WIDEST: Final = 20
_MOST_SIGNS: Final = 32
"""Of `$`, in an address with all that is before it: each representation's own has to be read."""

_DIGITS: Final = re.compile(r"[0-9]{1,20}")


def filled(media: str, representation_id: str, bandwidth: str) -> str:
    """With all that one list has once; what is left are numbers, times, and `$$` for `$`.

    ValueError: it is no template of these.
    """

    def value(match: re.Match[str]) -> str:
        if match[1]:
            return representation_id.replace("$", "$$")
        if match[2] == "Bandwidth":
            return f"{_whole(bandwidth):0{_width(match[3])}d}"
        return match[0]

    if media.count("$") > _MOST_SIGNS or "$" in _IDENTIFIER.sub("", media):
        raise ValueError("an identifier that is none")
    return _IDENTIFIER.sub(value, media)


class UrlTemplate:
    """Of one list, `filled`. It is never written out: a target is asked which number it has.

    ValueError: it has neither numbers nor times, or both.

    Attributes:
        by_time: what it has in it is a time, in the list's own units.
    """

    def __init__(self, text: str) -> None:
        if text.count("$") > _MOST_SIGNS:
            raise ValueError("too many variables")
        self._texts = [""]
        self._widths: list[int] = []
        names = set()
        at = 0
        for match in _IDENTIFIER.finditer(text):
            self._texts[-1] += text[at : match.start()]
            at = match.end()
            if match[2] is None:
                self._texts[-1] += "$"
                continue
            names.add(match[2])
            self._widths.append(_width(match[3]))
            self._texts.append("")
        self._texts[-1] += text[at:]
        if len(names) != 1 or not names < set(_VARIABLES):
            raise ValueError("no numbers, or no one kind of them")
        self.by_time = names == {"Time"}

    def value(self, target: str) -> int | None:
        """The number, or the time, with which it is that target; None: with none."""
        begin, end = len(self._texts[0]), len(target) - len(self._texts[-1])
        if len(self._widths) > 1:
            digits = _DIGITS.match(target, begin)
        else:
            digits = _DIGITS.fullmatch(target, begin, max(end, begin))
        if digits is None:
            return None
        value = int(digits[0])
        return value if self._written(value) == target else None

    def _written(self, value: int) -> str:
        numbers = (f"{value:0{width}d}" for width in self._widths)
        rest = zip(numbers, self._texts[1:], strict=True)
        return self._texts[0] + "".join(f"{number}{text}" for number, text in rest)


def _width(digits: str | None) -> int:
    width = 1 if digits is None else int(digits)
    if not 1 <= width <= _WIDEST:
        raise ValueError("a width that none has")
    return width


def _whole(digits: str) -> int:
    if not _DIGITS.fullmatch(digits):
        raise ValueError("no number")
    return int(digits)

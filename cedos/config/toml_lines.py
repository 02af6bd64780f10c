"""The line of each key of a TOML text, for error messages, which tomllib does not tell.

The text must be valid. The scanner skips values without checking them.
"""

import re
import tomllib

Key = tuple[str | int, ...]
"""A path into the parsed document: table keys, and indices into arrays."""

_BLANK = re.compile(r"(?:[ \t\r\n]|#[^\n]*)*")
_INLINE_BLANK = re.compile(r"[ \t]*")
_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")
_STRING = re.compile(
    r'"""(?:[^\\]|\\.)*?"""(?:"{0,2})'
    r"|'''.*?'''(?:'{0,2})"
    r'|"(?:[^"\\\n]|\\.)*"'
    r"|'[^'\n]*'",
    re.DOTALL,
)
_SCALAR = re.compile(r"[^,\]}#\n]+")


class _Scanner:
    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0
        self.lines: dict[Key, int] = {}
        self._tables: dict[Key, int] = {}  # arrays of tables: how many elements so far
        self._counted, self._line = 0, 1

    def scan(self) -> None:
        table: Key = ()
        while True:
            self._skip(_BLANK)
            if self.at >= len(self.text):
                return
            if self.text.startswith("[[", self.at):
                table = self._header(2)
            elif self.text.startswith("[", self.at):
                table = self._header(1)
            else:
                self._pair(table)

    def _here(self) -> int:
        self._line += self.text.count("\n", self._counted, self.at)
        self._counted = self.at
        return self._line

    def _skip(self, pattern: re.Pattern[str]) -> str:
        match = pattern.match(self.text, self.at)
        if match is None:
            return ""
        self.at = match.end()
        return match.group()

    def _header(self, brackets: int) -> Key:
        line = self._here()
        self.at += brackets
        key = self._within(self._dotted_key())
        if brackets == 2:
            index = self._tables.get(key, -1) + 1
            self._tables[key] = index
            self.lines.setdefault(key, line)
            key = (*key, index)
        self._note(key, line)
        self._skip(_INLINE_BLANK)
        self.at += brackets
        return key

    def _within(self, key: Key) -> Key:
        """Return the key with the index of the last element after each array of tables."""
        resolved: Key = ()
        for position, part in enumerate(key):
            resolved = (*resolved, part)
            if position < len(key) - 1 and resolved in self._tables:
                resolved = (*resolved, self._tables[resolved])
        return resolved

    def _note(self, key: Key, line: int) -> None:
        # The table's own header is preferred to a header of a table inside it.
        for length in range(1, len(key)):
            self.lines.setdefault(key[:length], line)
        self.lines[key] = line

    def _dotted_key(self) -> Key:
        parts: list[str] = []
        while True:
            self._skip(_INLINE_BLANK)
            if self.text[self.at] in "\"'":
                # tomllib knows the escapes.
                parts.append(tomllib.loads(f"key = {self._skip(_STRING)}")["key"])
            else:
                parts.append(self._skip(_BARE_KEY))
            self._skip(_INLINE_BLANK)
            if self.text[self.at] != ".":
                return tuple(parts)
            self.at += 1

    def _pair(self, table: Key) -> None:
        line = self._here()
        key = (*table, *self._dotted_key())
        self._note(key, line)
        self.at += 1  # the equals sign
        self._value(key)

    def _value(self, key: Key) -> None:
        self._skip(_INLINE_BLANK)
        first = self.text[self.at]
        if first in "\"'":
            self._skip(_STRING)
        elif first == "[":
            self._sequence(key, "]")
        elif first == "{":
            self._sequence(key, "}")
        else:
            self._skip(_SCALAR)

    def _sequence(self, key: Key, end: str) -> None:
        self.at += 1
        index = 0
        while True:
            self._skip(_BLANK)
            if self.text[self.at] == end:
                self.at += 1
                return
            if self.text[self.at] == ",":
                self.at += 1
            elif end == "}":
                self._pair(key)
            else:
                self._note((*key, index), self._here())
                self._value((*key, index))
                index += 1


def key_lines(text: str) -> dict[Key, int]:
    """Map each key of a valid TOML text to its line, from 1.

    Returns:
        The line of each table, key and array element. An implied table has the line that implies
            it.
    """
    # tomllib reads a carriage return and newline as one newline.
    scanner = _Scanner(text.replace("\r\n", "\n"))
    scanner.scan()
    return scanner.lines

"""A reader of TOML files that users edit, into msgspec structs.

All problems are reported at once, each with file, line and what would be right.

The line of each key of a TOML text, for error messages, which tomllib does not tell.

The text must be valid. Elements of arrays and keys of inline tables have no line of their own.
"""

import difflib
import re
import tomllib
import types
import typing
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

import msgspec
from msgspec import inspect
from msgspec.structs import FieldInfo

from cedos.errors import ConfigError

T = TypeVar("T", bound=msgspec.Struct)
_WRONG = object()
# A path into the parsed document: table keys, and indices into arrays.
Key = tuple[str | int, ...]
_HEADER = re.compile(r"\s*(\[\[?)([^\[\]]+)\]\]?\s*")
# Comments, strings, names. Those without an end reach as far as they may, so that no byte is read
# again. `deep`: more than 64 names, of which tomllib takes the square: 29 s for 64 kB.
_NAME = r"""(?:[\w-]++|"(?:[^"\\\n]|\\[^\n])*+"?+|'[^'\n]*+'?+)"""
_DOT = r"[ \t]*+\.[ \t]*+"
_TOKEN = re.compile(
    r"""(?s:\#[^\n]*+|"{3}(?:[^\\]|\\.)*?(?:"{3,5}|\Z)|'{3}.*?(?:'{3,5}|\Z))"""
    rf"|(?P<key>{_NAME}(?:{_DOT}{_NAME}){{0,63}}+(?P<deep>{_DOT})?+)"
)


def loads(text: str) -> dict[str, Any]:
    """Parse a text that may come from a stranger. Errors: TOMLDecodeError, RecursionError."""
    if deep := next((found for found in _TOKEN.finditer(text) if found["deep"]), None):
        line = text.count("\n", 0, deep.start()) + 1
        raise tomllib.TOMLDecodeError(f"A key of more than 64 names (at line {line}, column 1)")
    return tomllib.loads(text)


def key_lines(text: str) -> dict[Key, int]:
    """Map keys of a valid TOML text to their lines, from 1.

    An implied table has the line that implies it.
    """
    lines: dict[Key, int] = {}
    last: dict[Key, int] = {}  # arrays of tables: the index of the last element so far
    table: Key = ()
    # Keys stand neither in comments nor in strings of several lines.
    text = _TOKEN.sub(lambda found: found["key"] or "\n" * found[0].count("\n"), text)
    for number, line in enumerate(text.split("\n"), 1):
        if header := _HEADER.fullmatch(line):
            key = _with_indexes(_parts(header[2]), last)
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


def _with_indexes(key: Key, last: dict[Key, int]) -> Key:
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


def read(path: Path, struct: type[T]) -> T:
    """Read the file at `path` as a `struct`; `Path` fields are relative to the file's folder.

    Structs may hold numbers, text, booleans, literals, enums, paths, other structs, and lists,
    tuples and dicts of these. A ValueError from `__post_init__` is reported at the struct's line.
    ConfigError: the file cannot be read, is not TOML, or does not fit; one line per problem.
    """
    try:
        text = path.read_bytes().decode()
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(
            f"{path}: not UTF-8 text ({error.reason} at byte {error.start})"
        ) from error
    return parse(text, struct, name=str(path), folder=path.parent)


def parse(text: str, struct: type[T], *, name: str, folder: Path = Path()) -> T:
    """Parse a text like `read`; `name` stands for the file in messages."""
    try:
        document = loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        what, _, where = str(error).partition(" (at ")
        line = where.removeprefix("line ").partition(",")[0]
        if not line.isdecimal():  # "at end of document"
            line = str(max(1, len(text.splitlines())))
        if what == "Invalid value":
            what += ' (text stands in quotes: "text"; true, false and numbers do not)'
        raise ConfigError(f"{name}:{line}: not valid TOML: {what}") from error
    reader = _Reader(name, folder, text, struct)
    value = reader.value(document, struct, ())
    if reader.problems:
        raise ConfigError("\n".join(message for _, message in sorted(reader.problems)))
    assert isinstance(value, struct)
    return value


class _Reader:
    """A parser of one text, with the problems as (line, message) in `problems`."""

    def __init__(self, name: str, folder: Path, text: str, root: type[msgspec.Struct]) -> None:
        self.problems: list[tuple[int, str]] = []
        self._name, self._folder, self._text, self._root = name, folder, text, root
        self._lines: dict[Key, int] | None = None

    def value(self, value: Any, kind: Any, key: Key) -> Any:
        """Convert the value to the type `kind`; `_WRONG` if that fails, with a problem noted."""
        kind = _without_none(kind)
        inner = typing.get_args(kind)
        match value:
            case dict() if _is_struct(kind):
                return self._struct(value, kind, key)
            case dict() if typing.get_origin(kind) is dict:
                fits = [self._name_fits(name, inner[0], key) for name in value]
                table = {
                    name: self.value(item, inner[1], (*key, name)) for name, item in value.items()
                }
                return table if all(fits) and _WRONG not in table.values() else _WRONG
            case list() if typing.get_origin(kind) in {list, tuple}:
                items = [
                    self.value(item, inner[0], (*key, index)) for index, item in enumerate(value)
                ]
                if _WRONG in items:
                    return _WRONG
                return tuple(items) if typing.get_origin(kind) is tuple else items
            case str() if kind is Path and value:
                return self._folder / Path(value).expanduser()
            case _ if kind is not Path:
                try:
                    return msgspec.convert(value, kind)
                except msgspec.ValidationError:
                    pass
        hint = _did_you_mean(value, _choices(kind), '"') if isinstance(value, str) else ""
        self._report(
            key, f"{_join_dotted(key)} must be {_describe(kind)}, not {_show(value)}{hint}"
        )
        return _WRONG

    def _struct(self, value: dict[str, Any], kind: type[msgspec.Struct], key: Key) -> Any:
        fields = {field.encode_name: field for field in msgspec.structs.fields(kind)}
        found: dict[str, Any] = {}
        for name, item in value.items():
            if field := fields.get(name):
                found[field.name] = self.value(item, field.type, (*key, name))
            else:
                self._unknown((*key, name), fields, item)
        for name, field in fields.items():
            if field.required and name not in value:
                self._report(key, f"{_section(key)} needs {name}: {_describe(field.type)}")
                found[field.name] = _WRONG
        if _WRONG in found.values():
            return _WRONG
        try:
            return kind(**found)
        except ValueError as error:  # from __post_init__: values that do not go together
            # The message begins with the field that should change. Report its line.
            first = str(error).partition(" ")[0]
            self._report((*key, first), f"{_section(key)}: {error}")
            return _WRONG

    def _name_fits(self, name: str, kind: Any, key: Key) -> bool:
        try:
            msgspec.convert(name, kind)
        except msgspec.ValidationError:
            self._report((*key, name), f'{_section(key)}: "{name}" must be {_describe(kind)}')
            return False
        return True

    def _unknown(self, key: Key, fields: Mapping[str, FieldInfo], item: Any) -> None:
        name = str(key[-1])
        if isinstance(item, dict) and len(key) == 1:
            known = [each for each, field in fields.items() if _is_table(field.type)]
            what, shown = "section", "[{}]"
        else:
            known = [
                each for each, field in fields.items() if len(key) > 1 or not _is_table(field.type)
            ]
            what, shown = "setting", "{}"
        message = f"unknown {what} {shown.format(name)}" + (
            f" in {_section(key[:-1])}" if key[1:] else ""
        )
        homes = [section for section, names in _sections(self._root) if name in names]
        if near := difflib.get_close_matches(name, known, n=1):
            message += f", did you mean {shown.format(near[0])}?"
        elif homes:
            message += f"; it belongs in {homes[0]}"
        elif known:
            message += f"; known are: {', '.join(map(shown.format, known))}"
        self._report(key, message)

    def _report(self, key: Key, message: str) -> None:
        if self._lines is None:
            self._lines = key_lines(self._text)
        at = key
        while at and at not in self._lines:
            at = at[:-1]
        line = self._lines.get(at, 1)
        self.problems.append((line, f"{self._name}:{line}: {message}"))


def _is_table(kind: Any) -> bool:
    kind = _without_none(kind)
    return _is_struct(kind) or typing.get_origin(kind) is dict


def _is_struct(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, msgspec.Struct)


def _without_none(kind: Any) -> Any:
    """Return the type without None, because TOML omits optional values."""
    if typing.get_origin(kind) in {typing.Union, types.UnionType}:
        rest = [item for item in typing.get_args(kind) if item is not types.NoneType]
        if len(rest) == 1:
            return rest[0]
    return kind


def _sections(root: type[msgspec.Struct]) -> Iterator[tuple[str, list[str]]]:
    for field in msgspec.structs.fields(root):
        if _is_struct(field.type):
            names = [inner.encode_name for inner in msgspec.structs.fields(field.type)]
            yield f"[{field.encode_name}]", names


def _did_you_mean(word: str, known: Iterable[str], quote: str = "") -> str:
    near = difflib.get_close_matches(word, list(known), n=1)
    return f", did you mean {quote}{near[0]}{quote}?" if near else ""


def _choices(kind: Any) -> list[str]:
    match inspect.type_info(kind) if kind is not Path else None:
        case inspect.LiteralType(values=values):
            return [str(value) for value in values]
        case inspect.EnumType(cls=cls):
            return [str(item.value) for item in cls]
    return []


def _join_dotted(key: Key) -> str:
    text = ""
    for part in key:
        if isinstance(part, int):
            text += f"[{part}]"
        else:
            text += f".{part}" if text else part
    return text


def _section(key: Key) -> str:
    return f"[{_join_dotted(key)}]" if key else "the file"


def _describe(kind: Any) -> str:
    """Describe the values that a type takes."""
    kind = _without_none(kind)
    if kind is Path:
        return "the path of a file"
    if _is_struct(kind) or typing.get_origin(kind) is dict:
        return "a table"
    if typing.get_origin(kind) in {list, tuple}:
        return f"a list, each {_describe(typing.get_args(kind)[0])}"
    if choices := _choices(kind):
        return "one of " + ", ".join(f'"{choice}"' for choice in choices)
    match inspect.type_info(kind):
        case inspect.Metadata(type=info, extra_json_schema=schema):
            # Annotated[..., Meta(description=...)]: use the description.
            return str((schema or {}).get("description") or _base(info))
        case info:
            return _base(info)


def _base(info: inspect.Type) -> str:
    match info:
        case inspect.BoolType():
            return "true or false"
        case inspect.IntType():
            return "a whole number" + _bounds(info)
        case inspect.FloatType():
            return "a number" + _bounds(info)
        case inspect.StrType():
            return "text in quotes"
        case inspect.UnionType(types=kinds):
            return " or ".join(_base(item) for item in kinds)
        case _:
            return "of another kind"


def _bounds(info: inspect.IntType | inspect.FloatType) -> str:
    if info.ge is not None and info.le is not None:
        return f" from {info.ge:.15g} to {info.le:.15g}"
    parts = [
        f"{word} {bound:.15g}"
        for word, bound in (
            ("of at least", info.ge),
            ("above", info.gt),
            ("of at most", info.le),
            ("below", info.lt),
        )
        if bound is not None
    ]
    return " " + " and ".join(parts) if parts else ""


def _show(value: object) -> str:
    match value:
        case bool():
            return str(value).lower()
        case int() | float():
            return f"{value:.17g}" if isinstance(value, float) else str(value)[:40]
        case str():
            shown = value if len(value) <= 40 else value[:40] + "…"
            return f'the text "{shown}"'
        case list():
            return "a list"
        case dict():
            return "a table"
        case _:
            return f"the date or time {value}"

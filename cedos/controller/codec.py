"""Events and commands as plain lists, for a log that another process reads. Pure.

A value is encoded by its declared type. A dataclass becomes the list of its fields, with its name before
them where the type does not say which class it is. A mapping is a list of pairs, an address its text.
"""

import enum
import re
import typing
from collections.abc import Collection, Mapping
from dataclasses import dataclass, fields, is_dataclass
from functools import lru_cache
from hashlib import blake2b
from ipaddress import (
    IPv4Address,
    IPv4Interface,
    IPv6Address,
    IPv6Interface,
    ip_address,
    ip_interface,
)
from math import isnan
from types import NoneType, UnionType
from typing import Any, Final, Union

import msgspec

from cedos.controller import commands, events
from cedos.controller.commands import Command
from cedos.controller.events import Event
from cedos.controller.rule import is_host_name
from cedos.model import is_address
from cedos.selector.deadlines.transfer_table import TableTransfer

# The classes whose texts stay, wherever they stand.
KEPT = frozenset({"Network", "Attached", "Attachment", "Budget"})
_PAGE = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://[^\s]*[^\s.,;:)]")
_NAME = re.compile(r"[\w-]+(?:\.[\w-]+)*\.[^\W\d_][\w-]+")
# The version of the event log's format: of events, of the header and of the state (`snapshot.py`).
LOG_FORMAT: Final = 47
# The largest record in bytes: a state with some ten thousand flows.
LARGEST_BYTES: Final = 8_000_000
_ADDRESSES: Final = frozenset({IPv4Address, IPv6Address})
_address = lru_cache(maxsize=4096)(ip_address)
_INTERFACES: Final = frozenset({IPv4Interface, IPv6Interface})


class Hider:
    """A replacer of hosts' names in texts. A reader without the key cannot tell which they were.

    The labels of a name are replaced one by one, so that a name below another one stays below it; a
    page's address is replaced whole. Addresses of hosts stay, or a log would say nothing. The names of
    networks, access points and budgets stay, and a host's name of one word, which looks like any word.
    """

    def __init__(self, key: bytes) -> None:
        self._key = key
        self._kept: set[str] = set()

    def keep(self, text: str) -> None:
        """Leave a text alone that looks like a host's name and is none."""
        if "." in text:
            self._kept.add(text)

    def text(self, text: str) -> str:
        """Return a text without the names of hosts in it."""
        if "." not in text and "://" not in text:
            return text
        text = _PAGE.sub(lambda found: self.hide_whole(found[0]), text)
        return _NAME.sub(lambda found: self._name(found[0]), text)

    def hide_whole(self, text: str) -> str:
        """Return what stands for a text as a whole, of which nothing may be told."""
        return "h" + blake2b(text.encode(), key=self._key, digest_size=5).hexdigest()

    def _name(self, word: str) -> str:
        # (Programs write names as they like, and one with other letters is a host's, too.)
        name = word.lower()
        hosts = is_host_name(name) or not name.isascii()
        if word in self._kept or is_address(word) or not hosts:
            return word
        return ".".join(map(self.hide_whole, name.split(".")))


def without_names(
    value: object, fields: dict[str, Any], hide: Hider | None
) -> tuple[dict[str, Any], Hider | None]:
    """Return the fields of an object, and what hides the names in them; None: they stay."""
    if hide is None:
        return fields, None
    if type(value).__name__ in KEPT:
        for each in fields.values():
            if isinstance(each, str):
                hide.keep(each)
        return fields, None
    if isinstance(value, TableTransfer):  # a file has a name, too
        fields |= {"name": hide.hide_whole(value.name), "server": hide.hide_whole(value.server)}
    return fields, hide


@lru_cache(maxsize=1)
def _classes() -> dict[str, type]:
    """Return all classes that may stand in place of a declared type, by name."""
    modules = (events, commands)
    found = [each for module in modules for each in vars(module).values()]
    return {each.__name__: each for each in found if isinstance(each, type) and is_dataclass(each)}


@dataclass(frozen=True, slots=True)
class _Field:
    name: str
    hint: Any


@lru_cache(maxsize=256)
def _fields(cls: Any) -> tuple[_Field, ...]:
    hints = typing.get_type_hints(cls)
    if is_dataclass(cls):
        names = [each.name for each in fields(cls)]
    elif issubclass(cls, msgspec.Struct):
        names = list(cls.__struct_fields__)
    else:
        names = list(getattr(cls, "_fields"))  # noqa: B009, a named tuple
    return tuple(_Field(name, hints[name]) for name in names)


def _is_record(cls: object) -> bool:
    return isinstance(cls, type) and (
        is_dataclass(cls) or issubclass(cls, msgspec.Struct) or hasattr(cls, "_fields")
    )


def encode(value: object, hint: Any, hide: Hider | None = None) -> Any:
    """Return a value of a declared type as lists, numbers and texts; `hide` replaces names of hosts."""
    if value is None or isinstance(value, bool | int | float | bytes):
        return value.value if isinstance(value, enum.Enum) else value
    if isinstance(value, enum.Enum):
        return value.value
    if isinstance(value, str):
        return hide.text(value) if hide is not None else value
    if _is_record(type(value)):
        cls = type(value)
        known = _fields(typing.cast(Any, cls))
        found = {each.name: getattr(value, each.name) for each in known}
        values, inner = without_names(value, found, hide)
        listed = [encode(values[each.name], each.hint, inner) for each in known]
        return listed if _record_of(hint) is cls else [cls.__name__, *listed]
    if isinstance(value, Mapping):
        of_key, of_value = (typing.get_args(hint) or (Any, Any))[:2]
        return [
            [encode(k, of_key, hide), encode(each, of_value, hide)] for k, each in value.items()
        ]
    if isinstance(value, set | frozenset):
        return sorted(encode(each, _item(hint, 0), hide) for each in value)
    if isinstance(value, Collection):
        return [encode(each, _item(hint, i), hide) for i, each in enumerate(value)]
    return str(value)  # an address


def decode(plain: Any, hint: Any) -> Any:
    """Return a value of a declared type.

    Raises:
        ValueError: it is none of that type.
    """
    try:
        return _decode(plain, hint)
    except (TypeError, IndexError, KeyError, AttributeError, msgspec.ValidationError) as error:
        raise ValueError(f"an event cannot be read: {error}") from None


def _decode(plain: Any, hint: Any) -> Any:
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Annotated:
        return _decode(plain, args[0])
    if origin in (Union, UnionType):
        rest = [each for each in args if each is not NoneType]
        if plain is None:
            return None
        if set(rest) <= _ADDRESSES:
            return _address(plain)
        if set(rest) <= _INTERFACES:
            return ip_interface(plain)
        return _decode(plain, rest[0]) if len(rest) == 1 else _tag(plain)
    record = _record_of(hint)
    if record is not None:
        listed = _fields(record)
        if len(listed) != len(plain):
            raise ValueError(f"{record.__name__} has {len(listed)} fields, not {len(plain)}")
        values = {e.name: _decode(each, e.hint) for e, each in zip(listed, plain, strict=True)}
        return record(**values)
    if isinstance(hint, type) and issubclass(hint, enum.Enum):
        return hint(plain)
    if origin is not None and issubclass(origin, Mapping):
        return {_decode(k, args[0]): _decode(each, args[1]) for k, each in plain}
    if origin is frozenset:
        return frozenset(_decode(each, args[0]) for each in plain)
    if origin is not None and issubclass(origin, Collection):
        return tuple(_decode(each, _item(hint, i)) for i, each in enumerate(plain))
    if isinstance(hint, type) and hint is not object:
        right = isinstance(plain, int | float) if hint is float else isinstance(plain, hint)
        if not right or (hint is float and isnan(plain)):
            raise ValueError(f"{plain!r:.100} is no {hint.__name__}")
    return plain


def _tag(plain: Any) -> Any:
    cls = _classes()[plain[0]]
    return _decode(plain[1:], cls)


def _record_of(hint: Any) -> type | None:
    """Return the one record class that a declared type allows beside None."""
    if _is_record(hint):
        return typing.cast(type, hint)
    rest = [each for each in typing.get_args(hint) if each is not NoneType]
    union = typing.get_origin(hint) in (Union, UnionType)
    return rest[0] if union and len(rest) == 1 and _is_record(rest[0]) else None


def _item(hint: Any, index: int) -> Any:
    """Return the declared type of an item of a collection."""
    args = typing.get_args(hint)
    if not args:
        return Any
    if typing.get_origin(hint) is tuple and Ellipsis not in args:
        return args[index]
    return args[0]


def encode_event(event: Event, hide: Hider | None = None) -> Any:
    """Return an event with its name first."""
    return encode(event, Event, hide)


def decode_event(plain: Any) -> Event:
    """Return the event. ValueError: it is none of this version."""
    return typing.cast(Event, decode(plain, Event))


def encode_commands(given: Collection[Command], hide: Hider | None = None) -> bytes:
    """Return commands as bytes: the same commands have the same bytes."""
    return msgspec.msgpack.encode([encode(each, Command, hide) for each in given])

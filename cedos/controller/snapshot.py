"""The controller's whole state as plain lists, for a log that begins in the middle. Pure.

All that a controller holds is an object of this program, a container of Python, an enum, an address, a
number or a text. An object is written by its fields, under the number of its class. Each object and each
container that can change is numbered when it is first met, and is that number from then on, so that
parts that share one share it again. What only points to the program (classes, bound methods) is its
name. The trained model is large and does not change, so that it stays apart, under a name.

A state says nothing to a program whose classes have other fields. `codec.LOG_FORMAT` changes with them,
and a recorded log among the tests (`tests/recorded/controller/`) tells when that is due.
"""

import enum
import sys
from collections import OrderedDict, defaultdict, deque
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from ipaddress import (
    IPv4Address,
    IPv4Interface,
    IPv4Network,
    IPv6Address,
    IPv6Interface,
    IPv6Network,
)
from types import FunctionType, MappingProxyType, MethodType
from typing import Any, Final, cast

import msgspec

from cedos.controller.codec import Hider, without_names
from cedos.controller.controller import Controller

_ROOMS: Final = (
    *("cedos.controller.", "cedos.selector.", "predictors."),
    *("cedos.model", "cedos.budget_kinds", "cedos.limits"),
)
_PLAIN: Final = frozenset({bool, int, float, bytes, type(None)})
_ADDRESSES: Final = {
    each.__name__: each
    for each in (
        *(IPv4Address, IPv4Interface, IPv4Network),
        *(IPv6Address, IPv6Interface, IPv6Network),
    )
}
_CONTAINERS: Final[dict[type, str]] = {
    each: each.__name__ for each in (dict, OrderedDict, list, set, deque, int, float)
}


def snapshot(controller: Controller, apart: Mapping[str, object], hide: Hider | None = None) -> Any:
    """Return the state of a controller between two events.

    Args:
        apart: objects that are not written, by name.
        hide: replaces names of hosts; None: they stay.

    Raises:
        TypeError: it holds what cannot be written.
    """
    if hide is not None:
        networks = (*controller.decider.networks, *controller.decider.helpers)
        known = [name for each in networks for name in (each.name, each.interface)]
        for name in (*known, *controller.budgets.names):
            hide.keep(name)
    writer = _Writer(apart, hide)
    written = writer.plain(controller)
    return [list(map(list, writer.kinds)), written]


def restore(plain: Any, apart: Mapping[str, object]) -> Controller:
    """Return the controller that was written.

    Raises:
        ValueError: it is none, or one of another version of the program.
    """
    try:
        kinds, written = plain
        found = _Reader(apart, kinds).value(written)
    except (TypeError, LookupError, AttributeError, RecursionError) as error:
        raise ValueError(f"the state is none of this version: {error}") from None
    if not isinstance(found, Controller):
        raise ValueError("the state is that of no controller")
    return found


class _Writer:
    """Writes values as plain ones; `kinds`: the names of classes, each with those of its fields."""

    def __init__(self, apart: Mapping[str, object], hide: Hider | None) -> None:
        self.kinds: dict[tuple[str, ...], int] = {}
        self._hide = hide
        self._apart = {id(each): name for name, each in apart.items()}
        self._numbers: dict[int, int] = {}

    def plain(self, value: object) -> Any:
        """Return a value as what msgpack knows; lists begin with what they are."""
        kind = type(value)
        if kind in _PLAIN:
            return value
        if kind is str:
            return value if self._hide is None else self._hide.text(cast(str, value))
        if isinstance(value, enum.Enum):
            return ["enum", _name(kind), value.value]
        if id(value) in self._apart:
            return ["apart", self._apart[id(value)]]
        if isinstance(value, type):
            return ["class", _name(value)]
        if isinstance(value, MethodType):
            return ["method", self.plain(value.__self__), value.__name__]
        if kind.__name__ in _ADDRESSES:
            return [kind.__name__, str(value)]
        if kind in (tuple, frozenset):
            return [kind.__name__, *map(self.plain, cast(Iterable[object], value))]
        if isinstance(value, MappingProxyType):
            return ["proxy", *([self.plain(key), self.plain(each)] for key, each in value.items())]
        if (number := self._numbers.get(id(value))) is not None:
            return ["number", number]
        self._numbers[id(value)] = len(self._numbers)
        return self._write_numbered(value)

    def _write_numbered(self, value: object) -> Any:
        kind = type(value)
        if kind in (list, set):
            return [kind.__name__, *map(self.plain, cast(Iterable[object], value))]
        if isinstance(value, deque):
            return ["deque", value.maxlen, *map(self.plain, value)]
        if isinstance(value, dict):
            pairs = [[self.plain(key), self.plain(each)] for key, each in value.items()]
            if isinstance(value, defaultdict):
                return ["defaultdict", _factory_name(value.default_factory), *pairs]
            return [_CONTAINERS[kind], *pairs]
        return self._object(value)

    def _object(self, value: object) -> Any:
        hide = self._hide
        fields, self._hide = without_names(value, _fields(value), hide)
        known = (_name(type(value)), *fields)
        number = self.kinds.setdefault(known, len(self.kinds))
        plain = ["object", number, *map(self.plain, fields.values())]
        self._hide = hide
        return plain


class _Reader:
    def __init__(self, apart: Mapping[str, object], kinds: Iterable[Sequence[str]]) -> None:
        self._apart = apart
        self._kinds = [(_class(name), names) for name, *names in kinds]
        for cls, names in self._kinds:
            if any(name.startswith("__") for name in names):
                raise ValueError(f"a {cls.__name__} has no such fields")
        self._numbered: list[Any] = []

    def value(self, plain: Any) -> Any:
        """Return what a plain value stands for. Errors: it stands for nothing of this program."""
        if not isinstance(plain, list):
            return plain
        kind, *rest = plain
        match kind:
            case "number":
                return self._numbered[rest[0]]
            case "apart":
                return self._apart[rest[0]]
            case "enum":
                return _class(rest[0])(rest[1])
            case "class":
                return _class(rest[0])
            case "method":
                return self._method(*rest)
            case "tuple":
                return tuple(map(self.value, rest))
            case "frozenset":
                return frozenset(map(self.value, rest))
            case "proxy":
                return MappingProxyType({self.value(key): self.value(each) for key, each in rest})
            case _ if kind in _ADDRESSES:
                return _ADDRESSES[kind](rest[0])
        number = len(self._numbered)
        self._numbered.append(None)
        return self._fill(kind, rest, number)

    def _fill(self, kind: str, rest: list[Any], number: int) -> Any:
        """Return a numbered value; it has its number before its parts, which may lead back to it."""
        if kind == "object":
            cls, names = self._kinds[rest[0]]
            return self._object(cls, names, rest[1:], number)
        made: Any
        match kind:
            case "list":
                made = self._numbered[number] = []
                made.extend(map(self.value, rest))
            case "set":
                made = self._numbered[number] = set()
                made.update(map(self.value, rest))
            case "deque":
                made = self._numbered[number] = deque(maxlen=rest[0])
                made.extend(map(self.value, rest[1:]))
            case "dict" | "OrderedDict" | "defaultdict":
                pairs = rest
                if kind == "defaultdict":
                    made, pairs = defaultdict(_factory(rest[0])), rest[1:]
                else:
                    made = {} if kind == "dict" else OrderedDict()
                self._numbered[number] = made
                for plain_key, each in pairs:
                    key = self.value(plain_key)  # (before the value, as they were numbered)
                    made[key] = self.value(each)
            case _:
                raise ValueError(f"{kind!r} is no value")
        return made

    def _object(self, cls: Any, names: Sequence[str], values: Sequence[Any], number: int) -> object:
        if _is_whole(cls):  # it is made at once, so that nothing leads back
            pairs = zip(names, map(self.value, values), strict=True)
            found = self._numbered[number] = cls(**dict(pairs))
            return found
        made: Any = object.__new__(cls)
        self._numbered[number] = made
        for name, each in zip(names, values, strict=True):
            object.__setattr__(made, name, self.value(each))
        return made

    def _method(self, owner: Any, name: str) -> Any:
        found = self.value(owner)
        function = getattr(type(found), name)
        if not isinstance(function, FunctionType):
            raise ValueError(f"{name} is no method")
        return MethodType(function, found)


def _name(cls: type) -> str:
    """Return the name of a class in a state. TypeError: it is none that a state may have."""
    if not cls.__module__.startswith(_ROOMS):
        raise TypeError(f"a {cls.__module__}.{cls.__qualname__} cannot be written")
    return f"{cls.__module__}:{cls.__qualname__}"


def _class(name: str) -> Any:
    """Return the class of a name. Errors: the program has none."""
    module, _, qualified = name.partition(":")
    found: Any = sys.modules[module]
    for part in qualified.split("."):
        found = getattr(found, part)
    if not isinstance(found, type) or _name(found) != name:
        raise ValueError(f"{name} is no class of the controller")
    return found


def _factory_name(factory: object) -> str:
    if not isinstance(factory, type):
        raise TypeError("a defaultdict without a class cannot be written")
    return _CONTAINERS.get(factory) or _name(factory)


def _factory(name: str) -> Any:
    by_name = {each: kind for kind, each in _CONTAINERS.items()}
    return by_name[name] if name in by_name else _class(name)


@lru_cache(maxsize=512)
def _slots(cls: Any) -> tuple[str, ...]:
    found: list[str] = []
    for each in reversed(cls.__mro__):
        slots = vars(each).get("__slots__", ())
        found += [slots] if isinstance(slots, str) else slots
    return tuple(name for name in found if not name.startswith("__"))


def _is_whole(cls: type) -> bool:
    """Return whether objects of a class are made of all their fields at once."""
    return issubclass(cls, tuple | msgspec.Struct)


def _fields(value: Any) -> dict[str, Any]:
    """Return the fields that an object has."""
    cls: Any = type(value)
    if _is_whole(cls):
        names = cls._fields if issubclass(cls, tuple) else cls.__struct_fields__
        return {name: getattr(value, name) for name in names}
    found = {}
    for name in _slots(cls):
        with suppress(AttributeError):  # a slot may be empty
            found[name] = getattr(value, name)
    return found | getattr(value, "__dict__", {})

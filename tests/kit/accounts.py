"""All that objects of cedos count and hold, so that a test sees what was not given back."""

import asyncio
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

# What tells times, rates, or how the host is reached, and no account.
_NO_ACCOUNTS = frozenset(
    ("_driver", "_loop", "_log", "_me", "_clients", "_settings", "_resolver", "_opens", "_rates", "_rows",
     "_memory", "_tidied_unix_s", "_destinations", "_lock", "_most_of_origin", "clock", "connection",
     "_shares", "_without_cookie")
)  # fmt: skip
_DEPTH = 12


def accounts(**roots: object) -> dict[str, float]:
    """Return each number that is not 0, and the length of each collection, by the way that leads there.

    Zeros in a collection count as not there: a client that has nothing is like one that never came.
    """
    found: dict[str, float] = {}
    seen: set[int] = set()
    for name, root in roots.items():
        _add(found, seen, name, root, _DEPTH)
    return found


def _add(found: dict[str, float], seen: set[int], name: str, one: Any, depth: int) -> None:
    if isinstance(one, asyncio.Semaphore):
        # One that is free, and for which no task waits, is like one that was not made yet.
        found[f"{name}.waiters"] = len(one._waiters or ())
        one = 0 if one._value in (1, 2, 4, 8, 16, 32, 64) else one._value
    if isinstance(one, int | float) and not isinstance(one, bool) and one:
        found[name] = one
    if id(one) in seen or not depth:
        return
    seen.add(id(one))
    if isinstance(one, Mapping):
        parts = {str(key)[:40]: value for key, value in one.items()}
    elif isinstance(one, list | tuple | set | frozenset) or type(one).__name__ == "deque":
        parts = {str(number): value for number, value in enumerate(one)}
        found[f"{name}.len"] = len(one)
    elif type(one).__module__.startswith("cedos."):
        slots = (each for kind in type(one).__mro__ for each in getattr(kind, "__slots__", ()))
        parts = {
            each: getattr(one, each, None)
            for each in {*slots, *getattr(one, "__dict__", {})} - _NO_ACCOUNTS
        }
    else:
        return
    for key, value in parts.items():
        _add(found, seen, f"{name}.{key}", value, depth - 1)


def grown(before: Mapping[str, float], after: Mapping[str, float]) -> dict[str, float]:
    return {name: value for name, value in after.items() if value > before.get(name, 0)}


def descriptors() -> Counter[str]:
    """Return the kinds of this process's open files."""
    kinds: Counter[str] = Counter()
    for each in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):  # the listing's own
            kinds[str(each.readlink()).partition(":")[0]] += 1
    return kinds

"""How many records each of very many hosts has, in 2 MB whatever comes: a count-min sketch.

It never counts too few; too many only where a host shares both counters with busier ones, which nobody
can choose to, as Python keys its hashes in each process.
"""

from array import array
from typing import Final

_BITS: Final = 18
_MASK: Final = (1 << _BITS) - 1


class HostCounts:
    def __init__(self) -> None:
        self._rows = (array("I", bytes(4 << _BITS)), array("I", bytes(4 << _BITS)))

    def add(self, host: bytes, by: int = 1) -> None:
        first, second = self._rows
        number = hash(host)
        first[number & _MASK] += by
        second[number >> _BITS & _MASK] += by

    def of(self, host: bytes) -> int:
        """How many the host has, or a few more."""
        first, second = self._rows
        number = hash(host)
        return min(first[number & _MASK], second[number >> _BITS & _MASK])

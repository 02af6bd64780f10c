"""How many records each of very many hosts has, in a fixed amount of memory. Pure.

An account for each host would cost more than the records themselves where a million hosts sleep with one
flow each. Two rows of counters (a count-min sketch) need 2 MB whatever comes, and never tell too few:
a host is told too many only where it shares both counters with busier ones, and as Python keys its hashes
anew in each process, nobody can choose to.
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

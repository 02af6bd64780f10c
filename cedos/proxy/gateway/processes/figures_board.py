"""Memory that all processes of a gateway see: each writes its own figures, all may read them."""

import mmap
import os
import struct
from typing import Final, Self

from cedos.proxy.gateway.figures import GatewayFigures, total

_COUNT: Final = len(GatewayFigures._fields)
_SLOT: Final = struct.Struct(f"={1 + 2 * _COUNT}Q")
_CONNECTIONS_AT: Final = 8 * (1 + GatewayFigures._fields.index("connections"))


class FiguresBoard:
    """A slot for each of `count` processes: whether it serves, its figures, and what it had before.

    `file`: its number.
    """

    def __init__(self, file: int, count: int) -> None:
        self.file, self.count = file, count
        self._memory = mmap.mmap(file, count * _SLOT.size)

    @classmethod
    def make(cls, count: int) -> Self:
        file = os.memfd_create("cedos-gateway-figures")
        os.ftruncate(file, count * _SLOT.size)
        return cls(file, count)

    def write(self, number: int, figures: GatewayFigures) -> None:
        """A process's figures; it serves from now on."""
        self._put(number, ready=True, now=figures, before=self._read(number)[2])

    def connects(self, number: int, connections: int) -> None:
        """So many connections it has now: told at each one, as they have a limit together."""
        struct.pack_into("=Q", self._memory, number * _SLOT.size + _CONNECTIONS_AT, connections)

    def total(self) -> GatewayFigures:
        slots = [self._read(number) for number in range(self.count)]
        return total([each for _, now, before in slots for each in (now, before)])

    def connections_elsewhere(self, number: int) -> int:
        """Of all processes but this one."""
        return sum(self._read(each)[1].connections for each in range(self.count) if each != number)

    def begins(self, number: int) -> None:
        """That process ended, or is a new one: what it had counted still counts."""
        _, now, before = self._read(number)
        self._put(number, ready=False, now=GatewayFigures(), before=total([before, now.counted()]))

    def renews(self, number: int) -> None:
        """That process is to begin anew: it does not serve before it has written again."""
        struct.pack_into("=Q", self._memory, number * _SLOT.size, 0)

    def serves(self, number: int) -> bool:
        return self._read(number)[0]

    @property
    def ready(self) -> bool:
        return all(map(self.serves, range(self.count)))

    def _read(self, number: int) -> tuple[bool, GatewayFigures, GatewayFigures]:
        ready, *rest = _SLOT.unpack_from(self._memory, number * _SLOT.size)
        return bool(ready), GatewayFigures(*rest[:_COUNT]), GatewayFigures(*rest[_COUNT:])

    def _put(
        self, number: int, *, ready: bool, now: GatewayFigures, before: GatewayFigures
    ) -> None:
        _SLOT.pack_into(self._memory, number * _SLOT.size, int(ready), *now, *before)

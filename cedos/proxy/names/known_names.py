"""Names that programs looked up, by the addresses that they were answered: for people."""

from collections import OrderedDict
from collections.abc import Iterable
from typing import Final

from cedos.model import Address

_MOST: Final = 2_048


class KnownNames:
    """Of an address that has several the one that was looked up last; the 2,048 newest addresses."""

    def __init__(self) -> None:
        self._names: OrderedDict[str, str] = OrderedDict()

    def learn(self, name: str, addresses: Iterable[Address]) -> None:
        for address in addresses:
            self._names[str(address)] = name
            self._names.move_to_end(str(address))
            if len(self._names) > _MOST:
                self._names.popitem(last=False)

    def name_of(self, address: str) -> str | None:
        return self._names.get(address)

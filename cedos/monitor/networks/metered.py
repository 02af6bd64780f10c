"""Where the system's word on metered networks comes from."""

from collections.abc import Callable, Mapping
from typing import Protocol

from cedos.kernel.interface_kind import MeteredWord


class MeteredSource(Protocol):
    async def start(self, changed: Callable[[], None]) -> None: ...

    async def read(self, interfaces: Mapping[str, int]) -> Mapping[str, MeteredWord]:
        """By interface, of these (name -> index); those without a word are missing; never raises."""


class NobodysWord:
    """Without a system that says anything."""

    async def start(self, changed: Callable[[], None]) -> None: ...

    async def read(self, interfaces: Mapping[str, int]) -> Mapping[str, MeteredWord]:
        return {}

"""The emulated laptop that probes: one for many replays, each played again if the host was late."""

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, TypeVar

from cedos.errors import EmulationError
from cedos.monitor.probing.result import ProbeServer
from emu.lab.data.measure import resolve_hardware_address
from emu.lab.data.probing import ProbeServerService
from emu.places.places import Place, load
from emu.testbed.access import ADDRESSES
from emu.testbed.phones import Laptop
from emu.testbed.programs.servers import Servers
from emu.testbed.replay import replay
from emu.testbed.started import Started

Found = TypeVar("Found")


class ProbeLaptop(Started):
    """As a `with` block.

    `cancelled` is asked between replays, and `best_of` then returns what there is.
    """

    def __init__(self, directory: Path, cancelled: Callable[[], bool] = lambda: False) -> None:
        self._places = load(directory)
        self._cancelled = cancelled
        self._laptop = Laptop(source_rules=True, nice=-10)
        self._service = ProbeServerService(self._laptop)
        self._stack = ExitStack()

    def _start(self) -> None:
        for part in (self._laptop, Servers(self._laptop), self._service):
            self._stack.enter_context(part)

    def close(self) -> None:
        self._stack.close()

    @property
    def probe_server(self) -> ProbeServer:
        return self._service.server

    def best_of(
        self, tries: int, most_late: float, once: Callable[[], Mapping[str, Any] | None]
    ) -> dict[str, Any] | None:
        """The result of `once` that was least `late`: the first one that is no later than `most_late`.

        None where it was cancelled before there was one.
        """
        best: Mapping[str, Any] | None = None
        for _ in range(tries):
            found = None if self._cancelled() else once()
            if found is None:
                break
            if best is None or found["late"] < best["late"]:
                best = found
            if found["late"] <= most_late:
                break
        return None if best is None else dict(best)

    def play(
        self,
        place: Place,
        start_s: float,
        length_s: float,
        probes: Callable[[float], Coroutine[Any, Any, Found]],
        rtts_s: Mapping[str, float | None] | None = None,
    ) -> Found:
        """Replays a place from a second of it on while `probes`, told the instant of that, run.

        EmulationError: an emulated link ended meanwhile.
        """
        began_s = replay(self._laptop, place, start_s, length_s=length_s, rtts_s=rtts_s)
        for address in ADDRESSES.values():
            resolve_hardware_address(self._laptop, address)
        with self._laptop.client.entered():
            found = asyncio.run(probes(began_s))
        if not self._laptop.alive():
            raise EmulationError("an emulated link ended during the probes")
        return found

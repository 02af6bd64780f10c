"""Looks at the living flows when the controller asks for it.

A look is one dump of the sockets (half a millisecond for a few). Between looks nothing is polled:
openings, ends and sizes come as events.
"""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import structlog

from cedos.controller.events import FlowSample, FlowsSampled
from cedos.daemon.driver import ControllerDriver
from cedos.daemon.observer import Observer
from cedos.host.monitor.events import FlowSnapshots
from cedos.host.profiler.profiler import Profiler
from cedos.model import Direction

_log = structlog.get_logger(__name__)


@dataclass(slots=True)
class FlowSampler:
    """Looks at all sockets, and tells the controller and the profiler what it saw."""

    source: FlowSnapshots
    driver: ControllerDriver
    observer: Observer
    profiler: Profiler
    _due: asyncio.Event = field(default_factory=asyncio.Event)

    def look(self) -> None:
        """Look soon; the answer is an event."""
        self._due.set()

    async def run(self) -> None:
        while True:
            await self._due.wait()
            self._due.clear()
            await self._look()
            self.observer.follow_heard()  # also of flows that ended since the last look

    async def _look(self) -> None:
        asked_at_s = self.observer.prober.asked_at_s()
        if not self.driver.controller.worth_a_look(asked_at_s):
            self.driver.post(FlowsSampled((), asked_at_s, looked=False))
            return
        began_s = time.monotonic()
        try:
            samples = await self.source.snapshot()
        except (OSError, TimeoutError) as error:
            _log.warning("the sockets cannot be looked at", why=str(error))
            self.driver.post(FlowsSampled((), asked_at_s, looked=False))
            return
        self._take(samples, asked_at_s, began_s)

    def _take(
        self, samples: Sequence[FlowSample], asked_at_s: dict[str, float], began_s: float
    ) -> None:
        flows = self.driver.controller.flows
        now_s = time.monotonic()
        self.driver.post(FlowsSampled(tuple(samples), asked_at_s, now_s - began_s))
        # A flow that has carried more than was expected has another size.
        for flow in {id(found): found for s in samples if (found := flows.find(s.key))}.values():
            carried = flow.carried_bytes(Direction.DOWN), flow.carried_bytes(Direction.UP)
            for learned in self.profiler.progressed(flow.key, *carried):
                self.driver.post(replace(learned, progressed=True))

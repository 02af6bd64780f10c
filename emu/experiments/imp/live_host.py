"""What a trial's host sees in real time, and what it has used within its period."""

import asyncio
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from cedos.model import NetworkKind
from cedos.prefetch.surroundings import NetworkFacts, View
from cedos.selector.energy.radio_watch import RadioWatch
from cedos.selector.prefetch.outlook import Outlook
from emu.experiments.imp.budgets import Budgets
from emu.experiments.imp.demand import METERED, Demand
from emu.experiments.imp.knowledge import EVERY_S, Knowledge
from emu.experiments.imp.setting import Setting
from emu.testbed.access import INTERFACES

SAMPLE_S = 0.2
Counters = Mapping[str, tuple[int, int]]


@dataclass(frozen=True, slots=True)
class Used:
    """Joules by network, and bytes over metered ones."""

    joules: dict[str, float]
    metered_bytes: float


class LiveHost:
    """What the trial's host sees, and what it has used.

    Args:
        budgets: what is to be kept; told of what was used.
        start_s: the second of the replay at which the trial begins.
        duration_s: the budgets' period: what comes later is served, and not counted.
        began_s: the monotonic instant of the trial's beginning.
        counted: what the interfaces had carried then.
    """

    def __init__(
        self,
        place: Setting,
        budgets: Budgets,
        start_s: float,
        duration_s: float,
        began_s: float,
        counted: Counters,
    ) -> None:
        self._place = place
        self._budgets = budgets
        self._start_s = start_s
        self._duration_s = duration_s
        self._began_s = began_s
        self._watches = {name: RadioWatch(radio, SAMPLE_S) for name, radio in place.radios.items()}
        self._first = self._last = counted
        self._knowledge = Knowledge(place.networks, Outlook(dict(place.averages)))
        self._demand = Demand(
            place.networks, place.radios, self._watches, self._knowledge, budgets, start_s
        )
        self._updated_s = -EVERY_S
        self._closed: Used | None = None

    def now_s(self) -> float:
        return time.monotonic() - self._began_s

    def up(self, name: str) -> bool:
        return self._demand.up(name, self.now_s())

    def best(self, size_bytes: float) -> str | None:
        """The network that somebody who waits is served over; None: none for now."""
        return self._demand.best(size_bytes, self.now_s())

    def moves(self, name: str, left_bytes: float) -> bool:
        """Whether what is under way over a network is to go on over another one."""
        return self._demand.moves(name, left_bytes, self.now_s())

    async def view(self) -> View:
        now_s = self.now_s()
        return View(
            [
                NetworkFacts(
                    name,
                    INTERFACES[NetworkKind(name)],
                    NetworkKind(name),
                    self._demand.up(name, now_s),
                    name in METERED,
                    self._place.radios[name],
                    self._knowledge.rate_bps(name),
                    network.rtt_s,
                    self._watches[name].shares(now_s),
                    self._watches[name].idle_s(now_s),
                )
                for name, network in self._place.networks.items()
            ],
            self._budgets.prices(now_s),
        )

    async def count(self) -> None:
        """For ever: what the interfaces carried, for the radios and the budgets."""
        while True:
            self.observe(self.now_s(), counters())
            await asyncio.sleep(SAMPLE_S)

    def observe(self, now_s: float, counted: Counters) -> None:
        """The interfaces have carried so much by now."""
        if self._closed is None and now_s >= self._duration_s:
            # Whoever still waits is served after the period, but not within its budgets.
            self._closed = self._used(self._duration_s)
        if now_s - self._updated_s >= EVERY_S:
            self._updated_s = now_s
            self._knowledge.update(self._start_s + now_s)
        for name, (received, sent) in counted.items():
            before = self._last[name]
            self._watches[name].carried(now_s, sent - before[1], received - before[0])
        self._last = counted
        used = self._used(now_s)
        self._budgets.observe(now_s, sum(used.joules.values()), used.metered_bytes)

    def used(self) -> Used:
        """What was used within the period; until now, where it is not over yet."""
        return self._closed if self._closed is not None else self._used(self.now_s())

    def _used(self, now_s: float) -> Used:
        return Used(
            {name: watch.energy_j(now_s) for name, watch in self._watches.items()},
            sum(sum(self._last[name]) - sum(self._first[name]) for name in METERED),
        )


def counters() -> Counters:
    """What this namespace's interfaces have carried, by network: bytes received and sent."""
    lines = Path("/proc/thread-self/net/dev").read_text().splitlines()[2:]
    found = {}
    for line in lines:
        interface, _, numbers = line.partition(":")
        for kind, name in INTERFACES.items():
            if interface.strip() == name:
                counted = numbers.split()
                found[kind.value] = (int(counted[0]), int(counted[8]))
    return found

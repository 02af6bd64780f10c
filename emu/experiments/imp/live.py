"""The same trial in real time: two emulated phones, nginx, the real prefetcher; beside its simulation.

    python -m emu.experiments.imp.live --places DIR --trial 1 --trial 2 --strategy imp-data --json F

What the simulation leaves out is in here: connections are set up, TCP is the kernel's, queues fill, and
the fetchers are those of `cedos.prefetch`. Rates and coverage are told as in the simulation.
"""

import argparse
import asyncio
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path as FilePath
from typing import Any

import numpy as np

from cedos.model import NetworkKind
from cedos.prefetch.http import Body, HttpFetcher
from cedos.prefetch.prefetcher import Future, Prefetcher
from cedos.prefetch.surroundings import NetworkFacts, View
from cedos.prefetch.turn import FetchError, Turn
from cedos.selector.energy import RadioWatch
from cedos.selector.prefetch.outlook import Outlook, Path, PrefetchPrices
from cedos.selector.prefetch.queue import Plan, Queue
from emu.experiments.imp import workload
from emu.experiments.imp.demand import EVERY_S, METERED, Budgets, Demand, Knowledge
from emu.experiments.imp.setting import Setting, setting
from emu.experiments.imp.simulate import Outcome, Trial
from emu.experiments.imp.workload import Workload, simple
from emu.places import places
from emu.testbed.access import INTERFACES
from emu.testbed.phones import SERVER, Laptop
from emu.testbed.programs.servers import Servers

SAMPLE_S = 0.2
Counters = Mapping[str, tuple[int, int]]


@dataclass(frozen=True, slots=True)
class Used:
    """Joules by network, and bytes over metered ones."""

    joules: dict[str, float]
    metered_bytes: float


class LiveHost:
    """The trial's host: what it sees, and what it has used.

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
        """Return the network for a demand fetch; None: none for now."""
        return self._demand.best(size_bytes, self.now_s())

    def moves(self, name: str, left_bytes: float) -> bool:
        """Return whether what is under way over a network is to go on over another one."""
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
        """Count for ever what the interfaces carry, for the radios and the budgets."""
        while True:
            self.observe(self.now_s(), counters())
            await asyncio.sleep(SAMPLE_S)

    def observe(self, now_s: float, counted: Counters) -> None:
        """Note what the interfaces have carried by now."""
        if self._closed is None and now_s >= self._duration_s:
            # A pending demand is served after the period, but not within its budgets.
            self._closed = self._used(self._duration_s)
        if now_s - self._updated_s >= EVERY_S:
            self._updated_s = now_s
            self._knowledge.update(self._start_s + now_s)
        for name, (received, sent) in counted.items():
            before = self._last[name]
            self._watches[name].add_bytes(now_s, sent - before[1], received - before[0])
        self._last = counted
        used = self._used(now_s)
        self._budgets.observe(now_s, sum(used.joules.values()), used.metered_bytes)

    def used(self) -> Used:
        """Return what was used within the period, or until now if the period is not over."""
        return self._closed if self._closed is not None else self._used(self.now_s())

    def _used(self, now_s: float) -> Used:
        return Used(
            {name: watch.energy_j(now_s) for name, watch in self._watches.items()},
            sum(sum(self._last[name]) - sum(self._first[name]) for name in METERED),
        )


def counters() -> Counters:
    """Return what this namespace's interfaces have carried: bytes received and sent by network."""
    lines = FilePath("/proc/thread-self/net/dev").read_text().splitlines()[2:]
    found = {}
    for line in lines:
        interface, _, numbers = line.partition(":")
        for kind, name in INTERFACES.items():
            if interface.strip() == name:
                counted = numbers.split()
                found[kind.value] = (int(counted[0]), int(counted[8]))
    return found


class Fetcher(HttpFetcher):
    """On demand over the network that is best then, and off one that is lost."""

    def __init__(self, url: str, size_bytes: int, host: LiveHost) -> None:
        super().__init__(url)
        self._size_bytes = size_bytes
        self._host = host

    @property
    def _left_bytes(self) -> float:
        return max(self._size_bytes - self._part.size, 1.0)

    async def fetch(self, turn: Turn) -> Body:
        if turn.interface is not None:
            return await super().fetch(turn)
        while (name := self._host.best(self._left_bytes)) is None:  # noqa: ASYNC110
            await asyncio.sleep(0.1)
        turn.use(INTERFACES[NetworkKind(name)])
        fetching = asyncio.ensure_future(super().fetch(turn))
        try:
            while not fetching.done():
                await asyncio.wait({fetching}, timeout=0.2)
                if fetching.done():
                    break
                if not self._host.up(name):
                    raise FetchError(f"{name} is lost")
                if self._host.moves(name, self._left_bytes):
                    raise FetchError(f"another network is better than {name} by now")
            return fetching.result()
        finally:
            fetching.cancel()


@dataclass(slots=True)
class _BudgetedQueue(Queue):
    """Ours; its budgets see what waits."""

    budgets: Budgets = field(kw_only=True)

    def plan(self, now_s: float, paths: Sequence[Path], prices: PrefetchPrices) -> Plan:
        self.budgets.waiting(self, now_s, paths)
        return Queue.plan(self, now_s, paths, prices)


async def _read(
    work: Workload, host: LiveHost, queue: Queue, place: Setting, duration_s: float
) -> Outcome:
    outcome = Outcome()
    work.teach(queue.accuracy)
    async with Prefetcher(host, queue=queue, outlook=Outlook(place.averages)) as prefetcher:
        counting = asyncio.create_task(host.count())
        futures: dict[int, Future[Body]] = {
            item.key: prefetcher.prefetch(
                Fetcher(f"http://{SERVER}/bytes/{item.size_bytes}", item.size_bytes, host),
                size=item.size_bytes,
                cls=item.cls,
            )
            for item in work.items
        }
        read = {item.key: item.read for item in work.items}
        # Setting everything up took a while already.
        think_s = max(work.steps[0].think_s - host.now_s(), 0.0)
        for step, following in zip(work.steps, [*work.steps[1:], None], strict=True):
            await asyncio.sleep(think_s)
            think_s = following.think_s if following is not None else 0.0
            future = futures[step.key]
            if not read[step.key]:
                future.cancel()
                continue
            outcome.prefetched += future.ready
            asked_s = host.now_s()
            while True:
                try:
                    await future.get()
                    break
                except FetchError:
                    await asyncio.sleep(0.05)
            outcome.fetch_s.append(host.now_s() - asked_s)
        await asyncio.sleep(max(duration_s - host.now_s(), 0.0))
        await asyncio.sleep(2 * SAMPLE_S)
        used = host.used()
        outcome.joules, outcome.energy_j = used.joules, sum(used.joules.values())
        outcome.data_bytes = used.metered_bytes
        counting.cancel()
    return outcome


def live(
    work: Workload, place: Setting, queue: Queue, budgets: Budgets, start_s: float, seconds: float
) -> Outcome:
    accesses = [network.access.rotated(start_s) for network in place.networks.values()]
    with Laptop(*accesses, source_rules=True) as laptop, Servers(laptop, dns=False) as servers:
        for item in work.items:
            servers.make_size(item.size_bytes)
        with laptop.client.entered():
            # The replay began when the links stood: the host's clock is theirs within 0.1 s.
            began_s = min(link.started_at_s for link in laptop.links.values())
            host = LiveHost(place, budgets, start_s, seconds, began_s, counters())
            return asyncio.run(_read(work, host, queue, place, seconds))


def figures(outcome: Outcome) -> dict[str, Any]:
    return {
        "fetch_s": round(float(np.mean(outcome.fetch_s)), 4),
        "each_s": [round(one, 3) for one in outcome.fetch_s],
        "hits": sum(one < 0.05 for one in outcome.fetch_s),
        "energy_j": round(outcome.energy_j, 2),
        "joules": {name: round(joules, 2) for name, joules in outcome.joules.items()},
        "data_mb": round(outcome.data_bytes / 1e6, 3),
    }


def main() -> None:
    """Play some strategies live and simulated, and write both."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--places", type=FilePath)
    parser.add_argument("--place", default="p12")
    parser.add_argument("--contacts-seed", type=int, default=1)
    parser.add_argument("--strategy", action="append", default=[])
    parser.add_argument("--scale", type=float, default=4.29)
    parser.add_argument("--data-mb", type=float, default=12.0)
    parser.add_argument("--reading", type=float, default=150.0)
    parser.add_argument("--seconds", type=float, default=200.0)
    parser.add_argument("--trial", type=int, action="append", default=[])
    parser.add_argument("--simulate-only", action="store_true")
    parser.add_argument("--json", type=FilePath)
    given = parser.parse_args()
    known = places.load(places.default_directory(given.places))
    place = setting(known, [given.place], "nexus-one", "3g", 3.0, given.contacts_seed)
    trials = []
    for number in given.trial or [0]:
        start_s = float(np.random.default_rng([1, number]).uniform(0.0, place.period_s))
        work = workload.email(1000 + number, scale=given.scale, reading_s=given.reading)
        found = {}
        for name in given.strategy or ["wifi-only", "always", "imp-data"]:
            found[name] = _both(name, work, place, start_s, given)
            print(number, name, json.dumps(found[name]), flush=True)
        trials.append({"trial": number, "start_s": round(start_s, 3), "strategies": found})
    if given.json is not None:
        settings = {key: getattr(given, key) for key in ("scale", "data_mb", "reading", "seconds")}
        given.json.write_text(json.dumps({**settings, "trials": trials}) + "\n")


def _both(
    name: str,
    work: Workload,
    place: Setting,
    start_s: float,
    given: argparse.Namespace,
) -> dict[str, Any]:
    made = simple(work.threshold_bytes)
    data_bytes = given.data_mb * 1e6 if name == "imp-data" else None
    simulated = Trial(
        work,
        place.networks,
        place.radios,
        made[name]() if name in made else Queue(),
        Budgets(given.seconds, None, data_bytes),
        place.averages,
        start_s=start_s,
        duration_s=given.seconds,
    ).run()
    found = {"simulated": figures(simulated)}
    if not given.simulate_only:
        budgets = Budgets(given.seconds, None, data_bytes)
        queue = made[name]() if name in made else _BudgetedQueue(budgets=budgets)
        found["live"] = figures(live(work, place, queue, budgets, start_s, given.seconds))
    return found


if __name__ == "__main__":
    main()

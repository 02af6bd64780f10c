"""A trial without a clock: a person reads, something prefetches, two networks carry it. Simulated.

The decisions are those of the real program (`cedos.selector`), at the same moments: once a second and
whenever something begins or ends. Networks are replayed packet opportunity by packet opportunity
(`emu.experiments.replayed_network`). One fetch at a time on a network, each over a connection of its
own, as the fetchers of `cedos.apps.prefetch` open them. What a person
waits for has the networks to itself: prefetches stand back, and go on with what is left. A host is
taken to know what a network carried in the last seconds, without paying for it: so are all strategies.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import groupby
from math import inf

from cedos.selector.energy import Radio, RadioWatch
from cedos.selector.prefetch.outlook import Average, Outlook, Path, mean_wake_j
from cedos.selector.prefetch.queue import Queue, State
from emu.experiments.imp.demand import EVERY_S, METERED, Budgets, Knowledge, Offer, best, moves
from emu.experiments.imp.workload import Workload
from emu.experiments.replayed_network import Exchange, ReplayedNetwork

_BIN_S = 0.1


class Account:
    """Counts one network. Exchanges are told whole, and counted as far as time has come.

    Args:
        origin_s: instant 0 of the trial, in seconds of the replay.
    """

    def __init__(self, radio: Radio, origin_s: float) -> None:
        self.radio = radio
        self.watch = RadioWatch(radio, sampled_s=_BIN_S)
        self.bytes = 0
        self._origin_s = origin_s
        # (time, up, down) of what has not passed yet, the last first.
        self._ahead: list[tuple[float, int, int]] = []

    def begins(self, exchange: Exchange) -> None:
        """Note that an exchange begins; the one before it has ended or was cut."""
        until_s = exchange.ended_at_s
        packets = [(at_s, size, 0) for at_s, size in exchange.up if at_s <= until_s]
        packets += [(at_s, 0, size) for at_s, size in exchange.down if at_s <= until_s]
        packets.sort()
        bins = []
        for _, group in groupby(packets, key=lambda packet: int(packet[0] / _BIN_S)):
            members = list(group)
            at_s = members[-1][0] - self._origin_s
            up, down = sum(each[1] for each in members), sum(each[2] for each in members)
            bins.append((at_s, up, down))
        self._ahead = bins[::-1]

    def cut(self, now_s: float) -> None:
        """Cut the exchange that is under way."""
        self.count(now_s)
        self._ahead = []

    def count(self, now_s: float) -> None:
        """Take what has passed by now."""
        while self._ahead and self._ahead[-1][0] <= now_s:
            at_s, up, down = self._ahead.pop()
            self.bytes += up + down
            self.watch.add_bytes(at_s, up, down)

    def energy_j(self, now_s: float) -> float:
        self.count(now_s)
        return self.watch.energy_j(now_s)

    def committed_j(self, now_s: float) -> float:
        """Joules until now, with those of the tail that is still to come whatever is done."""
        idle_s = self.watch.idle_s(now_s)
        ahead_j = 0.0
        if idle_s is not None and idle_s < self.radio.tail_s:
            ahead_j = self.radio.tail_j - self.radio.added_tail_j(idle_s)
        return self.energy_j(now_s) + ahead_j


REQUEST_BYTES = 300
# The weight, in seconds of this place, of the host's knowledge of other places.
_PAST_S = 120.0


@dataclass(slots=True)
class _Running:
    """A fetch that is under way; `had_bytes` were there before it began."""

    key: int
    network: str
    exchange: Exchange
    had_bytes: float
    size_bytes: float

    def received(self, at_s: float) -> float:
        return self.had_bytes + self.exchange.received_bytes(at_s)


@dataclass(slots=True)
class Event:
    at_s: float
    what: str
    key: int
    network: str = ""


@dataclass(slots=True)
class Outcome:
    """The outcome of a trial."""

    # What the person waited for each item that was read.
    fetch_s: list[float] = field(default_factory=list)
    energy_j: float = 0.0  # of both radios, until the end of the period
    data_bytes: float = 0.0  # over metered networks, headers included
    prefetched: int = 0  # items that were there before the person asked
    events: list[Event] = field(default_factory=list)  # what happened, where that was wanted


class Trial:
    """A trial of one strategy on one workload."""

    def __init__(
        self,
        workload: Workload,
        networks: Mapping[str, ReplayedNetwork],
        radios: Mapping[str, Radio],
        queue: Queue,
        budgets: Budgets,  # what it is to keep
        averages: Mapping[str, Average],  # what the host knows of its networks from before
        *,
        start_s: float,  # where in the places it begins
        duration_s: float,
    ) -> None:
        self._workload = workload
        self._networks = networks
        self._queue = queue
        self._budgets = budgets
        self._knowledge = Knowledge(networks, Outlook(dict(averages), prior_s=_PAST_S))
        self._start_s = start_s
        self._duration_s = duration_s
        self._accounts = {name: Account(radios[name], start_s) for name in networks}
        self._running: dict[str, _Running] = {}
        self._demand: _Running | None = None
        self._wanted: int | None = None
        self._asked_s = 0.0
        self._now_s = 0.0
        self._steps = list(workload.steps)[::-1]
        self._reading_until_s = 0.0
        self._observed_s: float | None = None
        self._items = {item.key: item for item in workload.items}
        self.outcome = Outcome()

    def run(self) -> Outcome:
        """Play it to its end: the person's last item, or the period's, whichever is later."""
        self._workload.teach(self._queue.accuracy)
        for item in self._workload.items:
            self._queue.hint(item.key, 0.0, item.size_bytes, item.cls)
        self._reading_until_s = self._steps[-1].think_s
        next_tick_s, ended = 0.0, False
        while not ended:
            if self._now_s >= next_tick_s:
                next_tick_s = self._now_s + EVERY_S
                self._observe()
            self._plan()
            self._now_s = self._next(next_tick_s)
            self._happen()
            done = not self._steps and self._wanted is None
            if self._now_s >= self._duration_s and self.outcome.energy_j == 0.0:
                self._close()
            ended = done and self._now_s >= self._duration_s
        return self.outcome

    def _close(self) -> None:
        at_s = self._duration_s
        self.outcome.energy_j = sum(each.energy_j(at_s) for each in self._accounts.values())
        self.outcome.data_bytes = sum(self._accounts[name].bytes for name in METERED)

    def _next(self, tick_s: float) -> float:
        ends = [one.exchange.ended_at_s - self._start_s for one in self._all()]
        changes = [
            network.next_change_s(self._start_s + self._now_s) - self._start_s
            for network in self._networks.values()
        ]
        user_s = self._reading_until_s if self._wanted is None and self._steps else inf
        return max(min([tick_s, user_s, *ends, *changes]), self._now_s + 1e-6)

    def _all(self) -> list[_Running]:
        return [*self._running.values(), *([self._demand] if self._demand is not None else [])]

    def _happen(self) -> None:
        at_s = self._start_s + self._now_s
        for account in self._accounts.values():
            account.count(self._now_s)
        if self._demand is not None and self._demand.exchange.ended_at_s <= at_s:
            self._demand_ended(self._demand)
        for one in list(self._running.values()):
            if one.exchange.ended_at_s <= at_s:
                self._prefetch_ended(one)
        if self._wanted is None and self._steps and self._now_s >= self._reading_until_s - 1e-9:
            self._act()

    def _act(self) -> None:
        step = self._steps.pop()
        item = self._items[step.key]
        if not item.read:
            running = next((one for one in self._running.values() if one.key == step.key), None)
            if running is not None:
                self._cut(running)
            self._queue.cancel(step.key, self._now_s)
            self._note("cancelled", step.key)
            self._read_on()
            return
        self._asked_s = self._now_s
        was = self._queue.demand(step.key, self._now_s)
        self._note("demanded", step.key)
        if was is State.READY:
            self.outcome.prefetched += 1
            self.outcome.fetch_s.append(0.0)
            self._read_on()
            return
        self._wanted = step.key
        for one in list(self._running.values()):
            if one.key == step.key:
                # Under way already: it goes on, now as a demand fetch.
                del self._running[one.network]
                self._demand = one
            else:
                self._cut(one)
        self._serve()

    def _read_on(self) -> None:
        if self._steps:
            self._reading_until_s = self._now_s + self._steps[-1].think_s

    def _serve(self) -> None:
        """Fetch what the person waits for, over the network of the lowest cost.

        What would break a cap on data waits for a free network.
        """
        if self._wanted is None or self._demand is not None:
            return
        left = self._queue.left_bytes(self._wanted)
        prices, breaks = self._budgets.prices(self._now_s), self._budgets.breaks(left)
        name = best(self._offers(), left, prices, breaks=breaks)
        if name is not None:
            self._demand = self._fetch(self._wanted, name)

    def _fetch(self, key: int, name: str) -> _Running:
        item = self._queue.items[key]
        exchange = self._networks[name].exchange(
            self._start_s + self._now_s,
            REQUEST_BYTES,
            max(round(self._queue.left_bytes(key)), 1),
            handshake=True,
        )
        self._accounts[name].begins(exchange)
        return _Running(key, name, exchange, item.received_bytes, item.size_bytes or 0.0)

    def _demand_ended(self, one: _Running) -> None:
        self._demand = None
        if one.exchange.completed_at_s <= one.exchange.lost_at_s:
            self._queue.on_finished(one.key, one.size_bytes)
            self.outcome.fetch_s.append(self._now_s - self._asked_s)
            self._note("fetched", one.key, one.network)
            self._wanted = None
            self._read_on()
        else:
            self._progress(one)

    def _prefetch_ended(self, one: _Running) -> None:
        del self._running[one.network]
        if one.exchange.completed_at_s <= one.exchange.lost_at_s:
            self._queue.on_finished(one.key, one.size_bytes)
            self._note("prefetched", one.key, one.network)
        else:
            self._progress(one)
            self._queue.on_stop(one.key)
            self._note("lost", one.key, one.network)

    def _progress(self, one: _Running) -> None:
        self._queue.on_progress(one.key, one.received(self._start_s + self._now_s))

    def _cut(self, one: _Running) -> None:
        """Cut a prefetch; what it has received stays."""
        self._running.pop(one.network, None)
        self._accounts[one.network].cut(self._now_s)
        self._progress(one)
        self._queue.on_stop(one.key)
        self._note("stopped", one.key, one.network)

    def _observe(self) -> None:
        """Once a second: what networks are like, and what has been used."""
        self._observed_s = self._now_s
        self._knowledge.update(self._start_s + self._now_s)
        energy_j = sum(account.committed_j(self._now_s) for account in self._accounts.values())
        data = sum(self._accounts[name].bytes for name in METERED)
        self._budgets.observe(self._now_s, energy_j, data)
        if self._demand is not None:
            self._reconsider(self._demand)

    def _reconsider(self, one: _Running) -> None:
        """Move a demand fetch where another network would finish it much sooner."""
        left = max(one.size_bytes - one.received(self._start_s + self._now_s), 1.0)
        prices, breaks = self._budgets.prices(self._now_s), self._budgets.breaks(left)
        if moves(self._offers(), one.network, left, prices, breaks=breaks):
            self._accounts[one.network].cut(self._now_s)
            self._progress(one)
            self._demand = None

    def _up(self, name: str) -> bool:
        return self._networks[name].up_at(self._start_s + self._now_s)

    def _offers(self) -> list[Offer]:
        return [
            Offer(
                name,
                self._knowledge.rate_bps(name),
                self._networks[name].rtt_s,
                account.radio,
                account.watch.idle_s(self._now_s),
            )
            for name, account in self._accounts.items()
            if self._up(name)
        ]

    def _paths(self) -> list[Path]:
        found = []
        for name, network in self._networks.items():
            account = self._accounts[name]
            average = self._knowledge.outlook.of(name)
            assert average is not None
            found.append(
                Path(
                    name,
                    self._knowledge.rate_bps(name),
                    network.rtt_s,
                    account.radio,
                    average,
                    mean_wake_j(account.radio, account.watch.shares(self._now_s)),
                    idle_s=account.watch.idle_s(self._now_s),
                    present=self._up(name),
                    stretch=self._knowledge.outlook.stretch(name),
                )
            )
        return found

    def _plan(self) -> None:
        self._serve()
        if self._now_s >= self._duration_s:
            return
        paths = self._paths()
        for one in self._running.values():
            self._progress(one)
        if self._observed_s == self._now_s:
            # Once a second: what is open changes slowly.
            self._budgets.waiting(self._queue, self._now_s, paths)
        if self._wanted is not None:
            return  # all stand back
        prices = self._budgets.prices(self._now_s)
        plan = self._queue.plan(self._now_s, paths, prices)
        for key in plan.stops:
            self._cut(next(one for one in self._running.values() if one.key == key))
        if plan.stops:
            plan = self._queue.plan(self._now_s, paths, prices)
        for key, name in plan.starts:
            assert isinstance(key, int)
            self._queue.on_start(key, name)
            self._running[name] = self._fetch(key, name)
            self._note("started", key, name)

    def _note(self, what: str, key: int, network: str = "") -> None:
        self.outcome.events.append(Event(round(self._now_s, 3), what, key, network))

"""The prober: it pings networks by a schedule, and asks resolvers when asked (Delphi, Table 2).

Each probe leaves through its network's interface and has a time limit. Its costs are counted (Table 3).
"""

import asyncio
import contextlib
import secrets
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol

from cedos.errors import PrivilegeError
from cedos.host.monitor.events import Mailbox
from cedos.host.monitor.probing import dns_probe
from cedos.host.monitor.probing.ping import PING_BYTES, PingSocket
from cedos.host.monitor.probing.probes import (
    ProbeKind,
    ProbeOutcome,
    ProbeResult,
    ProbeSchedule,
    Spent,
)
from cedos.model import Address, Network
from cedos.selector.energy import DELPHI, PowerModel
from cedos.selector.probing.cost import probe_cost


@dataclass(slots=True)
class ProbeTotal:
    probes: int = 0
    failed: int = 0
    bytes_up: int = 0
    bytes_down: int = 0
    seconds: float = 0.0
    energy_j: float = 0.0

    @property
    def bytes(self) -> int:
        return self.bytes_up + self.bytes_down


class ProbeCosts:
    """The costs of probes so far, by network and kind (Delphi, Table 3)."""

    def __init__(self) -> None:
        self._totals: dict[tuple[str, ProbeKind], ProbeTotal] = {}

    def add(self, result: ProbeResult) -> None:
        total = self._totals.setdefault((result.network, result.kind), ProbeTotal())
        total.probes += 1
        total.failed += bool(result.problem)
        total.bytes_up += result.spent.bytes_up
        total.bytes_down += result.spent.bytes_down
        total.seconds += result.spent.seconds
        total.energy_j += result.energy_j

    def __iter__(self) -> Iterator[tuple[str, ProbeKind, ProbeTotal]]:
        for (network, kind), total in self._totals.items():
            yield network, kind, total

    def bytes(self, network: str) -> int:
        return sum(total.bytes for name, _, total in self if name == network)


_LONG_AGO_S = 3600.0


class Pinger(Protocol):
    """A sender of pings of one IP version over one interface (`ping.PingSocket`, or a test's)."""

    def send(self, target: Address) -> int:
        """Send a ping and return its sequence number. OSError: the network does not take it."""

    def forget(self, sequence: int) -> None: ...

    def close(self) -> None: ...


OpenPinger = Callable[[str, int, Callable[[int, float], None]], Pinger]


_PingFinished = Callable[[Network, ProbeOutcome], ProbeResult]


class _Pings:
    def __init__(
        self, network: Network, version: int, open_pinger: OpenPinger, finished: _PingFinished
    ) -> None:
        self.network = network
        self.version = version
        self._finished = finished
        self._timers: dict[int, asyncio.TimerHandle] = {}
        self._sent_at_s: dict[int, float] = {}
        self._waiting: dict[int, asyncio.Future[ProbeResult]] = {}
        self._pinger = open_pinger(network.interface, version, self._answered)

    def ping(self, target: Address, timeout_s: float) -> "asyncio.Future[ProbeResult]":
        loop = asyncio.get_running_loop()
        future: asyncio.Future[ProbeResult] = loop.create_future()
        try:
            sequence = self._pinger.send(target)
        except OSError:
            future.set_result(self._finished(self.network, _lost("the network takes nothing")))
            return future
        self._waiting[sequence] = future
        self._sent_at_s[sequence] = time.monotonic()
        self._timers[sequence] = loop.call_later(timeout_s, self._overdue, sequence)
        return future

    def _answered(self, sequence: int, rtt_s: float) -> None:
        # Earlier pings without an answer are lost. Report them now, before this answer: if they were
        # reported later, a network that has come back would look gone.
        sent_at_s = self._sent_at_s[sequence]
        for earlier in [each for each, at_s in self._sent_at_s.items() if at_s < sent_at_s]:
            self._timers[earlier].cancel()
            self._overdue(earlier)
        self._timers.pop(sequence).cancel()
        size = PING_BYTES[self.version]
        self._finish(sequence, ProbeOutcome({"rtt_s": rtt_s}, Spent(size, size, rtt_s)))

    def _overdue(self, sequence: int) -> None:
        del self._timers[sequence]
        self._pinger.forget(sequence)
        waited_s = time.monotonic() - self._sent_at_s[sequence]
        spent = Spent(PING_BYTES[self.version], 0, waited_s)
        self._finish(sequence, _lost("no answer in time", spent))

    def _finish(self, sequence: int, outcome: ProbeOutcome) -> None:
        future = self._waiting.pop(sequence)
        del self._sent_at_s[sequence]
        result = self._finished(self.network, outcome)
        if not future.done():
            future.set_result(result)

    @property
    def asked_at_s(self) -> float | None:
        """Return when the oldest ping that may still be answered was sent; None: there is none."""
        return min(self._sent_at_s.values(), default=None)

    def close(self) -> None:
        for timer in self._timers.values():
            timer.cancel()
        for future in self._waiting.values():
            if not future.done():
                problem, now_s = "the network went away", time.monotonic()
                future.set_result(
                    ProbeResult(
                        self.network.name, ProbeKind.PING, now_s, {}, Spent(), problem=problem
                    )
                )
        self._pinger.close()


def _lost(problem: str, spent: Spent | None = None) -> ProbeOutcome:
    return ProbeOutcome({}, spent or Spent(), problem)


class Prober:
    """Pings the networks by a schedule, and asks their resolvers when asked.

    It is an asynchronous context manager. Its owner tells it of networks by `networks_changed` and
    `in_use`. `problem` says why nothing is pinged.
    """

    def __init__(
        self,
        # Returns the host to ping over a network; None: no host. The network's router would be a
        # bad choice, since the path behind it is what counts.
        target: Callable[[Network], Address | None],
        *,
        schedule: ProbeSchedule | None = None,  # when to ping
        ping_timeout_s: float = 1.0,  # after this time a ping counts as lost
        timeout_s: float = 2.0,  # how long a look-up may take
        dns_name: str = "example.com",  # look-ups ask for names below this public one
        power: PowerModel = DELPHI,  # of the radios
        open_pinger: OpenPinger = PingSocket,  # `PingSocket`, or a test's
    ) -> None:
        self.problem = ""
        self.costs = ProbeCosts()
        self._ping_timeout_s = ping_timeout_s
        self._dns_name = dns_name
        self._power = power
        self._used_at_s: dict[str, float] = {}
        self._heard_at_s: dict[str, float] = {}
        self._target = target
        self._schedule = schedule or ProbeSchedule()
        self._timeout_s = timeout_s
        self._open_pinger = open_pinger
        self._networks: Mapping[str, Network] = {}
        self._pings: dict[str, _Pings] = {}
        self._mailbox: Mailbox[ProbeResult] = Mailbox()
        self._wake = asyncio.Event()

    async def __aenter__(self) -> "Prober":
        self._task = asyncio.create_task(self._run(), name="probes")
        return self

    async def __aexit__(self, *_: object) -> None:
        self._task.cancel()
        await asyncio.wait({self._task})
        for name in list(self._pings):
            self._pings.pop(name).close()
        self._mailbox.close()

    def networks_changed(self, networks: Iterable[Network]) -> None:
        """Take the list of all networks; close sockets of interfaces that were removed or made anew."""
        self._networks = {network.name: network for network in networks}
        for gone in self._heard_at_s.keys() - self._networks.keys():
            del self._heard_at_s[gone]
        for name, pings in list(self._pings.items()):
            new = self._networks.get(name)
            if new is None or not new.up or new.index != pings.network.index:
                self._pings.pop(name).close()
        self._schedule.networks_changed(self._networks.values())
        self._wake.set()

    def in_use(self, names: Iterable[str]) -> None:
        names = list(names)
        self._used_at_s |= dict.fromkeys(names, time.monotonic())
        self._schedule.in_use(names)
        self._wake.set()

    def on_heard(self, name: str, at_s: float) -> None:
        """Note that a packet from beyond the network's router came at a monotonic time."""
        self._heard_at_s[name] = max(at_s, self._heard_at_s.get(name, at_s))
        self._schedule.on_heard(name, at_s)

    @property
    def heard_at_s(self) -> Mapping[str, float]:
        """Return by network when data last came from beyond its router, for a ping or for a program."""
        return self._heard_at_s

    def silent(self, names: Iterable[str]) -> None:
        self._schedule.silent(names)
        self._wake.set()

    def user_present(self, present: bool) -> None:
        self._schedule.user_present(present)
        self._wake.set()

    def asked_at_s(self) -> dict[str, float]:
        """Return by network when (monotonic) the oldest ping was sent that may still be answered."""
        waiting = ((name, pings.asked_at_s) for name, pings in self._pings.items())
        return {name: at_s for name, at_s in waiting if at_s is not None}

    def results(self) -> AsyncIterator[ProbeResult]:
        """Return the results of all probes since the prober was started; for one consumer."""
        return self._mailbox.iterate()

    def ask(self, network: Network) -> None:
        """Ping now, unless a ping may still be answered; the result goes to `results`."""
        if network.name not in self.asked_at_s():
            self._start(network)

    async def ping(self, network: Network) -> ProbeResult:
        """Ping now; return `rtt_s` or the problem. `results` and `costs` get the same."""
        started = self._start(network)
        if started is not None:
            return await started
        return self.finished(network, _lost(self.problem or "there is no host to ping"))

    async def knows_names(self, network: Network) -> bool | None:
        """Return whether the network's resolver answers for a name that it cannot have cached.

        For such a name it must ask a server beyond the network. None: the result tells nothing, since the
        resolver refuses or makes answers up, or the router that was asked need not be a resolver.
        """
        resolver = next(filter(network.reaches, (*network.resolvers, *network.gateways)), None)
        fresh = f"{secrets.token_hex(8)}.{self._dns_name}"
        try:
            outcome = await dns_probe.run(
                network, fresh, resolver=resolver, timeout_s=self._timeout_s
            )
        except ValueError:  # the name would be too long
            return None
        self.finished(network, outcome, ProbeKind.DNS)
        if not outcome.problem:
            return True
        return False if network.resolvers and outcome.problem == dns_probe.NO_ANSWER else None

    def finished(
        self,
        network: Network,
        outcome: ProbeOutcome,
        kind: ProbeKind = ProbeKind.PING,
    ) -> ProbeResult:
        now_s = time.monotonic()
        spent = outcome.spent
        began_s = now_s - spent.seconds
        idle_s = began_s - self._used_at_s.get(network.name, began_s - _LONG_AGO_S)
        cost = probe_cost(
            network.kind,
            bytes_up=spent.bytes_up,
            bytes_down=spent.bytes_down,
            seconds=spent.seconds,
            idle_s=max(idle_s, 0.0),
            power=self._power,
        )
        if kind is ProbeKind.PING:
            self._schedule.on_answer(network.name, not outcome.problem)
        if not outcome.problem:
            self._heard_at_s[network.name] = now_s
        if spent.bytes:
            self._used_at_s[network.name] = now_s
        result = ProbeResult(
            network.name,
            kind,
            now_s,
            outcome.indicators,
            spent,
            cost.energy_j,
            outcome.problem,
        )
        self.costs.add(result)
        self._mailbox.put(result)
        return result

    def _start(self, network: Network) -> "asyncio.Future[ProbeResult] | None":
        target = self._target(network)
        if target is None:
            return None
        pings = self._pings.get(network.name)
        if pings is None or pings.version != target.version or pings.network.index != network.index:
            if pings is not None:
                self._pings.pop(network.name).close()
            try:
                pings = _Pings(network, target.version, self._open_pinger, self.finished)
            except PrivilegeError as error:
                self.problem = str(error)
                return None
            except OSError:  # the interface went away between two events
                return None
            self._pings[network.name] = pings
        return pings.ping(target, self._ping_timeout_s)

    async def _run(self) -> None:
        while True:
            self._wake.clear()
            now_s = time.monotonic()
            for name in self._schedule.take_due(now_s):
                self._start(self._networks[name])
            next_s = self._schedule.next_s()
            wait_s = None if next_s is None else max(next_s - time.monotonic(), 0.0)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(wait_s):
                    await self._wake.wait()

"""The prober: it pings networks by a schedule, and asks resolvers when asked (Delphi, Table 2).

Each probe leaves through its network's interface and has a time limit.
"""

import asyncio
import contextlib
import secrets
import time
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from typing import Protocol

from cedos.controller.events import PingEnded
from cedos.errors import PrivilegeError
from cedos.host.monitor.events import Mailbox
from cedos.host.monitor.probing import dns_probe
from cedos.host.monitor.probing.ping import PingSocket
from cedos.host.monitor.probing.probes import TIMEOUT_S, ProbeSchedule
from cedos.model import Address, Network


class Pinger(Protocol):
    """A sender of pings of one IP version over one interface (`ping.PingSocket`, or a test's)."""

    def send(self, target: Address) -> int:
        """Send a ping and return its sequence number. OSError: the network does not take it."""

    def forget(self, sequence: int) -> None: ...

    def close(self) -> None: ...


OpenPinger = Callable[[str, int, Callable[[int, float], None]], Pinger]


# Takes the network's name, the round trip in s (None: no answer in time), and when it was asked.
_PingFinished = Callable[[str, float | None, float], None]


class _Pings:
    def __init__(
        self, network: Network, version: int, open_pinger: OpenPinger, finished: _PingFinished
    ) -> None:
        self.network = network
        self.version = version
        self._finished = finished
        self._timers: dict[int, asyncio.TimerHandle] = {}
        self._sent_at_s: dict[int, float] = {}
        self._pinger = open_pinger(network.interface, version, self._on_answer)

    def ping(self, target: Address, timeout_s: float) -> None:
        now_s = time.monotonic()
        try:
            sequence = self._pinger.send(target)
        except OSError:  # the network takes nothing
            self._finished(self.network.name, None, now_s)
            return
        self._sent_at_s[sequence] = now_s
        loop = asyncio.get_running_loop()
        self._timers[sequence] = loop.call_later(timeout_s, self._overdue, sequence)

    def _on_answer(self, sequence: int, rtt_s: float) -> None:
        # Earlier pings without an answer are lost. Report them now, before this answer: if they were
        # reported later, a network that has come back would look gone.
        sent_at_s = self._sent_at_s.pop(sequence)
        for earlier in [each for each, at_s in self._sent_at_s.items() if at_s < sent_at_s]:
            self._timers[earlier].cancel()
            self._overdue(earlier)
        self._timers.pop(sequence).cancel()
        self._finished(self.network.name, rtt_s, sent_at_s)

    def _overdue(self, sequence: int) -> None:
        del self._timers[sequence]
        self._pinger.forget(sequence)
        self._finished(self.network.name, None, self._sent_at_s.pop(sequence))

    @property
    def asked_at_s(self) -> float | None:
        """Return when the oldest ping that may still be answered was sent; None: there is none."""
        return min(self._sent_at_s.values(), default=None)

    def close(self) -> None:
        for timer in self._timers.values():
            timer.cancel()
        self._pinger.close()


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
        timeout_s: float = TIMEOUT_S,
        dns_name: str = "example.com",  # look-ups ask for names below this public one
        open_pinger: OpenPinger = PingSocket,  # `PingSocket`, or a test's
    ) -> None:
        self.problem = ""
        self._dns_name = dns_name
        self._heard_at_s: dict[str, float] = {}
        self._target = target
        self._schedule = schedule or ProbeSchedule()
        self._timeout_s = timeout_s
        self._open_pinger = open_pinger
        self._networks: Mapping[str, Network] = {}
        self._pings: dict[str, _Pings] = {}
        self._mailbox: Mailbox[PingEnded] = Mailbox()
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

    def asked_at_s(self) -> dict[str, float]:
        """Return by network when (monotonic) the oldest ping was sent that may still be answered."""
        waiting = ((name, pings.asked_at_s) for name, pings in self._pings.items())
        return {name: at_s for name, at_s in waiting if at_s is not None}

    def results(self) -> AsyncIterator[PingEnded]:
        """Return the ends of all pings since the prober was started; for one consumer."""
        return self._mailbox.iterate()

    def ask(self, network: Network) -> None:
        """Ping now, unless a ping may still be answered; the result goes to `results`."""
        if network.name not in self.asked_at_s():
            self._start(network)

    async def knows_names(self, network: Network) -> bool | None:
        """Return whether the network's resolver answers for a name that it cannot have cached.

        For such a name it must ask a server beyond the network. None: the result tells nothing, since the
        resolver refuses or makes answers up, or the router that was asked need not be a resolver.
        """
        resolver = next(filter(network.reaches, (*network.resolvers, *network.gateways)), None)
        fresh = f"{secrets.token_hex(8)}.{self._dns_name}"
        try:
            problem = await dns_probe.run(
                network, fresh, resolver=resolver, timeout_s=self._timeout_s
            )
        except ValueError:  # the name would be too long
            return None
        if not problem:
            self._heard_at_s[network.name] = time.monotonic()
            return True
        return False if network.resolvers and problem == dns_probe.NO_ANSWER else None

    def _on_finished(self, network: str, rtt_s: float | None, asked_s: float) -> None:
        now_s = time.monotonic()
        self._schedule.on_answer(network, rtt_s is not None)
        if rtt_s is not None:
            self._heard_at_s[network] = now_s
        self._mailbox.put(PingEnded(network, rtt_s, asked_s, now_s))

    def _start(self, network: Network) -> None:
        target = self._target(network)
        if target is None:
            return
        pings = self._pings.get(network.name)
        if pings is None or pings.version != target.version or pings.network.index != network.index:
            if pings is not None:
                self._pings.pop(network.name).close()
            try:
                pings = _Pings(network, target.version, self._open_pinger, self._on_finished)
            except PrivilegeError as error:
                self.problem = str(error)
                return
            except OSError:  # the interface went away between two events
                return
            self._pings[network.name] = pings
        pings.ping(target, self._timeout_s)

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

"""Light active probes of one network at a time: ping and DNS time (Delphi, Table 2).

Every probe leaves through its network's interface, has a time limit, is matched to its answer, and
its bytes are counted: a probe is never free.
"""

import asyncio
import contextlib
import secrets
import socket
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Protocol

from cedos.errors import PrivilegeError
from cedos.model import Address, Network
from cedos.monitor import dns
from cedos.monitor.events import Mailbox
from cedos.monitor.ping import PING_BYTES, PingSocket
from cedos.monitor.schedule import ProbeSchedule

_UDP_HEADERS = {4: 28, 6: 48}


@dataclass(frozen=True, slots=True)
class PingResult:
    """A ping's outcome: `rtt_s` is None when no answer came in time. `at_s` is when that was known."""

    network: str
    rtt_s: float | None
    at_s: float
    bytes: int


@dataclass(frozen=True, slots=True)
class DnsResult:
    """A lookup's outcome: seconds from question to answer, None when none came in time."""

    network: str
    time_s: float | None
    at_s: float
    bytes: int


class Pinger(Protocol):
    """Sends echoes of one IP version over one interface (`ping.PingSocket`, or a test's)."""

    def send(self, target: Address) -> int:
        """Sends one; its sequence number. OSError where the network does not take it."""

    def forget(self, sequence: int) -> None:
        """Gives one up."""

    def close(self) -> None:
        """Ends it."""


OpenPinger = Callable[[str, int, Callable[[int, float], None]], Pinger]


class _Path:
    """One network's pinger and the echoes under way on it."""

    def __init__(self, network: Network, version: int, prober: "Prober", open_: OpenPinger) -> None:
        self.network = network
        self.version = version
        self._prober = prober
        self._timers: dict[int, asyncio.TimerHandle] = {}
        self._sent_at_s: dict[int, float] = {}
        self._waiting: dict[int, asyncio.Future[PingResult]] = {}
        self._pinger = open_(network.interface, version, self._answered)

    def ping(self, target: Address, timeout_s: float) -> "asyncio.Future[PingResult]":
        loop = asyncio.get_running_loop()
        future: asyncio.Future[PingResult] = loop.create_future()
        try:
            sequence = self._pinger.send(target)
        except OSError:
            future.set_result(self._prober.finished(self.network, None, 0))
            return future
        self._waiting[sequence] = future
        self._sent_at_s[sequence] = time.monotonic()
        self._timers[sequence] = loop.call_later(timeout_s, self._overdue, sequence)
        return future

    def _answered(self, sequence: int, rtt_s: float) -> None:
        self._timers.pop(sequence).cancel()
        self._finish(sequence, rtt_s, 2 * PING_BYTES[self.version])

    def _overdue(self, sequence: int) -> None:
        del self._timers[sequence]
        self._pinger.forget(sequence)
        self._finish(sequence, None, PING_BYTES[self.version])

    def _finish(self, sequence: int, rtt_s: float | None, count: int) -> None:
        future = self._waiting.pop(sequence)
        del self._sent_at_s[sequence]
        result = self._prober.finished(self.network, rtt_s, count)
        if not future.done():
            future.set_result(result)

    @property
    def asked_at_s(self) -> float | None:
        """When the oldest ping that may still be answered was sent; None: there is none."""
        return min(self._sent_at_s.values(), default=None)

    def close(self) -> None:
        for timer in self._timers.values():
            timer.cancel()
        for future in self._waiting.values():
            if not future.done():
                future.set_result(PingResult(self.network.name, None, time.monotonic(), 0))
        self._pinger.close()


class Prober:
    """Pings the networks by a schedule, and looks names up when asked.

    Use it as an asynchronous context manager; feed it with `networks_changed` and `in_use`.

    Args:
        target: whom to ping over a network, an address or None for nobody. The gateway would be a
            bad choice: the path behind it is what counts.
        schedule: when.
        ping_timeout_s: after which a ping counts as lost.
        open_pinger: a test's stand-in for `PingSocket`.

    Attributes:
        spent: bytes sent and received by probes so far, by network.
        problem: why nothing is pinged, empty when all is well.
    """

    def __init__(
        self,
        target: Callable[[Network], Address | None],
        *,
        schedule: ProbeSchedule | None = None,
        ping_timeout_s: float = 1.0,
        open_pinger: OpenPinger = PingSocket,
    ) -> None:
        self.problem = ""
        self.spent: Counter[str] = Counter()
        self._target = target
        self._schedule = schedule or ProbeSchedule()
        self._timeout_s = ping_timeout_s
        self._open_pinger = open_pinger
        self._networks: Mapping[str, Network] = {}
        self._paths: dict[str, _Path] = {}
        self._mailbox: Mailbox[PingResult] = Mailbox()
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> "Prober":
        self._task = asyncio.create_task(self._run(), name="probes")
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task})
        for name in list(self._paths):
            self._paths.pop(name).close()
        self._mailbox.close()

    def networks_changed(self, networks: Iterable[Network]) -> None:
        """Takes all networks; sockets of lost or remade interfaces are closed."""
        self._networks = {network.name: network for network in networks}
        for name, path in list(self._paths.items()):
            new = self._networks.get(name)
            if new is None or not new.up or new.index != path.network.index:
                self._paths.pop(name).close()
        self._schedule.networks_changed(self._networks.values())
        self._wake.set()

    def in_use(self, names: Iterable[str]) -> None:
        """Takes the names of all networks that carry something now."""
        self._schedule.in_use(names)
        self._wake.set()

    def silent(self, names: Iterable[str]) -> None:
        """Takes the names of all networks that have fallen silent: they are pinged in a hurry."""
        self._schedule.silent(names)
        self._wake.set()

    def asked_at_s(self) -> dict[str, float]:
        """Network -> when (monotonic) the oldest ping was sent that may still be answered."""
        waiting = ((name, path.asked_at_s) for name, path in self._paths.items())
        return {name: at_s for name, at_s in waiting if at_s is not None}

    def results(self) -> AsyncIterator[PingResult]:
        """The outcomes of all pings since the prober was entered; for one consumer."""
        return self._mailbox.iterate()

    async def ping(self, network: Network) -> PingResult | None:
        """Pings once, now; None without a target or a socket (see `problem`)."""
        started = self._start(network)
        return None if started is None else await started

    async def dns_time(
        self,
        network: Network,
        name: str,
        *,
        resolver: Address | None = None,
        port: int = 53,
        timeout_s: float = 2.0,
    ) -> DnsResult | None:
        """Times the lookup of a name's IPv4 address over a network; an error is an answer, too.

        Args:
            network: the network; the question leaves through its interface.
            name: the name. A fresh one times the whole resolution, a common one the way to the cache.
            resolver: whom to ask, None for the network's first resolver.
            port: the resolver's.
            timeout_s: the limit.

        Returns:
            The outcome; None where the network has no resolver to ask.

        Raises:
            ValueError: no valid name.
        """
        resolver = resolver or next(iter(network.resolvers), None)
        if resolver is None:
            return None
        number = secrets.randbits(16)
        question = dns.query(number, name)
        headers = _UDP_HEADERS[resolver.version]
        spent, took_s = 0, None
        family = socket.AF_INET if resolver.version == 4 else socket.AF_INET6
        loop = asyncio.get_running_loop()
        with (
            socket.socket(family, socket.SOCK_DGRAM) as asker,
            contextlib.suppress(OSError, TimeoutError),
        ):
            asker.setblocking(False)
            asker.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, network.interface.encode())
            # Connected: the kernel lets through what comes from the resolver alone.
            scope = (0, network.index) if resolver.version == 6 and resolver.is_link_local else ()
            asker.connect((str(resolver), port, *scope))
            started_s = time.monotonic()
            async with asyncio.timeout(timeout_s):
                await loop.sock_sendall(asker, question)
                spent = headers + len(question)
                while took_s is None:
                    answer = await loop.sock_recv(asker, 4096)
                    spent += headers + len(answer)
                    if dns.answers(answer, number, name):
                        took_s = time.monotonic() - started_s
        self.spent[network.name] += spent
        return DnsResult(network.name, took_s, time.monotonic(), spent)

    def finished(self, network: Network, rtt_s: float | None, count: int) -> PingResult:
        """Takes a ping's outcome from its path."""
        result = PingResult(network.name, rtt_s, time.monotonic(), count)
        self.spent[network.name] += count
        self._mailbox.put(result)
        return result

    def _start(self, network: Network) -> "asyncio.Future[PingResult] | None":
        target = self._target(network)
        if target is None:
            return None
        path = self._paths.get(network.name)
        if path is None or path.version != target.version or path.network.index != network.index:
            if path is not None:
                self._paths.pop(network.name).close()
            try:
                path = _Path(network, target.version, self, self._open_pinger)
            except PrivilegeError as error:
                self.problem = str(error)
                return None
            except OSError:  # the interface went away between two events
                return None
            self._paths[network.name] = path
        return path.ping(target, self._timeout_s)

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

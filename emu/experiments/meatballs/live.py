"""Exchanges over emulated networks, live, held against their simulation.

Several policies run side by side over Mahimahi, each with connections of its own, since their few
kilobytes are nothing to the links. Driver and decisions are those of the simulation.
"""

import errno
import selectors
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from statistics import fmean
from typing import Any

from cedos.errors import EmulationError
from cedos.model import NetworkKind
from emu.data.folds import Progress
from emu.experiments.meatballs.client import Client, Policy, Record, Usage
from emu.experiments.meatballs.driver import (
    Agenda,
    RealClock,
    Side,
    play,
    reconnect,
)
from emu.experiments.meatballs.exchange_policy import (
    Request,
    requests,
)
from emu.experiments.meatballs.exchanges import METERED, policies_of, simulate
from emu.experiments.meatballs.outcome import (
    SETTINGS,
    live_beside_simulated,
)
from emu.experiments.meatballs.race import Chosen
from emu.experiments.replayed_network import (
    DETECTION_S,
    HEADER_BYTES,
    PAYLOAD_BYTES,
    ReplayedNetwork,
    joined,
)
from emu.places.places import Places
from emu.testbed.access import ADDRESSES, INTERFACES, Access
from emu.testbed.counters import Sample, Sampler
from emu.testbed.netns import Namespace
from emu.testbed.phones import SERVER, Laptop
from emu.workloads.exchange_server import ASK, CANCEL, REQUEST, RESPONSE

_RESET_ON_CLOSE = struct.pack("ii", 1, 0)


class ExchangeConnection:
    """A TCP connection bound to a network's address (`source`); requests wait until it is established."""

    def __init__(self, client: Namespace, source: str, server: tuple[str, int]) -> None:
        with client.entered():
            self.socket = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        self.socket.setblocking(False)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.socket.bind((source, 0))
        code = self.socket.connect_ex(server)
        self.failed = code not in (0, errno.EINPROGRESS)
        self.connected = code == 0
        self._out = bytearray()
        self._in = bytearray()

    @property
    def wants_to_write(self) -> bool:
        """Report whether to watch for writability: it connects, or data wait to be sent."""
        return not self.failed and (not self.connected or bool(self._out))

    def ask(self, number: int, up_bytes: int, down_bytes: int) -> None:
        """Send a request of `up_bytes` in all, head included where that is longer."""
        body = max(0, up_bytes - REQUEST.size)
        self._out += REQUEST.pack(ASK, number, body, max(0, down_bytes - RESPONSE.size))
        self._out += bytes(body)
        self._flush()

    def cancel(self, number: int) -> None:
        self._out += REQUEST.pack(CANCEL, number, 0, 0)
        self._flush()

    def writable(self) -> bool:
        """Continue when the socket is writable; return True the one time that it has just connected."""
        if self.failed:
            return False
        if self.connected:
            self._flush()
            return False
        if self.socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) != 0:
            self.failed = True
            return False
        self.connected = True
        self._flush()
        return True

    def readable(self) -> list[int]:
        """Read when the socket is readable; return the numbers of the complete responses."""
        try:
            data = self.socket.recv(1 << 18)
        except BlockingIOError:
            return []
        except OSError:
            data = b""
        if not data:
            self.failed = True
            return []
        self._in += data
        done = []
        while len(self._in) >= RESPONSE.size:
            number, follows = RESPONSE.unpack_from(self._in)
            if len(self._in) < RESPONSE.size + follows:
                break
            del self._in[: RESPONSE.size + follows]
            done.append(number)
        return done

    def abort(self) -> None:
        """End it at once, as a host does whose network has gone."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
        self.socket.close()
        self.failed = True

    def _flush(self) -> None:
        if not self.connected or self.failed:
            return
        try:
            while self._out:
                del self._out[: self.socket.send(self._out)]
        except BlockingIOError:
            pass
        except OSError:
            self.failed = True


PORT = 7400


@contextmanager
def serving(laptop: Laptop) -> Iterator[None]:
    """Run the server of exchanges in the laptop's server namespace."""
    with laptop.server.popen(
        *(sys.executable, "-m", "emu.workloads.exchange_server", str(PORT)),
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            if process.stdout is None or process.stdout.readline().strip() != "ready":
                raise EmulationError("the server of exchanges did not start")
            yield
        finally:
            process.terminate()


def message_bytes(payload: int) -> int:
    return payload + HEADER_BYTES * -(-payload // PAYLOAD_BYTES)


def _nothing(*_: float) -> None:
    pass


class WatchedConnection:
    """An `ExchangeConnection` that a selector watches; it is closed when it has failed.

    Args:
        selector: calls the data of its keys with the events.
        answered: is told of the number of each response.
        connected: is told in how many seconds it was set up.
        failed: is called when it has failed by itself.
    """

    def __init__(
        self,
        selector: selectors.BaseSelector,
        namespace: Namespace,
        source: str,
        server: str,
        *,
        answered: Callable[[int], None],
        connected: Callable[[float], None] = _nothing,
        failed: Callable[[], None] = _nothing,
    ) -> None:
        self._selector = selector
        self._answered, self._connected, self._failed = answered, connected, failed
        self._since_s = time.monotonic()
        self._connection = ExchangeConnection(namespace, source, (server, PORT))
        self._watched = selectors.EVENT_READ | selectors.EVENT_WRITE
        # (One that failed at once is writable at once, too.)
        selector.register(self._connection.socket, self._watched, self._ready)

    @property
    def failed(self) -> bool:
        return self._connection.failed

    def ask(self, number: int, up_bytes: int, down_bytes: int) -> None:
        self._connection.ask(number, up_bytes, down_bytes)
        self._watch()

    def cancel(self, number: int) -> None:
        """Tell the server that a response is not needed any more."""
        self._connection.cancel(number)
        self._watch()

    def close(self) -> None:
        """End it at once; nothing happens where it has ended."""
        if self._watched:
            self._selector.unregister(self._connection.socket)
            self._watched = 0
            self._connection.abort()

    def _ready(self, events: int) -> None:
        if not self._watched:
            return  # closed by an earlier event of the same round
        if events & selectors.EVENT_WRITE and self._connection.writable():
            self._connected(time.monotonic() - self._since_s)
        if events & selectors.EVENT_READ and self._watched:
            for number in self._connection.readable():
                self._answered(number)
        if self._watched and self._connection.failed:
            self.close()
            self._failed()
        elif self._watched:
            self._watch()

    def _watch(self) -> None:
        events = selectors.EVENT_READ
        if self._connection.wants_to_write:
            events |= selectors.EVENT_WRITE
        if self._watched and events != self._watched:
            self._selector.modify(self._connection.socket, events, self._ready)
            self._watched = events


class Connections:
    """Connections to the server, one per way, opened when first needed.

    Args:
        addresses: by way: of the network to use.
        answered: is told of the number of each response, with its way.
        connected: is told in how many seconds a connection was set up.
        failed: is told when one has failed by itself.
    """

    def __init__(
        self,
        selector: selectors.BaseSelector,
        laptop: Laptop,
        addresses: Mapping[str, str],
        *,
        answered: Callable[[str, int], None],
        connected: Callable[[str, float], None],
        failed: Callable[[str], None],
    ) -> None:
        self._selector, self._laptop, self._addresses = selector, laptop, addresses
        self._answered, self._connected, self._failed = answered, connected, failed
        self._open: dict[str, WatchedConnection] = {}

    def of(self, way: str) -> WatchedConnection:
        """Return the way's connection; a new one where there is none."""
        if way not in self._open:
            self._open[way] = WatchedConnection(
                self._selector,
                self._laptop.client,
                self._addresses[way],
                SERVER,
                answered=lambda number: self._answered(way, number),
                connected=lambda took_s: self._connected(way, took_s),
                failed=lambda: self._failed(way),
            )
        return self._open[way]

    def drop(self, way: str) -> None:
        """Close a way's connection: its network has gone."""
        if way in self._open:
            self._open.pop(way).close()

    def close(self) -> None:
        for way in list(self._open):
            self.drop(way)


_SETTLE_S = 1.0
_LATE_MS = 500.0
_APART_S = 0.15
"""Policies ask one after another: none waits while another one decides, in the same program."""


@dataclass(frozen=True, slots=True)
class Trial:
    """The part of one policy in a live run.

    Attributes:
        deciding_s: filled: how long each decision took, before anything could be sent.
    """

    policy: Policy[Request]
    usage: Usage
    requests: Sequence[Request]
    deciding_s: list[float] = field(default_factory=list)


def run_live(
    laptop: Laptop,
    networks: Mapping[str, ReplayedNetwork],
    trials: Mapping[str, Trial],
    *,
    replay_at_s: float,
    start_s: float,
    duration_s: float,
) -> dict[str, list[Record]]:
    """Run all policies side by side; their records.

    `laptop`: with both networks attached and a server running.
    `networks`: what the laptop replays: when each is there is read from here, as radios would say.
    `replay_at_s`: the monotonic instant at which the replay stood at `start_s`.
    `start_s`: the second of the replay at which the trial begins.
    """
    agenda = Agenda()
    with selectors.DefaultSelector() as selector:
        clock = RealClock(selector, replay_at_s)
        carriers = [
            LiveExchanges(laptop, clock, agenda, trial, networks, start_s)
            for trial in trials.values()
        ]
        records = play(
            clock,
            agenda,
            [
                Side(carrier, trial.requests)
                for carrier, trial in zip(carriers, trials.values(), strict=True)
            ],
            networks,
            start_s=start_s,
            duration_s=duration_s,
        )
        for carrier in carriers:
            carrier.close()
    return dict(zip(trials, records, strict=True))


class _TimedPolicy:
    """A policy whose decisions are timed: the simulation's take no time."""

    def __init__(self, policy: Policy[Request], spent_s: list[float]) -> None:
        self._policy, self._spent_s = policy, spent_s
        self.measured, self.connected = policy.measured, policy.connected
        self.on_attach, self.detached = policy.on_attach, policy.detached

    def choose(
        self, task: Request, now_s: float, usable: frozenset[str], silent: Mapping[str, float]
    ) -> Chosen:
        began_s = time.perf_counter()
        chosen = self._policy.choose(task, now_s, usable, silent)
        self._spent_s.append(time.perf_counter() - began_s)
        return chosen


class LiveExchanges:
    def __init__(
        self,
        laptop: Laptop,
        clock: RealClock,
        agenda: Agenda,
        trial: Trial,
        networks: Mapping[str, ReplayedNetwork],
        start_s: float,
    ) -> None:
        self._clock, self._agenda, self._usage = clock, agenda, trial.usage
        self._networks, self._start_s = networks, start_s
        self._response_bytes = {task.number: task.down_bytes for task in trial.requests}
        self._connections = Connections(
            clock.selector,
            laptop,
            {name: ADDRESSES[NetworkKind(name)] for name in networks},
            answered=self._answered,
            connected=self._connected,
            failed=self._failed,
        )
        self.client = Client(_TimedPolicy(trial.policy, trial.deciding_s), self)

    def connect(self, way: str, now_s: float) -> None:
        self._connections.of(way)

    def disconnect(self, way: str, now_s: float) -> None:
        self._connections.drop(way)

    def start(self, task: Request, way: str, now_s: float) -> None:
        self._connections.of(way).ask(task.number, task.up_bytes, task.down_bytes)
        self._usage.add_bytes(way, now_s, message_bytes(task.up_bytes), 0)

    def cancel(self, task: Request, way: str, now_s: float) -> None:
        self._connections.of(way).cancel(task.number)
        self._usage.add_bytes(way, now_s, HEADER_BYTES, 0)

    def close(self) -> None:
        self._connections.close()

    def _answered(self, way: str, number: int) -> None:
        now_s = self._clock.now_s
        down_bytes = message_bytes(self._response_bytes[number])
        self._usage.add_bytes(way, now_s, HEADER_BYTES, down_bytes)
        self.client.on_answer(number, way, now_s)

    def _connected(self, way: str, took_s: float) -> None:
        now_s = self._clock.now_s
        self._usage.add_bytes(way, now_s, HEADER_BYTES, HEADER_BYTES)
        self.client.connected(way, took_s, now_s)

    def _failed(self, way: str) -> None:
        network = self._networks[way]
        reconnect(self._agenda, self, way, network, self._start_s, self._clock.now_s)


def run(
    places: Places,
    *,
    walking: Sequence[str],
    starts_s: Sequence[float],
    duration_s: float = 240.0,
    think_s: Sequence[float] = (1.0, 3.0),
    policies: Sequence[str] = ("cellular-only", "wifi-preferred", "brute-force"),
    settings: Sequence[str] = ("no", "low"),
    detection_s: float = DETECTION_S,
    device: str = "nexus-one",
    cellular: str = "3g",
    seed: int = 1,
    progress: Progress = lambda share, what: None,
) -> dict[str, Any]:
    """Run live, simulates the same, compares.

    `starts_s`: a trial begins at each of these seconds.
    `duration_s`: of one trial, which takes so long.
    `think_s`: between requests; shorter than in the experiment, so that few minutes tell more.
    `settings`: under which settings; policies that know of no cost run once.

    Returns:
        `{"policies": {NAME: {"requests", "live_wait_ms", "simulated_wait_ms", "agree", ...}},
        "bytes": {...}}`.
    """
    accesses = joined([places[each] for each in walking])
    networks = {
        name: ReplayedNetwork(access, detection_s=detection_s) for name, access in accesses.items()
    }
    both: dict[str, list[tuple[Sequence[Record], Sequence[Record]]]] = {}
    deciding_s: dict[str, list[float]] = {}
    simulated_bytes = dict.fromkeys(accesses, 0)
    interface_bytes = dict(simulated_bytes)
    for trial, start_s in enumerate(starts_s):
        progress(trial / len(starts_s), f"live from second {start_s:g}")
        asked = requests(duration_s, seed * 1000 + trial, think_s)
        wanted = _wanted(policies, settings, device, cellular, detection_s)
        trials = {
            name: Trial(*each, _later(asked, number * _APART_S))
            for number, (name, each) in enumerate(wanted.items())
        }
        lasts_s = duration_s + _APART_S * len(trials)
        lived, moved = _live(accesses, networks, trials, start_s, lasts_s)
        again = _wanted(policies, settings, device, cellular, detection_s)
        for name, (policy, usage) in again.items():
            deciding_s.setdefault(name, []).extend(trials[name].deciding_s)
            simulated = simulate(
                trials[name].requests,
                networks,
                policy,
                usage,
                start_s=start_s,
                duration_s=lasts_s,
            )
            both.setdefault(name, []).append((lived[name], simulated))
            for network in simulated_bytes:
                simulated_bytes[network] += usage.bytes_of(network)
        for network in interface_bytes:
            interface_bytes[network] += moved[network]
    return {
        "places": list(walking),
        "trials": len(starts_s),
        "duration_s": duration_s,
        "think_s": list(think_s),
        "policies": {
            name: {
                **_compared(each),
                "deciding_ms": round(1e3 * fmean(deciding_s[name]), 2),
            }
            for name, each in both.items()
        },
        "bytes": {
            network: {"interface": interface_bytes[network], "simulated": simulated_bytes[network]}
            for network in simulated_bytes
        },
        "metered": list(METERED),
    }


def _later(asked: Sequence[Request], by_s: float) -> Sequence[Request]:
    return [replace(each, at_s=each.at_s + by_s) for each in asked]


def _wanted(
    policies: Sequence[str],
    settings: Sequence[str],
    device: str,
    cellular: str,
    detection_s: float,
) -> dict[str, tuple[Policy[Request], Usage]]:
    found: dict[str, tuple[Policy[Request], Usage]] = {}
    for number, setting in enumerate(settings):
        known = policies_of(SETTINGS[setting], device, cellular, detection_s)
        for name in policies:
            simple = name in ("cellular-only", "wifi-preferred")
            if simple and number:
                continue
            found[name if simple else f"{name}, {setting} cost"] = known[name]
    return found


def _live(
    accesses: Mapping[str, Access],
    networks: Mapping[str, ReplayedNetwork],
    trials: Mapping[str, Trial],
    start_s: float,
    duration_s: float,
) -> tuple[dict[str, list[Record]], dict[str, int]]:
    with Laptop(source_rules=True, nice=-5) as laptop, serving(laptop):
        laptop.attach(*(access.rotated(start_s - _SETTLE_S) for access in accesses.values()))
        replay_at_s = max(link.started_at_s for link in laptop.links.values()) + _SETTLE_S
        with Sampler(laptop.client, list(INTERFACES.values())) as sampler:
            records = run_live(
                laptop,
                networks,
                trials,
                replay_at_s=replay_at_s,
                start_s=start_s,
                duration_s=duration_s,
            )
        return records, {
            name: _moved([each for each in sampler.samples if each.interface == access.interface])
            for name, access in accesses.items()
        }


def _moved(samples: Sequence[Sample]) -> int:
    first, last = samples[0], samples[-1]
    return (last.received_bytes + last.sent_bytes) - (first.received_bytes + first.sent_bytes)


def _compared(trials: Sequence[tuple[Sequence[Record], Sequence[Record]]]) -> dict[str, Any]:
    late = [
        sum(1e3 * each.wait_s > _LATE_MS for pair in trials for each in pair[which])
        for which in (0, 1)
    ]
    return {
        "requests": sum(len(lived) for lived, _ in trials),
        **live_beside_simulated(trials, "ms", 1e3, 2),
        "late_live": late[0],
        "late_simulated": late[1],
    }

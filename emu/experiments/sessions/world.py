"""Networks whose rate, delay and coverage follow a script, and the world of hosts around them.

Networks are real ones, and the ideal ones that IntNW was compared with. The dissertation (2.5.1.4) makes
one virtual network out of two, second by second: always the one of the lower round trip, always the one
of the higher bandwidth, or the sum of both bandwidths at the lower of both round trips. Moving costs
nothing there: no real protocol could do as well.

Several measurements may run at the same time, each in a world of its own (`in_batches`). Their networks
carry a few Mbit/s, so that side by side they take a fraction of the machine, and what is compared runs
under the same load of the host.
"""

import subprocess
import sys
import threading
from collections.abc import Callable, Hashable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Self, TypeVar

import numpy as np
import numpy.typing as npt

from cedos.errors import EmulationError
from emu.data.evaluate import Progress
from emu.experiments.replayed_network import Coverage
from emu.places.traces import Trace
from emu.testbed import hosts, netns
from emu.testbed.access import Access
from emu.testbed.hosts import SERVER, End, Hosts
from emu.testbed.netns import Namespace
from emu.testbed.services import LineProcess, Started

_PROGRAM_END_S: Final = 3.0
_START_S: Final = 60.0
VIRTUAL: Final = "virt0"
IDEALS: Final = ("lowest-latency", "highest-bandwidth", "aggregate")


@dataclass(frozen=True, slots=True)
class Scripted:
    """A network: opportunities both ways, round trips by second, when the client has a carrier."""

    name: str  # of the client's interface
    up: Trace
    down: Trace
    rtts: Sequence[tuple[float, float]]  # (from second, round trip in seconds), the first from 0
    # Contacts in seconds as the host notices them; None: always there.
    carrier: Sequence[tuple[float, float]] | None = None
    queue_packets: tuple[int, int] = (60, 60)  # up and down

    def script(self) -> dict[str, Any]:
        delays = [(since_s, rtt_s / 2) for since_s, rtt_s in self.rtts]
        up, down = (
            {
                "times_ms": trace.times_ms.tolist(),
                "period_ms": trace.period_ms,
                "queue_packets": queue,
                "delays": delays,
            }
            for trace, queue in zip((self.up, self.down), self.queue_packets, strict=True)
        )
        carrier = None if self.carrier is None else [list(each) for each in self.carrier]
        return {"name": self.name, "up": up, "down": down, "carrier": carrier}


def real(access: Access, name: str, detection_s: float) -> Scripted:
    coverage = Coverage(access.down, detection_s)
    contacts: list[tuple[float, float]] | None = None
    if coverage.contacts:
        contacts = [(each.begin_s, each.noticed_s) for each in coverage.contacts]
    return Scripted(
        name,
        access.up,
        access.down,
        [(0.0, access.rtt_s)],
        contacts,
        (access.queue_up_packets, access.queue_down_packets),
    )


def ideal(accesses: Mapping[str, Access], kind: str) -> Scripted:
    """Return the virtual network of one of `IDEALS`, from two networks of the same period."""
    first, second = accesses.values()
    period_ms = first.down.period_ms
    if not all(
        trace.period_ms == period_ms for each in (first, second) for trace in (each.up, each.down)
    ):
        raise ValueError("an ideal network is made of networks of one period")
    seconds = -(-period_ms // 1000)
    both = (first, second)
    rates = np.array([_by_second(each.down, seconds) for each in both])
    # A second with less than 0.1 Mbit/s counts as without a network.
    there = rates * 12_000 >= 1e5
    rtts = np.where(there, np.array([[each.rtt_s] for each in both]), np.inf)
    # Choose a network second by second; the sum takes the lower round trip.
    choice = _CHOICES[kind](rates, rtts)
    best = np.where(np.isinf(rtts.min(axis=0)), max(each.rtt_s for each in both), rtts.min(axis=0))
    chosen_rtts = best
    if kind != "aggregate":
        of_chosen = np.take_along_axis(
            np.array([[each.rtt_s] * seconds for each in both]), choice[None], 0
        )
        chosen_rtts = of_chosen[0]

    # Take each second's opportunities from the chosen network, or from both.
    def merged(traces: Sequence[Trace]) -> Trace:
        parts = []
        for number, trace in enumerate(traces):
            times = trace.times_ms[trace.times_ms < period_ms]
            keep = np.ones(len(times), dtype=bool) if kind == "aggregate" else None
            parts.append(times[choice[times // 1000] == number if keep is None else keep])
        return Trace(np.sort(np.concatenate(parts)), period_ms)

    # Only changes of the round trip are scripted.
    changes = [
        (float(second), float(chosen_rtts[second]))
        for second in range(seconds)
        if second == 0 or chosen_rtts[second] != chosen_rtts[second - 1]
    ]
    queues = [(each.queue_up_packets, each.queue_down_packets) for each in both]
    queue = (max(q[0] for q in queues), max(q[1] for q in queues))
    return Scripted(
        VIRTUAL, merged([each.up for each in both]), merged([each.down for each in both]), changes,
        None, queue,
    )  # fmt: skip


def _by_second(trace: Trace, seconds: int) -> npt.NDArray[np.float64]:
    times = trace.times_ms[trace.times_ms < trace.period_ms]
    return np.bincount(times // 1000, minlength=seconds)[:seconds].astype(float)


_Floats = npt.NDArray[np.float64]
_CHOICES: dict[str, Callable[[_Floats, _Floats], npt.NDArray[np.intp]]] = {
    "lowest-latency": lambda rates, rtts: np.where(
        np.isinf(rtts.min(axis=0)), rates.argmax(axis=0), rtts.argmin(axis=0)
    ),
    "highest-bandwidth": lambda rates, rtts: rates.argmax(axis=0),
    "aggregate": lambda rates, rtts: rates.argmax(axis=0),
}


_MAC: Final = "02:ce:d0:00:00:01"
_END_S: Final = 5.0
_making: Final = threading.Lock()


class World(Started):
    """`Hosts` with these networks between them; their clock begins with `begin`.

    Args:
        networks: the client gets an interface of each one's name, with a default route.
    """

    def __init__(self, networks: Sequence[Scripted]) -> None:
        self._networks = networks
        self._hosts = Hosts()
        self._stack = ExitStack()
        self.began_s = 0.0
        self._visits = dict.fromkeys((each.name for each in networks), 0)

    @property
    def client(self) -> Namespace:
        return self._hosts.client

    @property
    def server(self) -> Namespace:
        return self._hosts.server

    @property
    def directory(self) -> Path:
        return self._hosts.directory

    def serve(self, servers: str) -> None:
        self._hosts.serve(servers)

    def _start(self) -> None:
        with _making:
            self._stack.enter_context(self._hosts)
            self._connect()

    def close(self) -> None:
        self._stack.close()

    def begin(self) -> None:
        """Start the networks' clock; `began_s` is the monotonic instant."""
        self._air.tell("begin")
        self.began_s = self._told()["began_s"]

    def move(self, name: str) -> None:
        """Give the client another address on a network, as another access point would."""
        number = 1 + [each.name for each in self._networks].index(name)
        visit = self._visits[name]
        self._visits[name] = visit + 1
        if visit:
            self.client.ip("address", "flush", "dev", name)
        self.client.ip("address", "add", f"10.{number}.{visit}.2/24", "dev", name)
        self.client.ip(
            *("route", "replace", "default", "dev", name, "metric", str(100 * number)),
            *("src", f"10.{number}.{visit}.2"),
        )

    def _told(self) -> dict[str, Any]:
        answer = self._air.answer()
        assert answer is not None  # without a limit it waits
        return answer

    def _connect(self) -> None:
        instance = self._hosts.instance
        air = instance.namespace("air")
        for host in (self.client, self.server):
            with host.entered():
                netns.write_sysctls(netns.HOST_SYSCTLS)
        netns.use_cubic([self.client, self.server])
        hosts.add_address(self.server, SERVER)
        for number, network in enumerate(self._networks, 1):
            self._wire(air, number, network.name)
        process: subprocess.Popen[str] = air.popen(
            "nice", "-n", "-5", sys.executable, "-m", "emu.experiments.sessions.air",
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True,
        )  # fmt: skip
        self._air = LineProcess(process, "the process of the scripted networks")
        self._stack.callback(self._air.close, _END_S)
        instance.add_session(process.pid)
        self._air.tell([each.script() for each in self._networks])

    def _wire(self, air: Namespace, number: int, name: str) -> None:
        for host, own, other in (
            (self.client, name, f"near-{name}"),
            (self.server, name, f"far-{name}"),
        ):
            hosts.connect(End(host, own), End(air, other))
            # One address for both ends, and no ARP: only IP crosses the air.
            host.ip("link", "set", own, "address", _MAC, "arp", "off", "up")
            air.ip("link", "set", other, "up")
            with host.entered():
                netns.without_checksum_offload(own)
            with air.entered():
                netns.write_sysctls({"net.ipv6.conf.all.disable_ipv6": "1"})
                netns.without_checksum_offload(other)
        self.server.ip("route", "add", f"10.{number}.0.0/16", "dev", name, "src", SERVER)
        self.move(name)


K = TypeVar("K", bound=Hashable)
T = TypeVar("T")
# A task calls it when it could begin. It returns when all tasks of the batch could begin.
Ready = Callable[[], None]

_READY_S: Final = 120.0


def in_batches(
    tasks: Mapping[K, Callable[[Ready], T]], at_once: int, progress: Progress
) -> dict[K, T]:
    """Carry out all tasks, so many at once.

    Raises:
        the first error of a task; those beside it are ended by theirs, the others are not begun.
    """
    done: dict[K, T] = {}
    keys = list(tasks)
    for first in range(0, len(keys), at_once):
        batch = keys[first : first + at_once]
        barrier = threading.Barrier(len(batch), timeout=_READY_S)
        with ThreadPoolExecutor(len(batch)) as pool:
            running = {pool.submit(_guarded, tasks[key], barrier): key for key in batch}
            try:
                _gather(running, done, len(tasks), progress)
            except BaseException:
                barrier.abort()
                raise
    return done


def _guarded(task: Callable[[Ready], T], barrier: threading.Barrier) -> T:
    try:
        return task(lambda: _wait(barrier))
    except BaseException:
        barrier.abort()
        raise


def _wait(barrier: threading.Barrier) -> None:
    try:
        barrier.wait()
    except threading.BrokenBarrierError:
        raise EmulationError("a measurement beside this one did not begin") from None


def _gather(
    running: Mapping["Future[T]", K], done: dict[K, T], all_tasks: int, progress: Progress
) -> None:
    left = set(running)
    while left:
        ended, left = wait(left, timeout=0.5, return_when=FIRST_COMPLETED)
        for each in ended:
            done[running[each]] = each.result()
            progress(len(done) / all_tasks, str(running[each]))


class Program:
    """A process of an application, as a `with` block.

    Args:
        role: `client` or `server`.
        name: the module of the application.
    """

    def __init__(self, where: Namespace, role: str, name: str, **options: Any) -> None:
        self._where, self._role, self._name, self._options = where, role, name, options

    def __enter__(self) -> Self:
        process: subprocess.Popen[str] = self._where.popen(
            sys.executable, "-m", "emu.experiments.sessions.applications", self._role, self._name,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        self._process = LineProcess(process, f"the {self._role} of {self._name}")
        self._process.tell(self._options)
        return self

    def __exit__(self, *_: object) -> None:
        self._process.close(_PROGRAM_END_S)

    def ready(self) -> Self:
        """Return once it has loaded what it needs and waits to be told to `go`."""
        if self.answer(_START_S) is None:
            raise EmulationError(f"the {self._role} of {self._name} does not get ready")
        return self

    def go(self) -> None:
        self._process.tell("go")

    def answer(self, timeout_s: float) -> dict[str, Any] | None:
        """Return the next answer; None where there is none in time. EmulationError: it failed."""
        return self._process.answer(max(0.0, timeout_s))

"""First packets of unmodified programs into a network that has just died: when are they under way?

The daemon runs on an emulated laptop as a user would start it. The network that new connections take
dies beyond its first hop, and at once four programs connect: curl and Python, each with plain TCP and
with MPTCP (`mptcpize`). What counts is what the program sees: the time until its connection stands.
Within the bound is what takes at most 350 ms, or four round trips of the slower network where those
are more. Networks live again after each trial, and healthy ones are used between trials.
"""

import random
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field

from cedos.errors import EmulationError
from cedos.model import NetworkKind
from emu.places.traces import Trace
from emu.statistics import percentile
from emu.testbed.access import ADDRESSES, INTERFACES, Access
from emu.testbed.phones import SERVER, Laptop, Silence
from emu.testbed.programs.daemon import RescueDaemon, put_on_time
from emu.testbed.programs.servers import Servers

_BOUND_S = 0.35
_BOUND_ROUND_TRIPS = 4
_GIVE_UP_S = 8.0
_HEALTHY = 12
# Round trips of Wi-Fi and the cellular network, in s, and trials with that pair.
_PAIRS = ((0.020, 0.060, 12), (0.050, 0.120, 10))
_SLOW_S, _SLOW_TRIES = 0.600, 12

# A user's program: it waits for a line, and connects.
_SCRIPT = """
import socket, sys, time
socket.getaddrinfo(sys.argv[1], 80)  # what this imports is no part of connecting
sys.stdin.readline()
began = time.monotonic()
try:
    connection = socket.create_connection((sys.argv[1], 80), timeout=float(sys.argv[2]))
except OSError:
    print("-1 none")
    sys.exit()
took = time.monotonic() - began
print(took, connection.getsockname()[0], flush=True)
connection.sendall(b"GET /bytes/1000 HTTP/1.1\\r\\nHost: x\\r\\n\\r\\n")
connection.recv(100)
"""


@dataclass(slots=True)
class Attempt:
    """A program's connection; `took_s` is -1 if it was never established, `bound_s` is the bound."""

    mptcp: bool
    took_s: float
    local: str
    bound_s: float


@dataclass(slots=True)
class Measured:
    rescues: list[Attempt] = field(default_factory=list)
    healthy: int = 0
    disturbed: int = 0


def run(progress: Callable[[str], None], share: float = 1.0) -> dict[str, float]:
    """Measure for about eight minutes.

    Args:
        progress: called with a line for each trial.
        share: of the trials.

    Returns:
        `tcp_p95_ms`, `mptcp_p95_ms` (and `_median_ms`), `within_share` of `n` first packets into a
        dead network; of `healthy_n` connections over living
        networks, one of them with 600 ms, `healthy_disturbed` were rescued.

    Raises:
        EmulationError: the testbed or the daemon.
    """

    def some(count: int) -> int:
        return max(1, round(count * share))

    seen = Measured()
    for wifi_s, cellular_s, trials in _PAIRS:
        with emulated(wifi_s, cellular_s) as bench:
            for _ in range(some(trials)):
                bench.trial(seen, progress)
                bench.use_healthy(seen, some(_HEALTHY))
    with emulated(_SLOW_S, 0.040) as bench:
        bench.use_slow(seen, some(_SLOW_TRIES), progress)
    return figures(seen)


def figures(seen: Measured) -> dict[str, float]:
    """Sum up; a connection that was never established counts as 8 s."""
    found: dict[str, float] = {}
    for name, mptcp in (("tcp", False), ("mptcp", True)):
        times = [
            each.took_s if each.took_s >= 0 else _GIVE_UP_S
            for each in seen.rescues
            if each.mptcp is mptcp
        ]
        found[f"{name}_p95_ms"] = 1e3 * percentile(times, 0.95)
        found[f"{name}_median_ms"] = 1e3 * statistics.median(times)
    within = sum(0 <= each.took_s <= each.bound_s for each in seen.rescues)
    return found | {
        "within_share": within / len(seen.rescues),
        "n": len(seen.rescues),
        "healthy_disturbed": seen.disturbed,
        "healthy_n": seen.healthy,
    }


@contextmanager
def emulated(wifi_s: float, cellular_s: float) -> "Iterator[Bench]":
    """Set up a laptop with the daemon and servers; RTTs in s; both networks are alive and known to be."""
    accesses = (
        Access(NetworkKind.WIFI, Trace.constant(10e6), Trace.constant(24e6), wifi_s),
        Access(NetworkKind.CELLULAR, Trace.constant(5e6), Trace.constant(12e6), cellular_s),
    )
    with ExitStack() as stack:
        laptop = stack.enter_context(Laptop(*accesses))
        stack.enter_context(Servers(laptop))
        put_on_time(laptop)
        daemon = RescueDaemon(laptop)
        stack.callback(daemon.stop)
        daemon.start()
        yield Bench(laptop, daemon, max(wifi_s, cellular_s))


class Bench:
    def __init__(self, laptop: Laptop, daemon: RescueDaemon, rtt_s: float) -> None:
        self.laptop = laptop
        self.daemon = daemon
        self._rtt_s = rtt_s
        self._bound_s = max(_BOUND_S, _BOUND_ROUND_TRIPS * rtt_s)
        self._random = random.Random(3)
        self.daemon.until_both_live()

    # -- programs -----------------------------------------------------------------------------

    def curl(self, mptcp: bool, *options: str) -> "subprocess.Popen[str]":
        """Curl, that begins when its configuration has come."""
        return self._popen(
            mptcp,
            *("curl", "-sS", "-o", "/dev/null", "--max-time", str(_GIVE_UP_S)),
            *("-w", "%{time_connect} %{local_ip} %{http_code}", "--config", "-", *options),
        )

    def python(self, mptcp: bool) -> "subprocess.Popen[str]":
        """Return a script that begins when it gets a line."""
        script = (sys.executable, "-S", "-c", _SCRIPT, SERVER, str(_GIVE_UP_S))
        return self._popen(mptcp, *script)

    def _popen(self, mptcp: bool, *command: str) -> "subprocess.Popen[str]":
        process: subprocess.Popen[str] = self.laptop.client.popen(
            *(("mptcpize", "run") if mptcp else ()),
            *command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        return process

    def go(self, process: "subprocess.Popen[str]") -> None:
        assert process.stdin is not None
        process.stdin.write(f'url = "http://{SERVER}/bytes/1000"\n')
        process.stdin.close()
        process.stdin = None

    def result(self, process: "subprocess.Popen[str]", mptcp: bool) -> Attempt:
        output, _ = process.communicate(timeout=60)
        took, local, *status = output.split() or ["-1", "none"]
        failed = float(took) <= 0 or status not in ([], ["200"])
        return Attempt(mptcp, -1.0 if failed else float(took), local, self._bound_s)

    # -- trials -------------------------------------------------------------------------------

    @contextmanager
    def dead(self, interface: str) -> Iterator[None]:
        """Drop all packets beyond a network's first hop."""
        with Silence(self.laptop, interface).when_told() as cut:
            cut()
            yield

    def trial(self, measured: Measured, progress: Callable[[str], None]) -> None:
        """Let the default network die, and let programs connect."""
        programs = [
            (make(mptcp), mptcp) for make in (self.curl, self.python) for mptcp in (False, True)
        ]
        time.sleep(1.0)  # they have started, and wait
        victim = self.daemon.default()
        with self.dead(victim):
            time.sleep(self._random.uniform(0, 0.1))
            for process, _ in programs:
                self.go(process)
            results = [self.result(process, mptcp) for process, mptcp in programs]
        victims = self._address(victim)
        counted = [each for each in results if each.local in (victims, "none")]
        measured.rescues += counted
        times = ", ".join(f"{1e3 * each.took_s:.0f}" for each in counted)
        progress(f"{victim} dies, bound {1e3 * self._bound_s:.0f} ms: {times} ms")
        self.daemon.until_both_live()

    @staticmethod
    def _address(interface: str) -> str:
        kind = next(kind for kind, name in INTERFACES.items() if name == interface)
        return ADDRESSES[kind]

    def use_healthy(self, measured: Measured, count: int) -> None:
        before = self.daemon.rescues()
        for number in range(count):
            bound = ("--interface", list(ADDRESSES.values())[number % 2]) if number % 3 else ()
            process = self.curl(bool(number % 2), *bound)
            self.go(process)
            if self.result(process, False).took_s < 0:
                raise EmulationError("a living network does not carry a connection")
        measured.healthy += count
        measured.disturbed += self.daemon.rescues() - before

    def use_slow(self, measured: Measured, count: int, progress: Callable[[str], None]) -> None:
        """Let programs wait for a slow network that lives, and no longer once it is dead."""
        before = self.daemon.rescues()
        slow = ADDRESSES[NetworkKind.WIFI]
        times = []
        for number in range(count):
            process = self.curl(bool(number % 2), "--interface", slow)
            self.go(process)
            times.append(self.result(process, False).took_s)
        measured.healthy += count
        measured.disturbed += self.daemon.rescues() - before
        progress(f"slow and alive: {', '.join(f'{1e3 * each:.0f}' for each in times)} ms")
        for number in range(max(1, count // 3)):
            process = self.curl(bool(number % 2), "--interface", slow)
            time.sleep(0.5)
            with self.dead(INTERFACES[NetworkKind.WIFI]):
                self.go(process)
                result = self.result(process, bool(number % 2))
            measured.rescues.append(result)
            progress(f"slow and dead: {1e3 * result.took_s:.0f} ms")
            self.daemon.until_both_live()

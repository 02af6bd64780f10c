"""Mixed load: nothing is left, nothing leaks. Some minutes, or `SOAK_S` seconds (an hour: 3600).

On an emulated laptop with its daemon: small, large, plain and MPTCP transfers, uploads, look-ups, curl
through the gateway, questions and hints on the control socket, unasked datagrams; one
network after the other goes away and comes back. Memory counts after a sixth of the time: what is learnt
and the tables that have a bound are full by then.
"""

import os
import random
import socket
import statistics
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from cedos.controller.hint import HintRequest
from cedos.errors import CedosError
from cedos.model import Direction, NetworkKind
from emu.bench.crash import parts
from emu.places.traces import Trace
from emu.testbed.access import Access
from emu.testbed.netns import RUN, Namespace
from emu.testbed.phones import SERVER, Laptop
from emu.testbed.programs.daemon import Daemon
from emu.testbed.programs.gateway import PROXY_PORT, Gatewayed
from emu.testbed.programs.servers import DNS_PORT, HTTP_PORT, Servers
from emu.workloads import transfer

DURATION_S = float(os.environ.get("SOAK_S", "300"))
# The share of the time until figures count.
_SETTLED_SHARE = 1 / 6
_LOOK_EVERY_S = 10.0
_TOLD_EVERY_S = 300.0
_LIMIT_S = 20.0
_FLAP_EVERY_S = 180.0
_AWAY_S = 12.0
_MOST_AT_ONCE = 24
_KB = 1_000
_MB = 1_000_000


@dataclass(frozen=True, slots=True)
class Look:
    """The memory, descriptors and threads of a process at one instant."""

    at_s: float
    memory_mb: float
    descriptors: int
    threads: int


@dataclass(slots=True)
class Watched:
    name: str
    pid: int
    looks: list[Look] = field(default_factory=list)

    def look(self, at_s: float) -> None:
        status = Path(f"/proc/{self.pid}/status").read_text().splitlines()
        facts = dict(line.split(":", 1) for line in status if ":" in line)
        self.looks.append(
            Look(
                at_s,
                int(facts["VmRSS"].split()[0]) * 1024 / 1e6,
                sum(1 for _ in Path(f"/proc/{self.pid}/fd").iterdir()),
                int(facts["Threads"]),
            )
        )

    def figures(self, settled_at_s: float) -> dict[str, float]:
        """Growth by a straight line through all looks after it had settled."""
        settled = [look for look in self.looks if look.at_s >= settled_at_s]
        line = statistics.linear_regression(
            [look.at_s / 3600 for look in settled], [look.memory_mb for look in settled]
        )
        third = len(settled) // 3
        return {
            f"{self.name}_mb_per_hour": line.slope,
            f"{self.name}_settled_mb": settled[0].memory_mb,
            f"{self.name}_end_mb": settled[-1].memory_mb,
            f"{self.name}_most_mb": max(look.memory_mb for look in self.looks),
            f"{self.name}_descriptors_grown": statistics.median(
                look.descriptors for look in settled[-third:]
            )
            - statistics.median(look.descriptors for look in settled[:third]),
            f"{self.name}_threads": settled[-1].threads,
        }


def run(progress, duration_s):
    """Measure for `duration_s` and half a minute more.

    Returns:
        For `daemon`, its `privileged` part, `gateway` and `forward`: `_mb_per_hour` after a sixth of
        the time, `_settled_mb`, `_end_mb`, `_most_mb`, `_descriptors_grown`, `_threads`. `transfers`,
        `transfers_failed`; `restored_share` of the parts of the laptop's networking after the daemon's
        end; `namespaces_left`.
    """
    with ExitStack() as stack:
        trace = Trace.constant(24e6)
        accesses = {
            NetworkKind.WIFI: Access(NetworkKind.WIFI, trace, trace, 0.020),
            NetworkKind.CELLULAR: Access(NetworkKind.CELLULAR, trace, trace, 0.060),
        }
        laptop = stack.enter_context(Laptop(*accesses.values()))
        token = laptop.token
        stack.enter_context(Servers(laptop))
        # Take the laptop's networking before the daemon touches it.
        before = parts(laptop.client)
        config = f'[probes]\ntarget = "{SERVER}"\n[providers]\nhost = false\n'
        daemon = Daemon(laptop.client, laptop.directory / "daemon", config)
        daemon.start()
        daemon.wait_for(lambda client: bool(client.status()), 30.0)
        variables = {"CEDOS_RUNTIME_DIR": daemon.environment["CEDOS_RUNTIME_DIR"]}
        with Gatewayed(laptop, laptop.directory, variables) as gatewayed:
            # Watch all four processes while the load runs.
            gateway_pid, forward_pid = gatewayed.pids
            watched = [
                Watched("daemon", daemon.process.pid),
                Watched("privileged", _child(daemon.process.pid)),
                Watched("gateway", gateway_pid),
                Watched("forward", forward_pid),
            ]
            load = Load(laptop, daemon)
            with load.running(accesses):
                _watch(watched, duration_s, load, progress)
        daemon.stop()
        found = {"transfers": float(load.done), "transfers_failed": float(load.failed)}
        for each in watched:
            found |= each.figures(duration_s * _SETTLED_SHARE)
        # The daemon has ended: everything must be as before.
        after = parts(laptop.client)
        for name in before:
            if before[name] != after[name]:
                progress(f"not as before: {name}")
        found["restored_share"] = sum(before[n] == after[n] for n in before) / len(before)
    found["namespaces_left"] = float(sum(token in path.name for path in RUN.iterdir()))
    return found


def _child(pid: int) -> int:
    return int(Path(f"/proc/{pid}/task/{pid}/children").read_text().split()[0])


def _watch(
    watched: list[Watched], duration_s: float, load: "Load", progress: Callable[[str], None]
) -> None:
    began_s = time.monotonic()
    told_s = -_TOLD_EVERY_S
    while (now_s := time.monotonic() - began_s) < duration_s:
        for each in watched:
            each.look(now_s)
        if now_s - told_s >= _TOLD_EVERY_S:
            told_s = now_s
            shown = ", ".join(
                f"{each.name} {each.looks[-1].memory_mb:.1f} MB, {each.looks[-1].descriptors} fds"
                for each in watched
            )
            progress(f"{now_s / 60:.0f} min: {shown}; {load.done} transfers, {load.failed} failed")
        time.sleep(min(_LOOK_EVERY_S, max(0.1, duration_s - now_s)))


class Load:
    """Everything at random times, each kind in a thread of its own."""

    def __init__(self, laptop: Laptop, daemon: Daemon) -> None:
        self.done = self.failed = 0
        self._laptop, self._daemon = laptop, daemon
        self._end = threading.Event()
        self._lock = threading.Lock()
        self._at_once = threading.Semaphore(_MOST_AT_ONCE)
        self._draw = random.Random(16)

    @contextmanager
    def running(self, accesses: dict[NetworkKind, Access]) -> Iterator[None]:
        kinds: tuple[tuple[Callable[[], None], float], ...] = (
            (lambda: self._fetch(self._draw.randint(1, 30) * _KB, mptcp=False), 1.0),
            (lambda: self._fetch(self._draw.randint(1, 30) * _KB, mptcp=True), 2.0),
            (lambda: self._fetch(2 * _MB, mptcp=self._draw.random() < 0.5), 12.0),
            (lambda: self._fetch(200 * _KB, mptcp=False, direction=Direction.UP), 15.0),
            (self._through_the_gateway, 6.0),
            (self._look_up, 2.0),
            (self._unasked, 5.0),
            (self._ask, 10.0),
        )
        threads = [threading.Thread(target=self._repeat, args=kind, daemon=True) for kind in kinds]
        threads.append(threading.Thread(target=self._flap, args=(accesses,), daemon=True))
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            self._end.set()
            for thread in threads:
                thread.join()
            for _ in range(_MOST_AT_ONCE):
                self._at_once.acquire()

    def _repeat(self, what: Callable[[], None], every_s: float) -> None:
        while not self._end.wait(self._draw.expovariate(1 / every_s)):
            what()

    def _fetch(self, size: int, *, mptcp: bool, direction: Direction = Direction.DOWN) -> None:
        def carry() -> None:
            with self._at_once:
                timing = transfer.measure(
                    self._laptop.client,
                    server=SERVER,
                    port=HTTP_PORT,
                    size_bytes=size,
                    direction=direction,
                    mptcp=mptcp,
                    source=None,
                    limit_s=_LIMIT_S,
                )
            self._count(good=not timing.censored)

        threading.Thread(target=carry, daemon=True).start()

    def _count(self, *, good: bool) -> None:
        with self._lock:
            self.done += 1
            self.failed += not good

    def _through_the_gateway(self) -> None:
        proxy = f"socks5h://127.0.0.1:{PROXY_PORT}"
        url = f"http://{SERVER}:{HTTP_PORT}/bytes/{self._draw.choice((3, 300)) * _KB}"
        done = self._laptop.client.run(
            *("curl", "-sS", "-m", f"{_LIMIT_S:g}", "-o", "/dev/null", "-x", proxy, url),
            check=False,
        )
        self._count(good=done.returncode == 0)

    def _look_up(self) -> None:
        name = f"host{self._draw.randrange(10**9)}.example"
        labels = b"".join(bytes([len(part)]) + part.encode() for part in name.split("."))
        query = struct.pack("!6H", self._draw.randrange(1 << 16), 0x0100, 1, 0, 0, 0)
        asking = self._datagrams(self._laptop.client)
        with asking, suppress(OSError):
            asking.settimeout(3.0)
            asking.sendto(query + labels + b"\0\0\x01\0\x01", (SERVER, DNS_PORT))
            asking.recv(512)

    def _unasked(self) -> None:
        """Send a burst that no program asked for; a phone drops what comes from outside."""
        sending = self._datagrams(self._laptop.client)
        with sending, suppress(OSError):
            for _ in range(50):
                sending.sendto(bytes(100), (SERVER, self._draw.randrange(1024, 65536)))

    def _datagrams(self, namespace: Namespace) -> socket.socket:
        with namespace.entered():
            return socket.socket(socket.AF_INET, socket.SOCK_DGRAM)

    def _ask(self) -> None:
        client = self._daemon.client
        with suppress(CedosError):
            client.status()
            client.explain()
            given = client.hint(HintRequest(destination=SERVER, size_bytes=50 * _KB))
            client.unhint(given.number)

    def _flap(self, accesses: dict[NetworkKind, Access]) -> None:
        """Every three minutes one of the networks, in turn, is away for a while."""
        kinds = list(accesses)
        number = 0
        while not self._end.wait(_FLAP_EVERY_S):
            kind = kinds[number % len(kinds)]
            number += 1
            self._laptop.detach(kind)
            self._end.wait(_AWAY_S)
            self._laptop.attach(accesses[kind])


@pytest.mark.long
@pytest.mark.timeout(600 + 2 * DURATION_S)
def test_minutes_of_mixed_load_leave_nothing(registry):
    found = run(print, DURATION_S)
    assert found["restored_share"] == 1.0
    assert found["namespaces_left"] == 0.0
    assert found["transfers_failed"] <= 0.02 * found["transfers"]
    for name in ("daemon", "privileged", "gateway", "forward"):
        assert found[f"{name}_descriptors_grown"] <= 2
        assert found[f"{name}_most_mb"] < 130

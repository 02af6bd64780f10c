"""The daemon's own cost: processor share and wake-ups, idle and at 100 new flows a second.

It runs as a user would start it, on the emulated laptop, with its default configuration but for the
target of its pings. The flows are real: a client fetches 3 KB a hundred times a second from nginx,
half of the time over MPTCP.
"""

import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from cedos.model import NetworkKind
from emu.places.traces import Trace
from emu.testbed.access import Access
from emu.testbed.netns import Namespace
from emu.testbed.phones import SERVER, Laptop
from emu.testbed.programs.daemon import Daemon
from emu.testbed.programs.servers import HTTP_PORT, Servers
from emu.workloads.transfer import IPPROTO_MPTCP

_IDLE_S = 30.0
_LOADED_S = 20.0
_FLOWS_PER_S = 100
_STARTS = 3
_START_TIMEOUT_S = 30.0
_TICK_HZ = os.sysconf("SC_CLK_TCK")


def run(progress: Callable[[str], None]) -> dict[str, float]:
    """Measure `idle_cpu_share idle_wakeups_per_s flows100_cpu_share start_s rss_mb`, shares of a core."""
    trace = Trace.constant(24e6)
    wifi = Access(NetworkKind.WIFI, trace, trace, 0.020)
    cellular = Access(NetworkKind.CELLULAR, trace, trace, 0.060)
    with Laptop(wifi, cellular) as laptop, Servers(laptop):
        starts = []
        for number in range(_STARTS):
            progress(f"starting, {number + 1} of {_STARTS}")
            with _daemon(laptop, number) as (_, took_s):
                starts.append(took_s)
        with _daemon(laptop, _STARTS) as (pid, _):
            time.sleep(5.0)
            progress(f"idle for {_IDLE_S:g} s")
            before = wakeups(pid)
            idle = _share(pid, lambda: time.sleep(_IDLE_S))
            woken_per_s = (wakeups(pid) - before) / _IDLE_S
            progress(f"{_FLOWS_PER_S} flows a second for {_LOADED_S:g} s")
            loaded = _share(pid, lambda: _load(laptop.client))
            resident_mb = memory_mb(pid)
    return {
        "idle_cpu_share": idle,
        "idle_wakeups_per_s": woken_per_s,
        "flows100_cpu_share": loaded,
        "start_s": sorted(starts)[len(starts) // 2],
        "rss_mb": resident_mb,
    }


@contextmanager
def _daemon(laptop: Laptop, number: int) -> Iterator[tuple[int, float]]:
    """Start a daemon; give its process and the seconds until it answered."""
    config = f'[probes]\ntarget = "{SERVER}"\n'
    daemon = Daemon(laptop.client, laptop.directory / f"daemon-{number}", config)
    began_at_s = time.monotonic()
    daemon.start()
    try:
        daemon.wait_for(lambda client: bool(client.status()), _START_TIMEOUT_S, every_s=0.005)
        yield daemon.process.pid, time.monotonic() - began_at_s
    finally:
        daemon.stop()


def _share(pid: int, during: Callable[[], object]) -> float:
    """Return the daemon's processor time over the time that `during` takes."""
    before_s, began_at_s = _processor_s(pid), time.monotonic()
    during()
    return (_processor_s(pid) - before_s) / (time.monotonic() - began_at_s)


def family(pid: int) -> list[int]:
    """Return a process and those that it has started: the daemon and its privileged part."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [pid, *map(int, children)]


def _processor_s(pid: int) -> float:
    ticks = 0
    for one in family(pid):
        fields = Path(f"/proc/{one}/stat").read_text().rpartition(")")[2].split()
        # (Of what it has waited for, too: iptables.)
        ticks += sum(map(int, fields[11:15]))
    return ticks / _TICK_HZ


def wakeups(pid: int) -> int:
    """Return how often the threads of a process have waited and been woken so far."""
    count = 0
    for one in family(pid):
        for task in Path(f"/proc/{one}/task").iterdir():
            with suppress(FileNotFoundError):  # a thread that has just ended
                counts = (task / "status").read_text().partition("\nvoluntary_ctxt_switches:")[2]
                count += int(counts.split()[0])
    return count


def memory_mb(pid: int) -> float:
    """Return the proportional set size of a process and its children: shared pages count once."""
    total = 0
    for one in family(pid):
        lines = Path(f"/proc/{one}/smaps_rollup").read_text().splitlines()
        total += next((int(line.split()[1]) for line in lines if line.startswith("Pss:")), 0)
    return total * 1024 / 1e6


def _load(client: Namespace) -> None:
    """Fetch at the wanted rate."""
    threads: list[threading.Thread] = []
    began_at_s = time.monotonic()
    count = int(_FLOWS_PER_S * _LOADED_S)
    for number in range(count):
        time.sleep(max(0.0, began_at_s + number / _FLOWS_PER_S - time.monotonic()))
        with client.entered():
            fetching = socket.socket(
                socket.AF_INET, socket.SOCK_STREAM, IPPROTO_MPTCP if number % 2 else 0
            )
        thread = threading.Thread(target=_fetch, args=(fetching,), daemon=True)
        thread.start()
        threads.append(thread)
    for thread in threads:
        thread.join()


def _fetch(connection: socket.socket) -> None:
    with connection:
        connection.settimeout(20)
        connection.connect((SERVER, HTTP_PORT))
        connection.sendall(
            f"GET /bytes/3000 HTTP/1.1\r\nHost: {SERVER}\r\nConnection: close\r\n\r\n".encode()
        )
        while connection.recv(65536):
            pass

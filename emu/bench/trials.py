"""The delay until a Wi-Fi that was slow is used again by connections that cannot be moved.

Wi-Fi carries 1.2 Mbit/s at first and 40 from then on, beside 16 Mbit/s of LTE (round trips 30 and 72 ms).
curl fetches the same again and again; the daemon decides as it does by default (it pings the server, and
looks for no names).
"""

import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from cedos.model import NetworkKind
from emu.places.traces import Trace
from emu.testbed.access import ADDRESSES, INTERFACES, Access
from emu.testbed.phones import SERVER, Laptop
from emu.testbed.programs.daemon import Daemon
from emu.testbed.programs.servers import Servers

# After this many fetches in a row a network counts as used again.
AGAIN = 5

_REPEATS = 3
_SLOW_BPS, _FAST_BPS, _LTE_BPS = 1.2e6, 40e6, 16e6
_LIMIT_S = 100.0
_START_S = 10.0


@dataclass(frozen=True, slots=True)
class Case:
    """Fetches of `size_bytes` with `pause_s` between them, while Wi-Fi is slow for `slow_s`."""

    name: str
    size_bytes: int = 300_000
    pause_s: float = 0.1
    slow_s: float = 12.0
    metered: bool = False


CASES = (
    Case("often"),
    Case("each_second", pause_s=1.0),
    Case("small", size_bytes=60_000, pause_s=0.3),
    Case("long_slow", pause_s=0.3, slow_s=40.0),
    Case("metered", metered=True),
    Case("metered_each_second", pause_s=1.0, metered=True),
)


@dataclass(frozen=True, slots=True)
class Fetch:
    """When it began after the load's start, how long it took, over which network."""

    began_s: float
    took_s: float
    network: NetworkKind


def run(
    progress: Callable[[str], None], cases: tuple[Case, ...] = CASES, repeats: int = _REPEATS
) -> dict[str, float]:
    """Measure for up to two minutes a case and repetition.

    Returns for each case the median and the longest `again_s`, from when Wi-Fi is fast until it is used
    again (`AGAIN`); infinite: not within 100 s. Errors: EmulationError.
    """
    found: dict[str, float] = {}
    for case in cases:
        again_s = []
        for repeat in range(repeats):
            again_s.append(again(case, measure(case)))
            progress(f"{case.name}, {repeat + 1} of {repeats}: {again_s[-1]:.1f} s")
        found[f"{case.name}_median_s"] = statistics.median(again_s)
        found[f"{case.name}_longest_s"] = max(again_s)
    return found


def again(case: Case, fetches: list[Fetch]) -> float:
    """Return seconds from Wi-Fi's change until it is used from then on; infinite: it is not."""
    last = fetches[-AGAIN:]
    if len(last) < AGAIN or any(fetch.network is not NetworkKind.WIFI for fetch in last):
        return float("inf")
    return max(last[0].began_s - case.slow_s, 0.0)


def measure(case: Case, limit_s: float = _LIMIT_S, log: list[str] | None = None) -> list[Fetch]:
    """Fetch until Wi-Fi is used again, or for `limit_s` after it is fast; `log` takes the daemon's."""
    wifi = _steps((_SLOW_BPS, case.slow_s), (_FAST_BPS, limit_s + 60.0))
    lte = Trace.constant(_LTE_BPS)
    accesses = (
        Access(NetworkKind.WIFI, wifi, wifi, 0.030),
        Access(NetworkKind.CELLULAR, lte, lte, 0.072),
    )
    with (
        tempfile.TemporaryDirectory(prefix="cedos-bench-") as folder,
        Laptop(*accesses) as laptop,
        Servers(laptop),
    ):
        daemon = Daemon(laptop.client, Path(folder), _configuration(metered=case.metered))
        daemon.start()
        try:
            daemon.wait_for(lambda client: client.status().default.network is not None, _START_S)
            return _fetch(case, laptop, limit_s)
        finally:
            daemon.stop()
            if log is not None:
                log.append(daemon.log.read_text())


def _fetch(case: Case, laptop: Laptop, limit_s: float) -> list[Fetch]:
    kinds = {address: kind for kind, address in ADDRESSES.items()}
    url = f"http://{SERVER}/bytes/{case.size_bytes}"
    command = ("curl", "-sS", "-o", "/dev/null", "-w", "%{local_ip}", "--max-time", "30", url)
    start_s = time.monotonic()
    fetches: list[Fetch] = []
    while (began_s := time.monotonic() - start_s) < case.slow_s + limit_s:
        address = laptop.client.run(*command, timeout_s=40.0).stdout
        took_s = time.monotonic() - start_s - began_s
        fetches.append(Fetch(began_s, took_s, kinds[address]))
        if began_s > case.slow_s and again(case, fetches) < float("inf"):
            break
        time.sleep(case.pause_s)
    return fetches


def _configuration(*, metered: bool) -> str:
    return f"""
        [networks.{INTERFACES[NetworkKind.CELLULAR]}]
        kind = "cellular"
        metered = {str(metered).lower()}
        [probes]
        target = "{SERVER}"
        dns = false
        [providers]
        host = false
    """


def _steps(*parts: tuple[float, float]) -> Trace:
    """Return a trace of parts, each with its rate in bit/s and its length in s."""
    began_ms, lines = 0.0, []
    for rate_bps, length_s in parts:
        each_ms = 1500 * 8 / rate_bps * 1000
        count = int(length_s * 1000 / each_ms)
        lines += [f"{began_ms + number * each_ms:.0f}" for number in range(1, count + 1)]
        began_ms += length_s * 1000
    return Trace.parse("\n".join(lines).encode())

"""Unmodified curl through the gateway: what it gains where networks die or are slow, and what it costs.

On an emulated laptop (Wi-Fi 24 Mbit/s, 20 ms; LTE 16 Mbit/s, 50 ms; Mahimahi) with a daemon that is
told nothing but pings twice a second. curl is redirected by the kernel: it knows of no proxy. First its
peers: Wi-Fi alone, LTE alone, kernel MPTCP over both. Then the gateway; then cuts: one network and then
the other dies beyond its first hop while a download is under way. Last, first bytes.
"""

import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from cedos.errors import EmulationError
from cedos.model import NetworkKind
from emu.bench.rescue import Bench as Cutter
from emu.bench.rescue_laptop import RescueDaemon, put_on_time
from emu.places.traces import Trace
from emu.testbed import kernel_mptcp
from emu.testbed.access import ADDRESSES, Access
from emu.testbed.phones import SERVER, Laptop
from emu.testbed.programs.gateway import Gatewayed
from emu.testbed.programs.servers import Servers

NAME = "gateway"

_WIFI_BPS, _WIFI_S = 24e6, 0.020
_LTE_BPS, _LTE_S = 16e6, 0.050
_ROUNDS, _DOWNLOAD = 5, 12_000_000
_CUTS, _CUT_AT = 16, 0.3
_FIRST_BYTES = 60
_PROGRAM_USER: Final = 65_534
_PAUSE_S = 1.0


@dataclass(frozen=True, slots=True)
class Download:
    """How long it took, its longest pause after its first byte, and whether it came whole."""

    took_s: float
    stall_s: float
    whole: bool


def run(progress: Callable[[str], None]) -> dict[str, float]:
    """Measures; about four minutes.

    Returns:
        `sum_ratio`: the rate through the gateway over the sum of both networks' alone, median of
        rounds; `mptcp_sum_ratio`: kernel MPTCP's. `cuts`, `cuts_broken`; `cut_stall_median_ms`,
        `cut_stall_p95_ms`, `cut_stall_max_ms`: the longest pause of each cut download.
        `first_byte_ms`, `first_byte_p95_ms`: through the gateway less direct, of curl's whole
        connection and request, medians and 95th percentiles.

    Raises:
        EmulationError: the testbed or the daemon.
    """
    figures: dict[str, float] = {}
    with emulated(daemon=False) as laptop:
        kernel_mptcp.use_kernel_path_manager(laptop)
        alone = [_alone(laptop, progress) for _ in range(_ROUNDS)]
    figures["mptcp_sum_ratio"] = statistics.median(mptcp / total for total, mptcp in alone)
    total_bps = statistics.median(total for total, _ in alone)
    with emulated(daemon=True) as laptop, _redirected(laptop) as cutter:
        rates = []
        for number in range(_ROUNDS):
            got = _download(laptop, _DOWNLOAD, user=_PROGRAM_USER)
            rates.append(8 * _DOWNLOAD / got.took_s)
            progress(f"gateway {number + 1}/{_ROUNDS}: {rates[-1] / 1e6:.1f} Mbit/s")
            time.sleep(_PAUSE_S)
        figures["sum_ratio"] = statistics.median(rates) / total_bps
        figures |= _cuts(laptop, cutter, progress)
        figures |= _first_bytes(laptop)
    return figures


@contextmanager
def emulated(*, daemon: bool) -> Iterator[Laptop]:
    accesses = (
        Access(NetworkKind.WIFI, Trace.constant(10e6), Trace.constant(_WIFI_BPS), _WIFI_S),
        Access(NetworkKind.CELLULAR, Trace.constant(8e6), Trace.constant(_LTE_BPS), _LTE_S),
    )
    with Laptop(*accesses, source_rules=not daemon) as laptop, Servers(laptop):
        put_on_time(laptop)
        yield laptop


@contextmanager
def _redirected(laptop: Laptop) -> Iterator[Cutter]:
    """The daemon, the gateway and its proxy; what nobody's programs connect to goes through it."""
    daemon = RescueDaemon(laptop, bpf=True, rescue=True)
    daemon.start()
    variables = {"CEDOS_RUNTIME_DIR": daemon.environment["CEDOS_RUNTIME_DIR"]}
    try:
        cutter = Cutter(laptop, daemon, _LTE_S)
        options = ("--redirect", str(_PROGRAM_USER))
        with Gatewayed(laptop, laptop.directory, variables, options):
            yield cutter
    finally:
        daemon.stop()


def _alone(laptop: Laptop, progress: Callable[[str], None]) -> tuple[float, float]:
    """The sum of both networks' rates, each alone, and kernel MPTCP's; in bit/s."""
    rates = [
        8 * _DOWNLOAD / _download(laptop, _DOWNLOAD, "--interface", address).took_s
        for address in (ADDRESSES[NetworkKind.WIFI], ADDRESSES[NetworkKind.CELLULAR])
    ]
    mptcp_bps = 8 * _DOWNLOAD / _download(laptop, _DOWNLOAD, mptcp=True).took_s
    shown = ", ".join(f"{rate / 1e6:.1f}" for rate in (*rates, mptcp_bps))
    progress(f"Wi-Fi, LTE, kernel MPTCP: {shown} Mbit/s")
    return sum(rates), mptcp_bps


def _cuts(laptop: Laptop, cutter: Cutter, progress: Callable[[str], None]) -> dict[str, float]:
    found: list[Download] = []
    for number in range(_CUTS):
        victim = ("wlan0", "lte0")[number % 2]
        with cutter.cut_when_told(victim) as cut:
            got = _download(laptop, _DOWNLOAD, user=_PROGRAM_USER, half_way=cut)
        found.append(got)
        progress(
            f"{victim} dies {number + 1}/{_CUTS}: pause {1e3 * got.stall_s:.0f} ms"
            f"{'' if got.whole else ', BROKEN'}"
        )
        cutter.daemon.until_both_live()
        time.sleep(_PAUSE_S)
    stalls = sorted(1e3 * each.stall_s for each in found)
    return {
        "cuts": len(found),
        "cuts_broken": sum(not each.whole for each in found),
        "cut_stall_median_ms": statistics.median(stalls),
        "cut_stall_p95_ms": stalls[int(0.95 * (len(stalls) - 1))],
        "cut_stall_max_ms": stalls[-1],
    }


def _first_bytes(laptop: Laptop) -> dict[str, float]:
    """In turn, so that whatever else the machine does falls on both alike."""
    took: dict[int, list[float]] = {0: [], _PROGRAM_USER: []}
    for _ in range(_FIRST_BYTES):
        for user, found in took.items():
            found.append(1e3 * _first_byte_s(laptop, user))
    direct, through = (sorted(found) for found in took.values())
    high = int(0.95 * (_FIRST_BYTES - 1))
    return {
        "first_byte_ms": statistics.median(through) - statistics.median(direct),
        "first_byte_p95_ms": through[high] - direct[high],
    }


def _as_user(user: int) -> tuple[str, ...]:
    return ("setpriv", f"--reuid={user}", f"--regid={user}", "--clear-groups") if user else ()


def _first_byte_s(laptop: Laptop, user: int) -> float:
    done = laptop.client.run(
        *_as_user(user),
        *("curl", "-sS", "-m", "10", "-o", "/dev/null", "-w", "%{time_starttransfer}"),
        f"http://{SERVER}/bytes/1000",
    )
    return float(done.stdout)


def _download(
    laptop: Laptop,
    size: int,
    *options: str,
    user: int = 0,
    mptcp: bool = False,
    half_way: Callable[[], None] | None = None,
) -> Download:
    """By curl; `half_way` is called once, when `_CUT_AT` of it is there."""
    process: subprocess.Popen[bytes] = laptop.client.popen(
        *_as_user(user),
        *(("mptcpize", "run") if mptcp else ()),
        *("curl", "-sS", "-m", "60", *options, f"http://{SERVER}/bytes/{size}"),
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    assert process.stdout is not None
    began_s, count, arrivals = time.monotonic(), 0, []
    with process.stdout as stream:
        while data := os.read(stream.fileno(), 1 << 18):
            count += len(data)
            arrivals.append(time.monotonic())
            if half_way is not None and count >= _CUT_AT * size:
                half_way()
                half_way = None
    whole = process.wait(60) == 0 and count == size
    if not arrivals:
        raise EmulationError("a download did not begin")
    stall_s = max((later - earlier for earlier, later in pairwise(arrivals)), default=0.0)
    return Download(arrivals[-1] - began_s, stall_s, whole)


if __name__ == "__main__":
    print(run(lambda line: print(line, file=sys.stderr)))

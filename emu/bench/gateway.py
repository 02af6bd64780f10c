"""Unmodified programs through the gateway: what it gains where networks die or are slow, and its price.

On an emulated laptop (Wi-Fi 24 Mbit/s, 20 ms; LTE 16 Mbit/s, 50 ms; Mahimahi) with a daemon that is
told nothing but pings twice a second; programs are redirected by the kernel and know of no proxy. Parts
(`cedos-emu bench gateway PART...` runs some of them):

- sum: one download over both networks against each alone and kernel MPTCP
- cases: one download in five situations, seconds of each contender from the same instants; of real
  places where the collection has them (`CEDOS_BENCH_PLACES` names another one)
- cuts: curl, ssh, git clone, apt and Chromium, while a network dies silently, loses its carrier or
  its address
- pages: in Chromium, plain and through the gateway
- first-bytes: of a small answer on healthy networks
- flows: 20,000 connections on one process
- idle-clients: what clients cost that are away and have no connections
- call: two ways, 50 packets/s each, while Wi-Fi dies in both directions, or towards the laptop alone;
  what is later than 400 ms is lost
- loopback: throughput and processor time of proxy and gateway on one host, with encryption
"""

import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Final

from cedos.errors import EmulationError
from cedos.model import NetworkKind
from emu.bench import told
from emu.places.traces import Trace
from emu.runs import gateway_pages
from emu.runs.gateway_pages import WARM_S, at_place, bench_places
from emu.statistics import percentile
from emu.testbed import phones
from emu.testbed.access import ADDRESSES, GATEWAYS, INTERFACES, WLAN, Access
from emu.testbed.counters import processor_s
from emu.testbed.phones import SERVER, Laptop, Silence
from emu.testbed.programs.daemon import RescueDaemon, put_on_time, through_gateway
from emu.testbed.programs.gateway import Gatewayed
from emu.testbed.programs.servers import Servers
from emu.workloads import gateway_connections
from emu.workloads.call import Heard, heard
from emu.workloads.downloads import (
    HalfWay,
    Watched,
    as_user,
    download,
    fetch_in_page,
)
from emu.workloads.tools import CloneServer, PackageArchive, ShellServer
from emu.workloads.web.browser import Browser

_WIFI_BPS, _WIFI_S = 24e6, 0.020
_LTE_BPS, _LTE_S = 16e6, 0.050
_ROUNDS, _DOWNLOAD = 5, 12_000_000
# The number of cuts, five seconds each. The goal is for 300.
_CUTS: Final = int(os.environ.get("CEDOS_BENCH_CUTS", "150"))

_FIRST_BYTES: Final = 60
_LOOPBACK_BYTES, _LOOPBACK_ROUNDS = 400_000_000, 5
_PROGRAM_USER: Final = 65_534
_PAUSE_S = 1.0
_CALL_S, _CALLS = 12.0, 4

Progress = Callable[[str], None]
Contender = Callable[[int, HalfWay | None, float | None], Watched]


@dataclass(frozen=True, slots=True)
class Case:
    """A download; `dies_after_s`: Wi-Fi dies silently then."""

    name: str
    size: int
    accesses: tuple[Access, Access]
    dies_after_s: float | None = None


def run(progress: Progress, parts: Sequence[str] = ()) -> dict[str, float]:
    """Measure all parts, or these. On a busy machine the first two took half an hour, each cut 8 s.

    Returns:
        `sum_ratio`: the rate through the gateway over the sum of both networks' alone, median of
        rounds; `mptcp_sum_ratio`; `shaped_ratio`: over Wi-Fi alone, through the gateway and plain.
        `case_CASE_CONTENDER_s`: medians of three seeds, which begin a second apart.
        `thrifty_` where LTE's bytes have their default price, else they are free. `cuts`,
        `cuts_survived_share`, `stall_median_s`, `stall_p95_s`, `stall_max_s`, `stall_within_share` (of
        300 ms and a round trip).
        `added_ttfb_median_ms`, `added_ttfb_p95_ms`: through the gateway less direct, of curl's whole
        connection and request. `loopback_aead_ratio`, `cpu_s_per_gb`: proxy and gateway together.
        The other parts say what theirs are (`emu.workloads`).

    Raises:
        EmulationError: the testbed or the daemon.
    """
    figures: dict[str, float] = {}
    for name in parts or PARTS:
        figures |= PARTS[name](progress)
    return figures


# -- the laptop -------------------------------------------------------------------------------


@contextmanager
def emulated(*, daemon: bool) -> Iterator[Laptop]:
    with Laptop(*_steady(_WIFI_BPS, _LTE_BPS), source_rules=not daemon) as laptop, Servers(laptop):
        put_on_time(laptop)
        yield laptop


def _steady(wifi_bps: float, lte_bps: float) -> tuple[Access, Access]:
    return (
        Access(NetworkKind.WIFI, Trace.constant(10e6), Trace.constant(wifi_bps), _WIFI_S),
        Access(NetworkKind.CELLULAR, Trace.constant(8e6), Trace.constant(lte_bps), _LTE_S),
    )


@contextmanager
def _redirected(laptop: Laptop, *, unmetered: bool = False) -> Iterator[RescueDaemon]:
    """Run the daemon, the gateway and its proxy; connections of the redirected user go through them.

    `unmetered`: a byte over LTE costs nothing, as for MPTCP, which knows no prices.
    """
    with through_gateway(laptop, str(_PROGRAM_USER), unmetered=unmetered) as daemon:
        yield daemon


@contextmanager
def _silent(laptop: Laptop, kind: NetworkKind) -> Iterator[HalfWay]:
    """Give a function that kills a network beyond its first hop; the network lives again at the end."""
    with Silence(laptop, INTERFACES[kind]).when_told() as cut:
        yield cut


def _plain(laptop: Laptop, kind: NetworkKind) -> Contender:
    return lambda size, half_way, after_s: download(
        laptop.client, _url(size), size, "--interface", ADDRESSES[kind], half_way=half_way,
        after_s=after_s,
    )  # fmt: skip


def _mptcp(laptop: Laptop) -> Contender:
    return lambda size, half_way, after_s: download(
        laptop.client, _url(size), size, mptcp=True, half_way=half_way, after_s=after_s
    )


def _through(laptop: Laptop) -> Contender:
    return lambda size, half_way, after_s: download(
        laptop.client, _url(size), size, user=_PROGRAM_USER, half_way=half_way, after_s=after_s
    )


def _url(size: int) -> str:
    return f"http://{SERVER}/bytes/{size}"


# -- parts ------------------------------------------------------------------------------------


def _sum(progress: Progress) -> dict[str, float]:
    rates: dict[str, list[float]] = {}

    def measure(contenders: dict[str, Contender]) -> None:
        for number in range(_ROUNDS):
            for name, contender in contenders.items():
                took_s = contender(_DOWNLOAD, None, None).took_s
                rates.setdefault(name, []).append(8 * _DOWNLOAD / took_s)
                progress(f"{name} {number + 1}/{_ROUNDS}: {rates[name][-1] / 1e6:.1f} Mbit/s")
                time.sleep(_PAUSE_S)

    with emulated(daemon=False) as laptop:
        phones.use_kernel_path_manager(laptop)
        measure(
            {
                "wifi": _plain(laptop, NetworkKind.WIFI),
                "lte": _plain(laptop, NetworkKind.CELLULAR),
                "mptcp": _mptcp(laptop),
            }
        )
    for name, unmetered in (("gateway", True), ("thrifty_gateway", False)):
        with emulated(daemon=True) as laptop, _redirected(laptop, unmetered=unmetered):
            measure({name: _through(laptop)})
    with (
        emulated(daemon=False) as laptop,
        Gatewayed(laptop, laptop.directory, {}, ("--redirect", str(_PROGRAM_USER), "-n", "wlan0")),
    ):
        measure({"gateway_wifi": _through(laptop)})
    median = {name: statistics.median(found) for name, found in rates.items()}
    total = median["wifi"] + median["lte"]
    return {
        "sum_ratio": median["gateway"] / total,
        "thrifty_sum_ratio": median["thrifty_gateway"] / total,
        "shaped_ratio": median["gateway_wifi"] / median["wifi"],
        "mptcp_sum_ratio": median["mptcp"] / total,
    }


def _cases(progress: Progress) -> dict[str, float]:
    took_s: dict[str, list[float]] = {}

    def measure(laptop: Laptop, name: str, contender: Contender, case: Case) -> None:
        laptop.attach(*case.accesses)
        put_on_time(laptop)
        time.sleep(WARM_S)
        with _silent(laptop, NetworkKind.WIFI) as dies:
            half_way = None if case.dies_after_s is None else dies
            got = contender(case.size, half_way, case.dies_after_s)
        took_s.setdefault(f"case_{case.name}_{name}_s", []).append(
            got.took_s if got.whole else float("inf")
        )
        progress(f"{case.name}, {name}: {got.took_s:.1f} s{'' if got.whole else ', BROKEN'}")

    def measure_all(laptop: Laptop, contenders: dict[str, Contender]) -> None:
        for seed in _SEEDS:
            for case in _all_cases(seed):
                for name, contender in contenders.items():
                    measure(laptop, name, contender, case)

    with emulated(daemon=False) as laptop:
        phones.use_kernel_path_manager(laptop)
        measure_all(laptop, {"mptcp": _mptcp(laptop)})
    for unmetered, prefix in ((True, ""), (False, "thrifty_")):
        with emulated(daemon=True) as laptop, _redirected(laptop, unmetered=unmetered):
            measure_all(laptop, {f"{prefix}gateway": _through(laptop)})
    return {name: statistics.median(found) for name, found in took_s.items()}


def _all_cases(seed: int) -> list[Case]:
    """Places are begun `seed` seconds later; of steady networks each seed is the same again."""
    good = _steady(45e6, 40e6)
    places = bench_places()

    def at(place: str, start_s: float) -> tuple[Access, Access]:
        # The warm-up ends at this second of the place.
        return at_place(place, start_s + seed - WARM_S)

    walk, uneven, train = _REAL if all(name in places for name, _ in _REAL) else _SYNTHETIC
    return [
        Case("good", 40_000_000, good),
        Case("dies", 40_000_000, good, dies_after_s=4.0),
        Case("walk", 40_000_000, at(*walk)),
        Case("uneven", 40_000_000, at(*uneven)),
        Case("train", 10_000_000, at(*train)),
    ]


_SEEDS: Final = (0, 1, 2)
_SYNTHETIC: Final = (("walk-away-s7", 20.0), ("drive-past-s13", 10.0), ("station-s9", 20.0))
# Real places with their starts: Wi-Fi fades while LTE pauses; Wi-Fi contacts beside LTE in a bus;
# a train at a station.
_REAL: Final = (("sbu7-3", 41.0), ("p09", 218.0), ("p14", 52.0))


def _cuts(progress: Progress) -> dict[str, float]:
    found: list[Watched] = []
    with emulated(daemon=True) as laptop, ExitStack() as stack:
        daemon = stack.enter_context(_redirected(laptop))
        clones = stack.enter_context(CloneServer(laptop, _PROGRAM_USER, _DOWNLOAD))
        archive = PackageArchive(
            laptop.directory / "servers" / "www", laptop.directory / "apt", _PROGRAM_USER, _DOWNLOAD
        )
        archive.update(laptop.client)
        browser = stack.enter_context(
            Browser(laptop, laptop.directory / "chromium.log", mptcp=False)
        )
        shell = stack.enter_context(ShellServer(laptop, _PROGRAM_USER))
        programs: dict[str, Callable[[HalfWay], Watched]] = {
            "curl": lambda cut: download(
                laptop.client, _url(_DOWNLOAD), _DOWNLOAD, user=_PROGRAM_USER, half_way=cut
            ),
            "git": lambda cut: clones.clone(laptop.client, cut),
            "apt": lambda cut: archive.fetch(laptop.client, cut),
            "chromium": lambda cut: fetch_in_page(browser, f"/bytes/{_DOWNLOAD}", _DOWNLOAD, cut),
            "ssh": lambda cut: shell.typing(laptop.client, cut),
        }
        kinds = (_silent, _no_carrier, _renumbered)
        # All programs meet all kinds of cut on both networks in turn.
        trials = [
            (name, make, kind)
            for make in kinds
            for kind in (NetworkKind.WIFI, NetworkKind.CELLULAR)
            for name in programs
        ]
        for number in range(_CUTS):
            name, make, kind = trials[number % len(trials)]
            # The program cuts the network itself, half-way through its work.
            with make(laptop, kind) as cut:
                got = programs[name](cut)
            found.append(got)
            progress(
                f"{number + 1}/{_CUTS} {name}, {INTERFACES[kind]} {make.__name__.strip('_')}: pause"
                f" {1e3 * got.stall_s:.0f} ms{'' if got.whole else ', BROKEN'}"
            )
            # The next trial begins once the daemon knows both networks to be alive again.
            daemon.until_both_live()
    everything = sorted(each.stall_s for each in found)
    # The goal allows 300 ms and a round trip.
    within = sum(stall <= 0.3 + _LTE_S for stall in everything)
    return {
        "cuts": len(everything),
        "cuts_survived_share": sum(each.whole for each in found) / len(found),
        "stall_median_s": statistics.median(everything),
        "stall_p95_s": percentile(everything, 0.95),
        "stall_max_s": everything[-1],
        "stall_within_share": within / len(everything),
    }


@contextmanager
def _no_carrier(laptop: Laptop, kind: NetworkKind) -> Iterator[HalfWay]:
    """Give a function that takes the laptop's interface its carrier; the carrier is back at the end."""
    inside = ("nsenter", f"--net=/proc/{laptop.links[kind].phone_pid}/ns/net", "ip", "link", "set")
    device = f"tether-{kind}"

    def cut() -> None:
        laptop.server.run(*inside, device, "down")

    try:
        yield cut
    finally:
        laptop.server.run(*inside, device, "up")


@contextmanager
def _renumbered(laptop: Laptop, kind: NetworkKind) -> Iterator[HalfWay]:
    """Another address, at once; the first one again in the end."""
    device, first = INTERFACES[kind], ADDRESSES[kind]
    other = first.rpartition(".")[0] + ".77"
    metric = {NetworkKind.WIFI: "100", NetworkKind.CELLULAR: "200"}[kind]

    def change(before: str, after: str) -> None:
        laptop.client.ip("address", "del", f"{before}/24", "dev", device)
        laptop.client.ip("address", "add", f"{after}/24", "dev", device)
        laptop.client.ip(
            *("route", "replace", "default", "via", GATEWAYS[kind], "dev", device),
            *("metric", metric),
        )

    changed = False

    def cut() -> None:
        nonlocal changed
        changed = True
        change(first, other)

    try:
        yield cut
    finally:
        if changed:
            change(other, first)


def _first_bytes(progress: Progress) -> dict[str, float]:
    """Measure first bytes in turn, so that other work of the machine affects both ways alike."""
    took: dict[int, list[float]] = {0: [], _PROGRAM_USER: []}
    with emulated(daemon=True) as laptop, _redirected(laptop):
        for _ in range(_FIRST_BYTES):
            for user, found in took.items():
                found.append(1e3 * _first_byte_s(laptop, user))
    direct, through = took.values()
    added = {
        "added_ttfb_median_ms": statistics.median(through) - statistics.median(direct),
        "added_ttfb_p95_ms": percentile(through, 0.95) - percentile(direct, 0.95),
    }
    return told(progress, added)


def _call(progress: Progress) -> dict[str, float]:
    with emulated(daemon=True) as laptop, _redirected(laptop) as daemon:
        found: list[Heard] = []
        for number in range(_CALLS):
            up, down = _one_call(laptop, back_only=bool(number % 2))
            found += [up, down]
            progress(f"call {number + 1}/{_CALLS}: up {_shown(up)}; down {_shown(down)}")
            daemon.until_both_live()
            time.sleep(_PAUSE_S)
    return {
        "call_loss_share": sum(each.lost for each in found) / sum(each.sent for each in found),
        "call_gap_ms": 1e3 * max(each.gap_s for each in found),
    }


def _shown(one: Heard) -> str:
    return f"{one.lost} of {one.sent} lost, gap {1e3 * one.gap_s:.0f} ms"


def _one_call(laptop: Laptop, *, back_only: bool) -> tuple[Heard, Heard]:
    """Return what each end of one call has heard of the other: up, down."""
    up, down = (laptop.directory / f"{end}.json" for end in ("caller", "callee"))
    program, common = (sys.executable, "-m", "emu.workloads.call"), (SERVER, str(_CALL_S))
    with Silence(laptop, WLAN, back_only=back_only).when_told() as cut:
        callee: subprocess.Popen[bytes] = laptop.server.popen(
            *program, "callee", *common, str(down), stdout=subprocess.PIPE
        )
        with callee:
            assert callee.stdout is not None
            callee.stdout.readline()
            caller: subprocess.Popen[bytes] = laptop.client.popen(
                *program, "caller", *common, str(up), "--user", str(_PROGRAM_USER)
            )
            time.sleep(_CALL_S / 2)
            cut()
            if caller.wait(60) or callee.wait(60):
                raise EmulationError("an end of a call failed")
    return heard(up, down), heard(down, up)


def _first_byte_s(laptop: Laptop, user: int) -> float:
    done = laptop.client.run(
        *as_user(user),
        *("curl", "-sS", "-m", "10", "-o", "/dev/null", "-w", "%{time_starttransfer}"),
        f"http://{SERVER}/bytes/1000",
    )
    return float(done.stdout)


def _loopback(progress: Progress) -> dict[str, float]:
    """Measure nginx, curl, proxy and gateway on the server alone, over its loopback."""
    ratios, cpu = [], []
    with (
        emulated(daemon=False) as laptop,
        Gatewayed(
            laptop, laptop.directory, {}, ("-L", f"8090:{SERVER}:80"), where=laptop.server
        ) as gatewayed,
    ):
        for number in range(_LOOPBACK_ROUNDS):
            size = _LOOPBACK_BYTES
            plain = download(laptop.server, _url(size), size)
            before_s = sum(map(processor_s, gatewayed.pids))
            through = download(laptop.server, f"http://127.0.0.1:8090/bytes/{size}", size)
            cpu.append((sum(map(processor_s, gatewayed.pids)) - before_s) / size * 1e9)
            if not (plain.whole and through.whole):
                raise EmulationError("a download over loopback broke")
            ratios.append(plain.took_s / through.took_s)
            progress(
                f"loopback {number + 1}/{_LOOPBACK_ROUNDS}: {8e-6 * size / plain.took_s:.0f} Mbit/s"
                f" plain, {8e-6 * size / through.took_s:.0f} through, {cpu[-1]:.2f} s/GB"
            )
    return {
        "loopback_aead_ratio": statistics.median(ratios),
        "cpu_s_per_gb": statistics.median(cpu),
    }


PARTS: Final[Mapping[str, Callable[[Progress], dict[str, float]]]] = {
    "sum": _sum, "cases": _cases, "cuts": _cuts, "pages": gateway_pages.measure,
    "first-bytes": _first_bytes, "call": _call, "flows": gateway_connections.many_flows,
    "idle-clients": gateway_connections.idle_clients, "loopback": _loopback,
}  # fmt: skip

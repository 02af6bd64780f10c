"""DTP's experiment (5.2): one download across gaps, by several protocols.

A client meets access points of 3 Mbit/s, each for a while, with gaps and another address each time.
The n-th contact lasts n times the median connection time, as in the paper. Times and sizes are divided
by `scale`, rates and round trips are not: whatever costs round trips weighs `scale` times as much.
"""

import importlib.util
import os
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

from cedos.errors import EmulationError
from cedos.model import NetworkKind
from cedos.selector.energy import PowerModel
from cedos.session.protocol.crypto import KeyPair
from cedos.storage.model_files import radios
from emu.data.evaluate import Progress
from emu.experiments.sessions.world import Program, Ready, Scripted, World, in_batches
from emu.places.places import Places
from emu.places.traces import Trace
from emu.runs.summary import run_energy_j
from emu.statistics import student_ci95
from emu.testbed.counters import Sample, Sampler
from emu.testbed.hosts import SERVER

CONNECTED_S: Final = 6.6 * 60
GAP_S: Final = 7.8 * 60
NETWORK: Final = "wlan0"
# The rate of the paper's 3G network in bit/s (5.3).
CELLULAR_BPS: Final = 0.78e6
# The phone of our radio models that is nearest to the paper's Nexus S.
PHONE: Final = "nexus-one"
_PORT: Final = 7200
_CONTACTS: Final = 6
_NGINX: Final = "server {{ listen 80; root {root}; }}"


@dataclass(frozen=True, slots=True)
class Plan:
    """A setting, times and sizes already scaled."""

    size_bytes: int
    contacts: tuple[tuple[float, float], ...]
    rate_bps: float  # of the access points, both ways
    rtt_s: float
    scale: float  # how much shorter everything is than in life
    kind: NetworkKind = NetworkKind.WIFI

    def network(self) -> Scripted:
        trace = Trace.constant(self.rate_bps, 12.0)
        return Scripted(NETWORK, trace, trace, [(0.0, self.rtt_s)], self.contacts)

    @property
    def limit_s(self) -> float:
        """No protocol is waited for longer."""
        return self.contacts[-1][1]

    def bound_s(self) -> float:
        """Return the least seconds: the link's whole rate whenever it is there."""
        left_s = 8 * self.size_bytes / self.rate_bps
        for begin_s, end_s in self.contacts:
            if left_s <= end_s - begin_s:
                return begin_s + left_s
            left_s -= end_s - begin_s
        return float("inf")


def plan(size_mb: float, scale: float, rate_bps: float, rtt_s: float) -> Plan:
    """Return the paper's setting: contact n lasts n medians, with a median gap in between."""
    contacts, at_s = [], 0.0
    for number in range(1, _CONTACTS + 1):
        contacts.append((at_s / scale, (at_s + number * CONNECTED_S) / scale))
        at_s += number * CONNECTED_S + GAP_S
    return Plan(round(1e6 * size_mb / scale), tuple(contacts), rate_bps, rtt_s, scale)


def undisturbed(wanted: Plan, rtt_s: float) -> Plan:
    """Return the same download over the paper's 3G network, which is always there (5.3)."""
    lasts_s = 2 * 8 * wanted.size_bytes / CELLULAR_BPS
    return replace(
        wanted, contacts=((0.0, lasts_s),), rate_bps=CELLULAR_BPS, rtt_s=rtt_s,
        kind=NetworkKind.CELLULAR,
    )  # fmt: skip


def measure(protocol: str, wanted: Plan, ready: Ready = lambda: None) -> dict[str, Any]:
    """Measure one download: `seconds` (None: not within the plan) and the protocol's own figures.

    `energy_j` is what the phone's radio would take for it in life (`energy_j` below).

    EmulationError: the testbed failed, or what arrived is not what was sent.
    """
    with World([wanted.network()]) as world, Sampler(world.client, [NETWORK], 0.05) as sampler:
        found = PROTOCOLS[protocol](world, wanted, ready)
        ended_s = time.monotonic()
    within = [each for each in sampler.samples if world.began_s <= each.at_s <= ended_s]
    found["energy_j"] = round(energy_j(within, wanted), 2)
    if found["seconds"] is not None and found["bytes"] != wanted.size_bytes:
        raise EmulationError(
            f"{protocol}: {found['bytes']} bytes arrived instead of {wanted.size_bytes}"
        )
    return found


def energy_j(samples: Sequence[Sample], wanted: Plan) -> float:
    """Joules above idle, as if the seconds between the samples were `scale` times as long.

    Rates are those of life, so that only the times have to be stretched; tails are not, as they are
    part of the radio.
    """
    model = radios()[PHONE]
    power = PowerModel({NetworkKind.WIFI: model["wifi"], NetworkKind.CELLULAR: model["3g"]})
    stretched = [replace(each, at_s=each.at_s * wanted.scale) for each in samples]
    return run_energy_j(stretched, wanted.kind, power)


def _session(world: World, wanted: Plan, ready: Ready) -> dict[str, Any]:
    key = os.urandom(32)
    there: dict[str, Any] = {"host": SERVER, "port": _PORT}
    server = Program(
        world.server, "server", "fetch", **there, key=key.hex(), size=wanted.size_bytes
    )
    client = Program(
        world.client, "client", "fetch", **there,
        server_key=KeyPair(key).public.hex(), deadline_s=wanted.limit_s,
    )  # fmt: skip
    return _programs(world, wanted, ready, server, client)


def _bundles(world: World, wanted: Plan, ready: Ready) -> dict[str, Any]:
    there: dict[str, Any] = {"host": SERVER, "port": _PORT, "size": wanted.size_bytes}
    client = Program(world.client, "client", "bundled", **there)
    return _programs(
        world, wanted, ready, Program(world.server, "server", "bundled", **there), client
    )


def _programs(
    world: World, wanted: Plan, ready: Ready, server: Program, client: Program
) -> dict[str, Any]:
    with server, client:
        server.ready().go()
        _await_port(world, _PORT)
        client.ready()
        ready()
        world.begin()
        client.go()
        found = _moving(world, wanted, lambda: client.answer(0.02))
    if found is None:
        return {"seconds": None, "bytes": 0}
    return found | {"seconds": found["ended_s"] - world.began_s}


def _curl(world: World, wanted: Plan, ready: Ready, *, resume: bool) -> dict[str, Any]:
    """Start a new curl in each contact, begun when the network appears and killed when it goes.

    So no time-out is waited for: TCP at its best.
    """
    file = world.directory / "fetched"
    (world.directory / "www").mkdir()
    with (world.directory / "www" / "file").open("wb") as hole:
        hole.truncate(wanted.size_bytes)
    world.serve(_NGINX.format(root=world.directory / "www"))
    ready()
    world.begin()
    starts = [0]
    running: list[subprocess.Popen[bytes]] = []
    line = ["curl", "-sS", "-o", str(file), *(("-C", "-") if resume else ())]
    spent = [0]

    def poll() -> dict[str, Any] | None:
        now_s = time.monotonic() - world.began_s
        there = any(begin_s <= now_s < end_s for begin_s, end_s in wanted.contacts)
        # The network is there: begin a curl, from nothing or where the last one ended.
        if there and not running:
            if not resume:
                file.unlink(missing_ok=True)
            starts[0] += 1
            running.append(world.client.popen(*line, f"http://{SERVER}/file"))
        # It has ended by itself: the file is whole.
        elif running and running[0].poll() == 0:
            size = file.stat().st_size
            return {"seconds": now_s, "bytes": size, "starts": starts[0], "wasted_bytes": spent[0]}
        # The network has gone, or curl gave up: kill it, and count what a restart loses.
        elif running and (not there or running[0].poll() is not None):
            running[0].kill()
            running.pop().wait()
            if not resume:
                spent[0] += file.stat().st_size if file.exists() else 0
        time.sleep(0.005)
        return None

    try:
        found = _moving(world, wanted, poll)
    finally:
        for each in running:
            each.kill()
            each.wait()
    return found or {"seconds": None, "bytes": 0, "starts": starts[0]}


def _moving(
    world: World, wanted: Plan, poll: Callable[[], dict[str, Any] | None]
) -> dict[str, Any] | None:
    """Poll until there is an answer; in the middle of each gap the client gets another address."""
    moves = [
        (before[1] + after[0]) / 2
        for before, after in zip(wanted.contacts, wanted.contacts[1:], strict=False)
    ]
    while (now_s := time.monotonic() - world.began_s) < wanted.limit_s:
        if moves and now_s > moves[0]:
            moves.pop(0)
            world.move(NETWORK)
        if (found := poll()) is not None:
            return found
    return None


def _await_port(world: World, port: int) -> None:
    end_s = time.monotonic() + 20
    while f":{port} " not in world.server.run("ss", "-Htln").stdout:
        if time.monotonic() > end_s:
            raise EmulationError(f"no program listens on port {port}")
        time.sleep(0.05)


PROTOCOLS: Mapping[str, Callable[[World, Plan, Ready], dict[str, Any]]] = {
    "session": _session,
    "tcp-restart": lambda world, wanted, ready: _curl(world, wanted, ready, resume=False),
    "tcp-range": lambda world, wanted, ready: _curl(world, wanted, ready, resume=True),
    "bundles": _bundles,
}


_CELLULAR: Final = "tcp-cellular"


def run(
    places: Places,
    *,
    sizes_mb: Sequence[float] = (77, 154, 308),
    scale: float = 20.0,
    rate_mbps: float = 3.0,
    rtt_ms: float = 20.0,
    cellular_rtt_ms: float = 150.0,
    trials: int = 3,
    at_once: int = 12,
    progress: Progress = lambda share, what: None,
) -> dict[str, Any]:
    """Measure every protocol with every size.

    `places`: not needed; the setting is the paper's.
    `sizes_mb`: of the downloads before scaling.
    `scale`: times and sizes are divided by it.
    `rate_mbps`: of every access point.
    `cellular_rtt_ms`: over 3G, where the largest download is made by plain TCP without disruptions.
    `at_once`: so many downloads at the same time, each in namespaces of its own.

    Returns:
        `{"sizes": {MB: {"bound_s", "protocols": {NAME: {"seconds", "mbps", "mbps_ci95", "energy_j",
        ...}}}}}`; `tcp-cellular` is among the protocols of the largest size.
    """
    # The bundle protocol is compared where there is one: `pip install pyd3tn`.
    bundled = importlib.util.find_spec("pyd3tn") is not None
    names = [name for name in PROTOCOLS if name != "bundles" or bundled]
    # The largest download is also made over 3G without disruptions.
    plans = {size: plan(size, scale, 1e6 * rate_mbps, rtt_ms / 1e3) for size in sizes_mb}
    largest = max(sizes_mb)
    beside = undisturbed(plans[largest], cellular_rtt_ms / 1e3)
    tasks = {}
    for trial in range(trials):
        tasks[largest, _CELLULAR, trial] = partial(measure, "tcp-restart", beside)
        for size in sorted(sizes_mb, reverse=True):
            for name in names:
                tasks[size, name, trial] = partial(measure, name, plans[size])
    # All protocols and sizes run side by side, under the same load of the host.
    found = in_batches(tasks, at_once, progress)
    sizes: dict[str, Any] = {}
    for size, wanted in plans.items():
        protocols = {}
        for name in [*names, _CELLULAR] if size == largest else names:
            runs = [found[size, name, trial] for trial in range(trials)]
            rates = [
                8 * wanted.size_bytes / 1e6 / each["seconds"] for each in runs if each["seconds"]
            ]
            mbps, mbps_ci95 = student_ci95(rates) if rates else (None, [None, None])
            energy_j, energy_j_ci95 = student_ci95([each["energy_j"] for each in runs])
            protocols[name] = {
                "seconds": [each["seconds"] and round(each["seconds"], 3) for each in runs],
                "mbps": mbps,
                "mbps_ci95": mbps_ci95,
                "energy_j": energy_j,
                "energy_j_ci95": energy_j_ci95,
                "runs": runs,
            }
        sizes[f"{size:g}"] = {
            "bytes": wanted.size_bytes,
            "bound_s": round(wanted.bound_s(), 3),
            "protocols": protocols,
        }
    return {
        "scale": scale,
        "rate_mbps": rate_mbps,
        "rtt_ms": rtt_ms,
        "phone": PHONE,
        "trials": trials,
        "sizes": sizes,
    }

"""Probes as data: a laptop that probes its networks, and what each probe answers.

Probes are those of the daemon: the same code, from the same laptop, to a `cedos probe-server` at the
server. Per start of a transfer data set there is one replay, so that no transfer is disturbed: each
network has its names asked, then gets a train, in the last seconds before the start. Rows of one start
share what was found; the train came downwards, and uploads have no columns of it.
"""

import asyncio
import functools
import secrets
import socket
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path
from typing import Any

from cedos.errors import EmulationError
from cedos.host.monitor.probing import dns_probe, udp_train
from cedos.host.monitor.probing.keyfile import read_key, write_new_key
from cedos.host.monitor.probing.probes import ProbeOutcome, ProbeServer
from cedos.model import Direction, Network, NetworkKind
from emu.data import side_by_side
from emu.data.collect import Row, resolve_hardware_address
from emu.places.places import load
from emu.testbed.access import ADDRESSES, INTERFACES
from emu.testbed.phones import SERVER, Laptop, replay
from emu.testbed.programs.servers import Servers
from emu.testbed.services import Service, Started

PORT = 7007
_START_TIMEOUT_S = 60.0
_TICK_S = 0.02
_TARGET = ip_address(SERVER)

SECONDS = ("udp_gap_mean_s", "udp_gap_p50_s", "udp_gap_p90_s")


class ProbeServerService(Started):
    """The probe server of a laptop's testbed, as a `with` block inside the laptop's.

    Clients find it at `server`.
    """

    def __init__(self, laptop: Laptop) -> None:
        self._laptop = laptop
        self._service: Service | None = None
        self.server = ProbeServer(_TARGET, PORT, b"")

    def _start(self) -> None:
        key_file = self._laptop.directory / "probe.key"
        key_file.unlink(missing_ok=True)
        write_new_key(key_file)
        self.server = ProbeServer(_TARGET, PORT, read_key(key_file))
        command = [sys.executable, "-m", "cedos", "probe-server", "--key-file", str(key_file)]
        command += ["--listen", f"{SERVER}:{PORT}", "--rate-limit", "1000", "--total-limit", "1000"]
        output = self._laptop.directory / "probe-server.out"
        self._service = service = Service(self._laptop.server, *command, output=output)
        service.wait_for(lambda: "listening" in service.text, _START_TIMEOUT_S)

    def close(self) -> None:
        if self._service is not None:
            self._service.close()


def networks() -> dict[NetworkKind, Network]:
    """Return the laptop's networks as the monitor would see them; to be called inside its namespace."""
    return {
        kind: Network(
            name=str(kind),
            interface=interface,
            index=socket.if_nametoindex(interface),
            kind=kind,
            metered=kind is NetworkKind.CELLULAR,
            resolvers=(_TARGET,),
        )
        for kind, interface in INTERFACES.items()
    }


async def lookup_s(network: Network, timeout_s: float) -> float | None:
    """Return the time of the lookup of a new name; None without an answer."""
    outcome = await dns_probe.run(network, f"{secrets.token_hex(6)}.example", timeout_s=timeout_s)
    took_s = outcome.indicators.get("dns_s")
    return None if took_s is None else round(took_s, 6)


def columns(outcome: ProbeOutcome) -> dict[str, float]:
    """Return a train's indicators, rounded, and whether it had a result at all (`udp_answered`)."""
    found: dict[str, float] = {"udp_answered": float(not outcome.problem)}
    for name, value in outcome.indicators.items():
        found[name] = round(value, {"udp_loss": 4}.get(name, 6 if name in SECONDS else 0))
    return found


def prefixed(kind: NetworkKind, known: Mapping[str, float]) -> dict[str, float]:
    return {f"{kind}_{name}": value for name, value in known.items()}


async def sleep_until(at_s: float) -> None:
    await asyncio.sleep(max(0.0, at_s - time.monotonic()))


async def watch_host(zero_s: float, lateness: dict[int, float]) -> None:
    """Note until it is cancelled how late the host is: what it is late with is not the network's.

    `lateness`: second from the monotonic `zero_s` -> by how much a short sleep ended too late in
    it, at most (s).
    """
    while True:
        due_s = time.monotonic() + _TICK_S
        await asyncio.sleep(_TICK_S)
        now_s = time.monotonic()
        for second in range(int(due_s - zero_s), int(now_s - zero_s) + 1):
            lateness[second] = max(lateness.get(second, 0.0), now_s - due_s)


# Seconds that a replay runs before the start.
LEAD_S = 5.0

# When each probe begins, from the start on, and for how long an answer to the look-up is waited for. The
# train ends with the start.
DNS_AT_S, _DNS_LIMIT_S, TRAIN_AT_S = -4.0, 0.9, -1.55

# A start is probed again, so many times in all, if the host was later than this with something.
LATE_S, TRIES = 0.02, 4


@dataclass(frozen=True, slots=True)
class Start:
    """An instant of a place. `None` as a base RTT means the place's own."""

    place: str
    start_s: float
    wifi_rtt_s: float | None = None
    cellular_rtt_s: float | None = None

    @property
    def key(self) -> str:
        return key_of(self.place, self.start_s)


def key_of(place: str, start_s: float) -> str:
    """Return the key that the rows of one start share."""
    return f"{place}/{start_s:.3f}"


class ProbeBench(Started):
    """A laptop that probes its networks, as a `with` block; `cancelled` is asked between replays."""

    def __init__(self, directory: Path, cancelled: Callable[[], bool] = lambda: False) -> None:
        self._places = load(directory)
        self._cancelled = cancelled
        self._laptop = Laptop(source_rules=True, nice=-10)
        self._service = ProbeServerService(self._laptop)
        self._stack = ExitStack()

    def _start(self) -> None:
        for part in (self._laptop, Servers(self._laptop), self._service):
            self._stack.enter_context(part)

    def close(self) -> None:
        self._stack.close()

    def measure(self, start: Start) -> dict[str, Any] | None:
        """Return what the probes before a start found: `down` and `up`, each with columns by name.

        `late` is by how many seconds the host was late meanwhile, at most: of some replays, the one with
        the least. None where it was cancelled. EmulationError: the testbed failed.
        """
        best: dict[str, Any] | None = None
        for _ in range(TRIES):
            if self._cancelled():
                break
            found = self._once(start)
            if best is None or found["late"] < best["late"]:
                best = found
            if found["late"] <= LATE_S:
                break
        return best

    def _once(self, start: Start) -> dict[str, Any]:
        """Replay the place while its networks are probed."""
        began_s = replay(
            self._laptop,
            self._places[start.place],
            start.start_s - LEAD_S,
            length_s=LEAD_S + 3.0,
            rtts_s={"wifi": start.wifi_rtt_s, "cellular": start.cellular_rtt_s},
        )
        for address in ADDRESSES.values():
            resolve_hardware_address(self._laptop, address)
        with self._laptop.client.entered():
            found = asyncio.run(self._probe(began_s + LEAD_S, start.start_s))
        if not self._laptop.alive():
            raise EmulationError("an emulated link ended during the probes")
        return found

    async def _probe(self, at_s: float, start_s: float) -> dict[str, Any]:
        found: dict[str, dict[str, float]] = {"down": {}, "up": {}}
        lateness: dict[int, float] = {}
        watch = asyncio.create_task(watch_host(at_s + DNS_AT_S, lateness))
        async with asyncio.TaskGroup() as tasks:
            for kind, network in networks().items():
                tasks.create_task(self._probe_one(kind, network, at_s, start_s, found))
        watch.cancel()
        late_s = max((late for second, late in lateness.items() if second >= 0), default=0.0)
        return {**found, "late": round(late_s, 4)}

    async def _probe_one(
        self,
        kind: NetworkKind,
        network: Network,
        at_s: float,
        start_s: float,
        found: Mapping[str, dict[str, float]],
    ) -> None:
        # Before the place begins there is its end, for replays wrap: that is no past.
        if start_s + DNS_AT_S >= 0:
            await sleep_until(at_s + DNS_AT_S)
            took_s = await lookup_s(network, _DNS_LIMIT_S)
            if took_s is not None:
                for known in found.values():
                    known[f"{kind}_dns_s"] = took_s
        if start_s + TRAIN_AT_S >= 0:
            await sleep_until(at_s + TRAIN_AT_S)
            outcome = await udp_train.run(
                self._service.server, interface=network.interface, timeout_s=-TRAIN_AT_S - 0.05
            )
            found[str(Direction.DOWN)] |= prefixed(kind, columns(outcome))


def starts_of(rows: Iterable[Row]) -> list[Start]:
    starts = [Start(row.place, row.start_s, row.wifi_rtt_s, row.cellular_rtt_s) for row in rows]
    return list({start.key: start for start in starts}.values())


def collect(
    starts: Sequence[Start],
    directory: Path,
    partial: Path,
    *,
    jobs: int,
    seed: int = 1,
    done: Callable[[int, int], None] = lambda finished, total: None,
) -> dict[str, dict[str, Any]]:
    """Probe all starts and return what `ProbeBench.measure` found, by `Start.key`."""
    entries = side_by_side.run(
        starts, functools.partial(ProbeBench, directory), partial, jobs=jobs, seed=seed, done=done
    )
    return {start.key: entry for start, entry in zip(starts, entries, strict=True)}


def added(
    rows: Iterable[Mapping[str, Any]], probes: Mapping[str, Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """Return the rows, each with its start's probes in its own direction; those it had are replaced."""
    return [
        {
            **{name: value for name, value in row.items() if "_udp_" not in name},
            **probes[key_of(str(row["place"]), float(row["start_s"]))][str(row["direction"])],
        }
        for row in rows
    ]

"""Measures completion times of all strategies from the same instants of real places.

A row of the plan is one place, start, size and direction. For it, every strategy (TCP on each
network, MPTCP with each primary) is measured once, each from a fresh replay rotated to the very same
instant, together with the context just before it. This is the method of Delphi's data collection
(section 6.1), on replayed instead of on live networks. The simulator computes the same rows without
waiting.
"""

import functools
import math
import random
import re
import signal
import socket
import statistics
import subprocess
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cedos.model import Direction, NetworkKind
from emu.data import side_by_side
from emu.places.places import Place, load
from emu.simulator.connection import Transfer
from emu.simulator.link import Clock, Network, Parcel
from emu.testbed.access import ADDRESSES, INTERFACES, Access
from emu.testbed.phones import SERVER, Laptop, replay, use_kernel_path_manager
from emu.testbed.programs.servers import HTTP_PORT, Servers
from emu.testbed.services import Started
from emu.workloads.transfer import Timing, measure
from predictors.inputs import NETWORKS

# A transfer that takes longer is censored.
LIMIT_S = 30.0
# Seconds that a replay runs before the transfer starts.
LEAD_S = 2.4
PINGS = 5
PING_INTERVAL_S = 0.25
# The duration of the pings before the start. A ping that is late by then counts as lost.
PING_S = PINGS * PING_INTERVAL_S
# The strategies of a data set: the (primary) network, and whether the transfer uses MPTCP.
STRATEGIES: Mapping[str, tuple[NetworkKind, bool]] = {
    "wifi": (NetworkKind.WIFI, False),
    "cellular": (NetworkKind.CELLULAR, False),
    "mptcp_wifi": (NetworkKind.WIFI, True),
    "mptcp_cellular": (NetworkKind.CELLULAR, True),
}
_DISCARD_PORT = 9
# A second with a lower rate was an outage (as in the real collections).
AVAILABLE_BPS = 1e5
# The indicators that a data set takes from a place's series, for each network.
RADIO = {
    "wifi": ("rssi_dbm", "link_bps", "chan_util"),
    "cellular": ("rsrp_dbm", "rsrq_db", "sinr_db", "cqi"),
}
# The seconds that an emulated link adds to its base RTT: its programs, and the wait for an
# opportunity.
LINK_S = 0.0015
# Base RTTs of other networks of a kind: the spread of their logarithm around a place's own, and bounds.
_RTT_SPREAD = 0.5
_LEAST_RTT_S, _MOST_RTT_S = 0.004, 0.3
DEFAULT_SIZES: tuple[tuple[int, Direction], ...] = (
    (3_000, Direction.DOWN),
    (30_000, Direction.DOWN),
    (300_000, Direction.DOWN),
    (3_000_000, Direction.DOWN),
    (300_000, Direction.UP),
)
# Replay a little more than the longest transfer, so that its trace does not begin again.
_LENGTH_S = LIMIT_S + 2.0
# How often the end of a transfer is looked for, in simulated seconds.
_LOOK_S = 0.25


@dataclass(frozen=True, slots=True)
class Row:
    """A row of a plan. `None` as a base RTT means the place's own."""

    place: str
    start_s: float
    size_bytes: int
    direction: Direction
    wifi_rtt_s: float | None = None
    cellular_rtt_s: float | None = None

    @property
    def key(self) -> str:
        return f"{self.place}/{self.start_s:.3f}/{self.size_bytes}/{self.direction}"


class MeasuringLaptop(Started):
    """An emulated laptop for many measurements: its links are replaced, the rest stays.

    `cancelled` is asked between transfers: where it says yes, `measure` returns None.
    """

    def __init__(self, directory: Path, cancelled: Callable[[], bool] = lambda: False) -> None:
        self._places = load(directory)
        self._cancelled = cancelled
        self._laptop = Laptop(source_rules=True, nice=-10)
        self._servers = Servers(self._laptop, dns=False)
        self._stack = ExitStack()
        self._endpoints = False

    def _start(self) -> None:
        self._stack.enter_context(self._laptop)
        self._stack.enter_context(self._servers)

    def close(self) -> None:
        self._stack.close()

    def measure(self, row: Row) -> dict[str, Any] | None:
        """Measure all strategies of one row from the same instant; return a row of a transfer data set.

        The pings are those of the first strategy's replay. EmulationError: the testbed failed.
        """
        place = self._places[row.place]
        self._servers.make_size(row.size_bytes)
        entry = begun(row, place)
        for number, (name, (primary, mptcp)) in enumerate(STRATEGIES.items()):
            if self._cancelled():
                return None
            pings, timing = self._once(place, row, primary, mptcp)
            if number == 0:
                entry |= pings
            entry[f"t_{name}_s"] = round(timing.time_s, 5)
            entry[f"censored_{name}"] = timing.censored
        return entry

    def _once(
        self, place: Place, row: Row, primary: NetworkKind, mptcp: bool
    ) -> tuple[dict[str, float], Timing]:
        replay_at_s = replay(
            self._laptop,
            place,
            row.start_s - LEAD_S,
            length_s=LEAD_S + LIMIT_S + 2.0,
            rtts_s={"wifi": row.wifi_rtt_s, "cellular": row.cellular_rtt_s},
        )
        if not self._endpoints:  # the interfaces come with the first replay, and stay
            use_kernel_path_manager(self._laptop)
            self._endpoints = True
        for address in ADDRESSES.values():
            resolve_hardware_address(self._laptop, address)
        _sleep_until(replay_at_s + LEAD_S - PING_S)
        pingers = {
            kind: _Pinger(self._laptop, interface, SERVER) for kind, interface in INTERFACES.items()
        }
        _sleep_until(replay_at_s + LEAD_S)
        for pinger in pingers.values():
            pinger.stop()
        timing = measure(
            self._laptop.client,
            server=SERVER,
            port=HTTP_PORT,
            size_bytes=row.size_bytes,
            direction=row.direction,
            mptcp=mptcp,
            source=ADDRESSES[primary],
            limit_s=LIMIT_S,
        )
        pings: dict[str, float] = {}
        for kind, pinger in pingers.items():
            pings |= {f"{kind}_{name}": value for name, value in pinger.result().items()}
        return pings, timing


def begun(row: Row, place: Place) -> dict[str, Any]:
    """Return the beginning of a data set's row: where and when, how much, and the place's past."""
    return {
        "place": place.name,
        "group": place.group,
        "scenario": place.scenario,
        "start_s": row.start_s,
        "size_bytes": row.size_bytes,
        "direction": str(row.direction),
        **history(place, row.start_s, row.direction),
    }


def history(place: Place, start_s: float, direction: Direction) -> dict[str, float]:
    """Return the place's past at `start_s`: rates in the transfer's direction, and indicators.

    `available` is that of the second before, from the trace itself. Nothing before the trace's
    beginning is made up: shorter windows are used there, and none at its very first instant.
    """
    known: dict[str, float] = {}
    for kind, access in place.networks.items():
        trace = access.down if direction is Direction.DOWN else access.up
        for window_s in (1, 5, 10):
            from_s = max(0.0, start_s - window_s)
            if from_s < start_s:
                known[f"{kind}_past{window_s}_bps"] = round(trace.rate_bps(from_s, start_s), 1)
        if start_s >= 1.0:
            past_bps = access.down.rate_bps(start_s - 1.0, start_s)
            known[f"{kind}_available"] = float(past_bps >= AVAILABLE_BPS)
            radio = access.indicators_at(start_s)
            known |= {f"{kind}_{name}": radio[name] for name in RADIO[kind] if name in radio}
            if "speed_mps" in radio:
                known.setdefault("speed_mps", radio["speed_mps"])
    return known


def _sleep_until(at_s: float) -> None:
    time.sleep(max(0.0, at_s - time.monotonic()))


def resolve_hardware_address(laptop: Laptop, address: str) -> None:
    """Make the new phone's hardware address known, which now and then takes a second try."""
    with laptop.client.entered():
        datagram = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    with datagram:
        datagram.bind((address, 0))
        datagram.sendto(b"", (SERVER, _DISCARD_PORT))


class _Pinger:
    """Five pings over one network, by Debian's ping; what has come back when it is stopped counts."""

    def __init__(self, laptop: Laptop, interface: str, target: str) -> None:
        self._process: subprocess.Popen[str] = laptop.client.popen(
            "ping", "-n", "-c", str(PINGS), "-i", str(PING_INTERVAL_S), "-W", "10", "-I", interface,
            target,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
        )  # fmt: skip

    def stop(self) -> None:
        self._process.send_signal(signal.SIGINT)

    def result(self) -> dict[str, float]:
        """RTT (mean and lowest) and loss; no RTT where nothing came back."""
        out, _ = self._process.communicate(timeout=10)
        rtts_s = [float(ms) / 1e3 for ms in re.findall(r"time=([\d.]+) ms", out)]
        result = {"ping_loss": round(1 - min(len(rtts_s), PINGS) / PINGS, 3)}
        if rtts_s:
            result |= {"rtt_s": round(statistics.fmean(rtts_s), 5), "rtt_min_s": min(rtts_s)}
        return result


def plan(
    places: Mapping[str, Place],
    *,
    starts: int,
    sizes: Sequence[tuple[int, Direction]] = DEFAULT_SIZES,
    seed: int = 1,
    vary_rtts: bool = False,
) -> list[Row]:
    """Return `starts` instants a place, one drawn from each of as many equal parts of its common time.

    `vary_rtts`: every second start has base RTTs of its own, around those of the place.
    """
    rows = []
    for place in places.values():
        draw = random.Random(f"{seed}/{place.name}")
        part_s = place.common_s / starts
        for number in range(starts):
            start_s = round((number + draw.random()) * part_s, 3)
            rtts_s: list[float | None] = [None, None]
            if vary_rtts and number % 2:
                rtts_s = [_another_rtt_s(place.networks[each].rtt_s, draw) for each in NETWORKS]
            rows += [
                Row(place.name, start_s, size, direction, *rtts_s) for size, direction in sizes
            ]
    return rows


def _another_rtt_s(rtt_s: float, draw: random.Random) -> float:
    """Draw a base RTT of a likely network: log-normal around this one, in whole even milliseconds."""
    drawn_s = min(max(rtt_s * math.exp(draw.gauss(0.0, _RTT_SPREAD)), _LEAST_RTT_S), _MOST_RTT_S)
    return 0.002 * round(drawn_s / 0.002)


def plan_like(entries: Iterable[Mapping[str, Any]]) -> list[Row]:
    """Return the same places, starts, sizes, directions and base RTTs as another data set's rows.

    The lowest RTT that any row of a place saw, less what the link itself adds, is taken as its base
    RTT; for a network that never answered, the place's own is used.
    """
    entries = list(entries)
    base: dict[tuple[str, str], float] = {}
    for entry in entries:
        for kind in ("wifi", "cellular"):
            rtt_s = entry.get(f"{kind}_rtt_min_s")
            if rtt_s is not None and not math.isnan(rtt_s):
                key = (str(entry["place"]), kind)
                base[key] = min(max(rtt_s - LINK_S, 0.0), base.get(key, math.inf))
    return [
        Row(
            str(entry["place"]),
            float(entry["start_s"]),
            int(entry["size_bytes"]),
            Direction(str(entry["direction"])),
            base.get((str(entry["place"]), "wifi")),
            base.get((str(entry["place"]), "cellular")),
        )
        for entry in entries
    ]


def collect(
    rows: Sequence[Row],
    directory: Path,
    partial: Path,
    *,
    jobs: int,
    seed: int = 1,
    simulated: bool = False,
    done: Callable[[int, int], None] = lambda finished, total: None,
) -> list[dict[str, Any]]:
    """Measure all rows, or compute them (`simulated`); `side_by_side.run` says how and what it raises."""
    return side_by_side.run(
        rows,
        functools.partial(computing if simulated else MeasuringLaptop, directory),
        partial,
        jobs=jobs,
        seed=seed,
        nice=0 if simulated else -10,
        done=done,
    )


def computing(
    directory: Path, cancelled: Callable[[], bool] = lambda: False
) -> AbstractContextManager["ComputedRows"]:
    """Return a bench of `side_by_side`, which starts nothing and leaves nothing behind."""
    return nullcontext(ComputedRows(directory, cancelled))


class ComputedRows:
    """A stand-in for `emu.data.collect.MeasuringLaptop` that computes instead of waiting.

    `cancelled` is asked between transfers: where it says yes, `measure` returns None.
    """

    def __init__(self, directory: Path, cancelled: Callable[[], bool] = lambda: False) -> None:
        self._places = load(directory)
        self._cancelled = cancelled

    def measure(self, row: Row) -> dict[str, Any] | None:
        """Return a row of a transfer data set, or None if the collection was cancelled."""
        place = self._places[row.place]
        rtts_s = {"wifi": row.wifi_rtt_s, "cellular": row.cellular_rtt_s}
        pings = _pings(_accesses(place, row.start_s - PING_S, rtts_s))
        entry = begun(row, place) | pings
        accesses = _accesses(place, row.start_s, rtts_s)
        for name, (primary, mptcp) in STRATEGIES.items():
            if self._cancelled():
                return None
            ended_s = _transfer(accesses, primary, row, mptcp=mptcp)
            entry[f"t_{name}_s"] = round(LIMIT_S if ended_s is None else ended_s, 5)
            entry[f"censored_{name}"] = ended_s is None
        return entry


def _accesses(
    place: Place, start_s: float, rtts_s: Mapping[str, float | None]
) -> dict[NetworkKind, Access]:
    """Return the place's networks, replayed from `start_s` on, with these base RTTs if given."""
    found = {}
    for name, each in place.networks.items():
        rtt_s = rtts_s[name]
        whole = Access(
            NetworkKind(name),
            up=each.up,
            down=each.down,
            rtt_s=each.rtt_s if rtt_s is None else rtt_s,
        )
        found[whole.kind] = whole.rotated(start_s, _LENGTH_S)
    return found


def _transfer(
    accesses: Mapping[NetworkKind, Access], primary: NetworkKind, row: Row, *, mptcp: bool
) -> float | None:
    """Return the completion time of a transfer that begins with the replay; None: beyond the limit."""
    clock = Clock()
    networks = {kind: Network(clock, each) for kind, each in accesses.items()}
    used = [networks[primary]]
    if mptcp:
        used += [each for kind, each in networks.items() if kind is not primary]
    transfer = Transfer(clock, used, row.size_bytes, down=row.direction is Direction.DOWN)
    while transfer.ended_s is None and clock.now_s < LIMIT_S:
        clock.run(min(clock.now_s + _LOOK_S, LIMIT_S))
    return transfer.ended_s


def _pings(accesses: Mapping[NetworkKind, Access]) -> dict[str, float]:
    """Ping over each network from the replay's beginning; an answer after `PING_S` counts as lost."""
    clock = Clock()
    networks = {kind: Network(clock, each) for kind, each in accesses.items()}
    rtts_s: dict[NetworkKind, list[float]] = {kind: [] for kind in networks}

    def ping(kind: NetworkKind) -> None:
        sent_s = clock.now_s
        reply = Parcel(lambda parcel, packets: rtts_s[kind].append(clock.now_s - sent_s))
        networks[kind].to_server(Parcel(lambda parcel, packets: networks[kind].to_client(reply)))

    for kind in networks:
        for number in range(PINGS):
            clock.at(number * PING_INTERVAL_S, ping, kind)
    clock.run(PING_S)
    known: dict[str, float] = {}
    for kind, found in rtts_s.items():
        known[f"{kind}_ping_loss"] = round(1 - len(found) / PINGS, 3)
        if found:
            known[f"{kind}_rtt_s"] = round(statistics.fmean(found), 5)
            known[f"{kind}_rtt_min_s"] = round(min(found), 5)
    return known

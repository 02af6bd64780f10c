"""The measurement of one row: the context at an instant, then all strategies from it."""

import re
import signal
import socket
import statistics
import subprocess
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cedos.model import Direction, NetworkKind
from emu.places.places import Place, load
from emu.testbed.access import ADDRESSES, INTERFACES
from emu.testbed.phones import SERVER, Laptop, replay, use_kernel_path_manager
from emu.testbed.programs.servers import HTTP_PORT, Servers
from emu.testbed.services import Started
from emu.workloads.transfer import Timing, measure

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

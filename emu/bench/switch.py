"""The speed of moving a living MPTCP transfer: from the command to the first data on the new path.

Two emulated phones with constant rates (24/10 Mbit/s in 20 ms, 12/5 Mbit/s in 60 ms), a greedy
transfer, downloads and uploads apart, moved to and fro by `Steering` as the daemon does it. A flip
counts as in time when the first data packet passes the new interface within 20 ms and 1.5 round
trips of the new path; the gap is the longest pause in what the receiving application gets.
"""

import asyncio
import random
import socket
import statistics
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from ipaddress import ip_address, ip_interface
from pathlib import Path

from cedos.errors import EmulationError
from cedos.host.steer.steering import Steering
from cedos.kernel.interface_socket import bind_to_interface
from cedos.model import Direction, Network, NetworkKind, NextHop, Strategy, StrategyKind
from emu.places.traces import Trace
from emu.statistics import percentile
from emu.testbed.access import ADDRESSES, GATEWAYS, INTERFACES, Access
from emu.testbed.phones import SERVER, Laptop
from emu.testbed.programs.bulk import PORT, Pauses, Sniffer, Transfer, server

_CONNECTIONS = 8
_FLIPS = 6
_SETTLE_S = 1.5
_WATCH_S = 1.2
_ALLOWED_S = 0.020
_ALLOWED_RTTS = 1.5
ACCESSES = (
    Access(NetworkKind.WIFI, Trace.constant(10e6), Trace.constant(24e6), 0.020),
    Access(NetworkKind.CELLULAR, Trace.constant(5e6), Trace.constant(12e6), 0.060),
)


@dataclass(frozen=True, slots=True)
class Flip:
    """A move: seconds to the first data on the new path, what was allowed, the longest pause."""

    direction: Direction
    delay_s: float
    allowed_s: float
    gap_s: float


def networks() -> list[Network]:
    """Return the laptop's networks as the monitor would tell them; to be asked for inside its client."""
    return [
        Network(
            name=interface,
            interface=interface,
            index=socket.if_nametoindex(interface),
            kind=kind,
            metered=kind is NetworkKind.CELLULAR,
            addresses=(ip_interface(f"{ADDRESSES[kind]}/24"),),
            next_hops=(NextHop(4, ip_address(GATEWAYS[kind])),),
        )
        for kind, interface in INTERFACES.items()
    ]


def run(
    progress: Callable[[str], None], connections: int = _CONNECTIONS, flips: int = _FLIPS
) -> dict[str, float]:
    """Measure for about three minutes: `flips` moves of `connections` transfers in each direction.

    Return shares of moves in time, medians, counts and the longest gap. EmulationError: the testbed
    fails, or a connection has no second path.
    """
    with ExitStack() as stack:
        laptop = stack.enter_context(Laptop(*ACCESSES))
        uploads = stack.enter_context(server(laptop))
        state = stack.enter_context(tempfile.TemporaryDirectory(prefix="cedos-bench-"))
        stack.enter_context(laptop.client.entered())
        measured = asyncio.run(
            _measure(networks(), Path(state), uploads, progress, connections, flips)
        )
    return figures(measured)


def figures(measured: list[Flip]) -> dict[str, float]:
    found: dict[str, float] = {}
    for direction in Direction:
        mine = [flip for flip in measured if flip.direction is direction]
        delays = [flip.delay_s for flip in mine]
        within = sum(flip.delay_s <= flip.allowed_s for flip in mine)
        found[f"{direction}_within_share"] = within / len(mine)
        found[f"{direction}_p95_ms"] = 1e3 * percentile(delays, 0.95)
        found[f"{direction}_median_ms"] = 1e3 * statistics.median(delays)
        found[f"{direction}_flips"] = len(mine)
    found["max_gap_ms"] = 1e3 * max(flip.gap_s for flip in measured)
    return found


async def _measure(
    there: list[Network],
    state: Path,
    uploads: Pauses,
    progress: Callable[[str], None],
    connections: int,
    flips: int,
) -> list[Flip]:
    rtts_s = {network.name: await asyncio.to_thread(_rtt_s, network.name) for network in there}
    rates = {INTERFACES[access.kind]: access.down.mean_bps for access in ACCESSES}
    measured: list[Flip] = []
    seeded = random.Random(2)
    async with Steering(state, filter_flows=False) as steering:
        await steering.networks_changed(there)
        steering.paths_measured({n: (rates[n], rtt_s) for n, rtt_s in rtts_s.items()})
        for direction in Direction:
            for number in range(connections):
                start = there[number % 2].name
                steering.set_default(start)
                made = await _one(steering, direction, start, rtts_s, uploads, flips, seeded)
                measured += made
                delays = ", ".join(f"{1e3 * f.delay_s:.0f} ({1e3 * f.gap_s:.0f})" for f in made)
                progress(f"{direction} {number + 1}/{connections}: ms (gap) {delays}")
    return measured


async def _one(
    steering: Steering,
    direction: Direction,
    start: str,
    rtts_s: dict[str, float],
    uploads: Pauses,
    flips: int,
    seeded: random.Random,
) -> list[Flip]:
    known = set(steering.connections)
    sniffer = Sniffer(*rtts_s)
    transfer = await asyncio.to_thread(Transfer, direction)
    pauses = transfer.pauses if direction is Direction.DOWN else uploads
    made = []
    try:
        token = await _spare(steering, known)
        now = start
        for _ in range(flips):
            await asyncio.sleep(_SETTLE_S + seeded.random() / 2)
            now = next(name for name in rtts_s if name != now)
            ports = {path.key.local_port for path in steering.connections[token].subflows}
            sniffer.seen.clear()
            at = time.time()
            steering.steer_connection(token, Strategy(StrategyKind.SINGLE, (now,)))
            await asyncio.sleep(_WATCH_S)
            delay_s = sniffer.first(now, direction, ports, at) - at
            allowed_s = _ALLOWED_S + _ALLOWED_RTTS * rtts_s[now]
            gap_s = pauses.longest_s(at, at + _WATCH_S)
            made.append(Flip(direction, min(delay_s, _WATCH_S), allowed_s, gap_s))
    finally:
        await asyncio.to_thread(transfer.close)
        sniffer.close()
    for _ in range(100):  # it is told to be closed as soon as the reset is out
        if token in steering.connections:
            await asyncio.sleep(0.05)
    return made


async def _spare(steering: Steering, known: set[int]) -> int:
    for _ in range(200):
        for token, connection in steering.connections.items():
            if token not in known and len(connection.subflows) == 2:
                return token
        await asyncio.sleep(0.02)
    raise EmulationError("a connection has got no second path")


def _rtt_s(interface: str) -> float:
    """Return the least of some handshakes over an idle network."""
    least = float("inf")
    for _ in range(8):
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as trying:
            trying.settimeout(5)
            bind_to_interface(trying, interface)
            begun_s = time.monotonic()
            trying.connect((SERVER, PORT))
            least = min(least, time.monotonic() - begun_s)
    return least

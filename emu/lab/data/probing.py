"""Active probes inside the testbed: a `cedos probe-server` at the server, and cedos' own client.

What is measured here is what the daemon would measure: the same code, from the same laptop.
"""

import asyncio
import secrets
import socket
import sys
import time
from collections.abc import Mapping
from ipaddress import ip_address

from cedos.model import Direction, Network, NetworkKind
from cedos.monitor.probing import dns_probe, udp_train
from cedos.monitor.probing.keyfile import read_key, write_new_key
from cedos.monitor.probing.prober import Prober
from cedos.monitor.probing.result import ProbeOutcome, ProbeServer
from emu.testbed.access import INTERFACES
from emu.testbed.phones import SERVER, Laptop
from emu.testbed.programs.service import Service
from emu.testbed.started import Started

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
    """The laptop's networks as the monitor would see them; to be called inside its namespace."""
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


def new_prober(ping_timeout_s: float) -> Prober:
    return Prober(lambda network: _TARGET, ping_timeout_s=ping_timeout_s)


async def lookup_s(network: Network, timeout_s: float) -> float | None:
    """The time of the lookup of a name that nobody has asked for before; None without an answer."""
    outcome = await dns_probe.run(network, f"{secrets.token_hex(6)}.example", timeout_s=timeout_s)
    took_s = outcome.indicators.get("dns_s")
    return None if took_s is None else round(took_s, 6)


async def train_over(
    server: ProbeServer, network: Network, direction: Direction, timeout_s: float
) -> ProbeOutcome:
    """One train over a network; an end of the emulation itself is an error, not a loss."""
    return await udp_train.run(
        server, interface=network.interface, direction=direction, timeout_s=timeout_s
    )


def columns(outcome: ProbeOutcome) -> dict[str, float]:
    """A train's indicators, rounded, and whether it had a result at all (`udp_answered`)."""
    found: dict[str, float] = {"udp_answered": float(not outcome.problem)}
    for name, value in outcome.indicators.items():
        found[name] = round(value, {"udp_loss": 4}.get(name, 6 if name in SECONDS else 0))
    return found


def prefixed(kind: NetworkKind, known: Mapping[str, float]) -> dict[str, float]:
    return {f"{kind}_{name}": value for name, value in known.items()}


async def sleep_until(at_s: float) -> None:
    await asyncio.sleep(max(0.0, at_s - time.monotonic()))


async def watch_host(zero_s: float, lateness: dict[int, float]) -> None:
    """Notes until it is cancelled how late the host is: what it is late with is not the network's.

    `lateness`: second from the monotonic `zero_s` -> by how much a short sleep ended too late in
    it, at most (s).
    """
    while True:
        due_s = time.monotonic() + _TICK_S
        await asyncio.sleep(_TICK_S)
        now_s = time.monotonic()
        for second in range(int(due_s - zero_s), int(now_s - zero_s) + 1):
            lateness[second] = max(lateness.get(second, 0.0), now_s - due_s)

"""The cost of a program that reads slowly, a player or a limited rate: metered data and lateness.

Downloads over MPTCP from nginx, with the daemon as it is shipped, over two networks of 12 Mbit/s:
read at once, for which both are worth their price, and by a program whose buffer holds a quarter of
a megabyte at paces that Wi-Fi alone can serve, and at one that it cannot. And the same of plain TCP
through the gateway, whose streams hold two megabytes: for longer.
"""

import json
import socket
import subprocess
import sys
from collections.abc import Callable
from contextlib import ExitStack
from statistics import mean

from cedos.errors import EmulationError
from cedos.model import NetworkKind
from emu.places.traces import Trace
from emu.testbed.access import INTERFACES, Access
from emu.testbed.phones import SERVER, Laptop
from emu.testbed.programs.gateway import Gatewayed
from emu.testbed.programs.rescue_laptop import RescueDaemon
from emu.testbed.programs.servers import Servers
from emu.workloads.unmodified.downloads import as_user

NAME = "readers"

_ACCESSES = (
    Access(NetworkKind.WIFI, Trace.constant(12e6), Trace.constant(12e6), 0.020),
    Access(NetworkKind.CELLULAR, Trace.constant(12e6), Trace.constant(12e6), 0.060),
)
_PACES_BPS = (1e12, 2e6, 4e6, 8e6, 16e6)
_BYTES = 48_000_000
_READS_S, _THROUGH_GATEWAY_S = 10.0, 24.0
_TRIALS = 4
_USER = 65_534
_READER = """
import json, socket, sys, time
address, pace_bps, size, limit_s, protocol = sys.argv[1], *map(float, sys.argv[2:])
with socket.socket(socket.AF_INET, socket.SOCK_STREAM, int(protocol)) as connection:
    connection.settimeout(20)
    if pace_bps < 1e9:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 256_000)
    connection.connect((address, 80))
    connection.sendall(f"GET /bytes/{int(size)} HTTP/1.1\\r\\nHost: x\\r\\n\\r\\n".encode())
    first = connection.recv(16384)
    began, got, late = time.monotonic(), len(first), 0.0
    while got < size and (passed := time.monotonic() - began) < limit_s:
        data = connection.recv(16384)
        if not data:
            break
        got += len(data)
        ahead = began + 8 * got / pace_bps - time.monotonic()
        late = max(late, -ahead)
        time.sleep(max(0.0, ahead))
print(json.dumps({"got": got, "late_s": late}))
"""


def run(progress: Callable[[str], None]) -> dict[str, float]:
    """Measure for a quarter of an hour.

    Returns:
        By pace in Mbit/s (`at_once`: as fast as it comes) `lte_mb_PACE`, what cellular carried of one
        download, `most_lte_mb_PACE`, and `late_s_PACE`, by how much the program was behind its pace;
        `gateway_` is before those of plain TCP through the gateway.

    Raises:
        EmulationError: the daemon, the server or a download failed.
    """
    found = {}
    with Laptop(*_ACCESSES, source_rules=False) as laptop, Servers(laptop) as servers:
        servers.make_size(_BYTES)
        for prefix in ("", "gateway_"):
            with ExitStack() as ends:
                daemon = RescueDaemon(laptop, bpf=True, rescue=True)
                daemon.start()
                ends.callback(daemon.stop)
                if prefix:
                    resolver = laptop.directory / "gateway-resolv.conf"
                    resolver.write_text(f"nameserver {SERVER}\n")
                    variables = {"CEDOS_RUNTIME_DIR": daemon.environment["CEDOS_RUNTIME_DIR"]}
                    options = ("--redirect", str(_USER), "--detour", "always")
                    ends.enter_context(
                        Gatewayed(laptop, laptop.directory, variables, options, resolver=resolver)
                    )
                daemon.until_both_live()
                for pace_bps in _PACES_BPS:
                    name = f"{pace_bps / 1e6:.1f}" if pace_bps < 1e9 else "at_once"
                    read = [_download(laptop, pace_bps, bool(prefix)) for _ in range(_TRIALS)]
                    carried_mb = [carried / 1e6 for carried, _ in read]
                    found[f"{prefix}lte_mb_{name}"] = mean(carried_mb)
                    found[f"{prefix}most_lte_mb_{name}"] = max(carried_mb)
                    if pace_bps < 1e9:
                        found[f"{prefix}late_s_{name}"] = max(late_s for _, late_s in read)
                    each = ", ".join(f"{carried:.2f}" for carried in carried_mb)
                    progress(f"{prefix}{name}: {each} MB over LTE")
    return found


def _download(laptop: Laptop, pace_bps: float, through_gateway: bool) -> tuple[int, float]:
    """Return what cellular carried, and by how much the program was late at most."""
    lte = INTERFACES[NetworkKind.CELLULAR]
    before = laptop.received_bytes(lte)
    protocol, limit_s = socket.IPPROTO_MPTCP, _READS_S
    if through_gateway:
        protocol, limit_s = socket.IPPROTO_TCP, _THROUGH_GATEWAY_S
    words = (SERVER, str(pace_bps), str(_BYTES), str(limit_s), str(int(protocol)))
    user = as_user(_USER if through_gateway else 0)
    done = subprocess.run(
        laptop.client.command(*user, sys.executable, "-c", _READER, *words),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    if done.returncode:
        raise EmulationError(f"a download failed: {done.stderr}")
    return laptop.received_bytes(lte) - before, float(json.loads(done.stdout)["late_s"])

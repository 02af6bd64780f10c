"""What a program that reads slowly, a player or a limited rate, costs in metered data and is late.

Downloads over MPTCP from nginx, with the daemon as it is shipped, over two networks of 12 Mbit/s:
read at once, for which both are worth their price, and at paces that Wi-Fi alone can serve, by a
program whose buffer holds a quarter of a megabyte.
"""

import json
import subprocess
import sys
from collections.abc import Callable
from statistics import mean

from cedos.errors import EmulationError
from cedos.model import NetworkKind
from emu.places.traces import Trace
from emu.testbed.access import INTERFACES, Access
from emu.testbed.phones import SERVER, Laptop
from emu.testbed.programs.rescue_laptop import RescueDaemon
from emu.testbed.programs.servers import Servers

NAME = "readers"

_ACCESSES = (
    Access(NetworkKind.WIFI, Trace.constant(12e6), Trace.constant(12e6), 0.020),
    Access(NetworkKind.CELLULAR, Trace.constant(12e6), Trace.constant(12e6), 0.060),
)
_PACES_BPS = (1e12, 2e6, 4e6, 8e6)
_BYTES = 24_000_000
_READS_S = 10.0
_TRIALS = 4
_READER = """
import json, socket, sys, time
address, pace_bps, size, limit_s = sys.argv[1], *map(float, sys.argv[2:])
with socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_MPTCP) as connection:
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
    """Measures; takes three minutes.

    Returns:
        By pace in Mbit/s (`at_once`: as fast as it comes) `lte_mb_PACE`, what cellular carried of one
        download, `most_lte_mb_PACE`, and `late_s_PACE`, by how much the program was behind its pace.

    Raises:
        EmulationError: the daemon, the server or a download failed.
    """
    found = {}
    with Laptop(*_ACCESSES, source_rules=False) as laptop, Servers(laptop) as servers:
        servers.make_size(_BYTES)
        daemon = RescueDaemon(laptop, bpf=True, rescue=True)
        daemon.start()
        try:
            daemon.until_both_live()
            for pace_bps in _PACES_BPS:
                name = f"{pace_bps / 1e6:.1f}" if pace_bps < 1e9 else "at_once"
                read = [_download(laptop, pace_bps) for _ in range(_TRIALS)]
                carried_mb = [carried / 1e6 for carried, _ in read]
                found[f"lte_mb_{name}"] = mean(carried_mb)
                found[f"most_lte_mb_{name}"] = max(carried_mb)
                if pace_bps < 1e9:
                    found[f"late_s_{name}"] = max(late_s for _, late_s in read)
                progress(f"{name}: {', '.join(f'{each:.2f}' for each in carried_mb)} MB over LTE")
        finally:
            daemon.stop()
    return found


def _download(laptop: Laptop, pace_bps: float) -> tuple[int, float]:
    """What cellular carried, and by how much the program was late at most."""
    before = _received_bytes(laptop)
    words = (SERVER, str(pace_bps), str(_BYTES), str(_READS_S))
    done = subprocess.run(
        laptop.client.command(sys.executable, "-c", _READER, *words),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    if done.returncode:
        raise EmulationError(f"a download failed: {done.stderr}")
    return _received_bytes(laptop) - before, float(json.loads(done.stdout)["late_s"])


def _received_bytes(laptop: Laptop) -> int:
    interface = INTERFACES[NetworkKind.CELLULAR]
    (link,) = json.loads(laptop.client.ip("-s", "-j", "link", "show", interface))
    return int(link["stats64"]["rx"]["bytes"])

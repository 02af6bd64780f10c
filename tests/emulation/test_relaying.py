"""Unmodified programs speak MPTCP to the relay; the server speaks only TCP."""

import json
import subprocess
import time
from pathlib import Path

from cedos.model import NetworkKind
from emu.places.traces import Trace
from emu.testbed.access import LTE, Access
from emu.testbed.phones import SERVER, Laptop, use_kernel_path_manager
from emu.testbed.programs.relay import Relaying
from emu.testbed.programs.servers import Servers

ACCESSES = (
    Access(NetworkKind.WIFI, Trace.constant(12e6), Trace.constant(12e6), 0.010),
    Access(NetworkKind.CELLULAR, Trace.constant(12e6), Trace.constant(12e6), 0.030),
)
SIZE = 6_000_000


def counters(laptop: Laptop) -> dict[str, int]:
    found = {}
    for line in laptop.client.run("cat", "/proc/self/net/dev").stdout.splitlines()[2:]:
        name, _, rest = line.partition(":")
        found[name.strip()] = int(rest.split()[0])
    return found


def test_a_download_moves_to_the_other_network_though_its_server_speaks_tcp(registry: Path) -> None:
    with (
        Laptop(*ACCESSES, core=True, source_rules=True) as laptop,
        Servers(laptop, mptcp=False, access_log=True) as servers,
        Relaying(laptop) as relay,
    ):
        use_kernel_path_manager(laptop)
        servers.make_size(SIZE)
        variables = [f"{key}={value}" for key, value in relay.environment.items()]
        before = counters(laptop)
        with laptop.client.popen(
            *("mptcpize", "run", "env", *variables),
            *("curl", "--silent", "--show-error", "--max-time", "30", "--output", "/dev/null"),
            *("--write-out", "%{json}", f"http://{SERVER}/bytes/{SIZE}"),
            stdout=subprocess.PIPE,
            text=True,
        ) as curl:
            time.sleep(1.2)
            laptop.detach(NetworkKind.WIFI)
            at_move = counters(laptop)
            facts = json.loads(curl.communicate(timeout=40)[0])
        moved = counters(laptop)[LTE] - at_move[LTE]
        assert (facts["http_code"], facts["size_download"]) == (200, SIZE), facts
        assert moved > 0.3 * SIZE
        assert sum(at_move.values()) - sum(before.values()) > 0.1 * SIZE
        (request,) = servers.access_log.read_text().splitlines()
    # The server saw the relay.
    assert json.loads(request)["client"] == "198.51.103.6"

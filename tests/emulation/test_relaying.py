"""Unmodified programs get MPTCP as far as the relay, told of it or not; the server speaks TCP only."""

import json
import subprocess
import time
from pathlib import Path

import pytest

from cedos.model import NetworkKind
from emu.places.traces import Trace
from emu.testbed.access import LTE, Access
from emu.testbed.kernel_mptcp import use_kernel_path_manager
from emu.testbed.phones import SERVER, Laptop
from emu.testbed.programs.relay import Mode, Relaying
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


@pytest.mark.parametrize("mode", ["proxy", "transparent"])
def test_a_download_moves_to_the_other_network_though_its_server_speaks_tcp(
    registry: Path, mode: Mode
) -> None:
    with (
        Laptop(*ACCESSES, core=True, source_rules=True) as laptop,
        Servers(laptop, mptcp=False, access_log=True) as servers,
        Relaying(laptop, mode) as relay,
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
        relay.close()
        lines = [json.loads(line) for line in relay.log_text.splitlines()]
        (request,) = servers.access_log.read_text().splitlines()
    (relayed,) = [line for line in lines if line["event"] == "relayed"]
    assert relayed["subflows"] is not None
    assert relayed["down_bytes"] > SIZE
    # The server saw the relay, over plain TCP.
    assert json.loads(request)["client"] == "198.51.103.6"

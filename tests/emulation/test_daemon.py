"""The daemon on an emulated laptop, with faults thrown in: an unmodified client must not notice."""

import json
import subprocess
import sys

import pytest
from kit.laptop import Installed
from kit.waiting import wait_until

from cedos.model import NetworkKind
from emu.places.traces import Trace
from emu.replay import controller_of, open_log, replay
from emu.testbed.access import Access
from emu.testbed.phones import SERVER, Laptop
from emu.testbed.programs.servers import Servers

BYTES = 6_000_000  # five seconds over either network


CONFIG = (
    f'[probes]\ntarget = "{SERVER}"\ninterval_s = 0.5\nidle_interval_s = 0.5\n'
    "dns = false\n"
    "[providers]\nhost = false\n[decision]\nredundant = true\n"
)


class Host(Installed):
    """The laptop with cedos on it."""

    def __init__(self, laptop, folder):
        super().__init__(laptop.client, folder, base=CONFIG)
        self.laptop = laptop

    def default(self):
        return self.client.status().default.network

    def download(self, *, mptcp, size=BYTES):
        command = ["curl", "-sS", "-o", "/dev/null", "-w", "%{http_code} %{size_download}"]
        return self.laptop.client.popen(
            *(["mptcpize", "run"] if mptcp else []), *command,
            *("--max-time", "60", f"http://{SERVER}/bytes/{size}"), stdout=subprocess.PIPE, text=True,
        )  # fmt: skip

    def has_two_subflows(self):
        return any(len(each.subflows) == 2 for each in self.client.status().flows)

    def routing(self):
        client = self.laptop.client
        tables = [client.ip("rule"), client.ip("route", "show", "table", "all")]
        held = ("net.mptcp.pm_type", "net.ipv4.tcp_rmem")
        return [*tables, *(client.sysctl(key) for key in held)]


def whole(download, size=BYTES):
    output, _ = download.communicate(timeout=90)
    assert output.split() == ["200", str(size)]


@pytest.fixture
def host(tmp_path, registry):
    trace = Trace.constant(10e6)
    with Laptop(
        Access(NetworkKind.WIFI, trace, trace, 0.020),
        Access(NetworkKind.CELLULAR, trace, trace, 0.060),
    ) as laptop, Servers(laptop):  # fmt: skip
        yield Host(laptop, tmp_path)


def test_a_network_that_vanishes_takes_no_mptcp_download_with_it(host, tmp_path):
    """Record all of it, too: the controller decides the same in a replay."""
    before = host.routing()
    log = tmp_path / "walk.log"
    with host.up("--record", str(log)) as daemon:
        wait_until(host.default, 30)
        asked = json.loads(host.run("choose", "--size", "4kB", "--redundant", "--json").stdout)
        assert {e["strategy"]["kind"] for e in asked["evaluations"]} == {"single", "redundant"}
        assert host.client.explain(str(asked["number"])).reason == asked["reason"]
        download = host.download(mptcp=True)
        wait_until(host.has_two_subflows)
        network = host.default()
        kind = NetworkKind.WIFI if network == "wlan0" else NetworkKind.CELLULAR
        host.laptop.detach(kind)
        wait_until(lambda: host.default() not in (network, None))
        whole(download)
        whole(host.download(mptcp=False, size=30_000), 30_000)  # what starts now goes elsewhere
        explained = host.run("explain", SERVER)
        assert explained.returncode == 0, explained.stderr
        host.ends(daemon)
    # The vanished network's own routes are gone with its carrier; what was ours is gone too.
    assert "lookup 52" not in host.laptop.client.ip("rule")
    assert len(host.routing()[0].splitlines()) == len(before[0].splitlines())
    header, events = open_log(log)
    found = replay(controller_of(header, None), events)
    assert not found.different
    assert found.commands["MoveConnection"] >= 1
    assert found.about(SERVER)


READER = f"""
import socket, time
with socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_MPTCP) as connection:
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 200_000)
    connection.connect(("{SERVER}", 80))
    connection.sendall(b"GET /bytes/{BYTES} HTTP/1.1\\r\\nHost: {SERVER}\\r\\n\\r\\n")
    began, got = time.monotonic(), 0
    while got < {BYTES}:
        got += len(connection.recv(16384))
        time.sleep(max(0.0, began + got / 5e5 - time.monotonic()))
"""


def test_a_program_that_reads_slowly_gets_little_metered_data(host):
    """Both networks are expected to bring it sooner, but it reads 4 Mbit/s, which Wi-Fi alone brings."""
    with host.up() as daemon:
        wait_until(lambda: host.default() == "wlan0")
        reader = host.laptop.client.popen(sys.executable, "-c", READER)
        wait_until(lambda: any(each.bytes_down > 2_500_000 for each in host.client.status().flows))
        before = host.laptop.received_bytes("lte0")
        assert reader.wait(30) == 0
        assert host.laptop.received_bytes("lte0") - before < 50_000, "nothing but pings"
        host.ends(daemon)

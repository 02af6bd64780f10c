"""The daemon on an emulated laptop, with faults thrown in: an unmodified client must not notice."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from cedos.api.client import ControlClient
from cedos.model import NetworkKind
from emu.places.traces import Trace
from emu.replay import controller_of, open_log, replay
from emu.testbed.access import Access
from emu.testbed.phones import SERVER, Laptop
from emu.testbed.programs.servers import Servers

BYTES = 6_000_000  # five seconds over either network


class Host:
    """The laptop with cedos on it."""

    def __init__(self, laptop: Laptop, folder: Path) -> None:
        self.laptop = laptop
        self.environment = os.environ | {
            "CEDOS_STATE_DIR": str(folder / "state"),
            "CEDOS_RUNTIME_DIR": str(folder / "run"),
        }
        self.config = folder / "cedos.toml"
        self.config.write_text(
            f'[probes]\ntarget = "{SERVER}"\ninterval_s = 0.5\nidle_interval_s = 0.5\n'
            "asleep_interval_s = 0.5\ndns = false\n"
            "[providers]\nhost = false\n[decision]\nredundant = true\n"
        )

    def up(self, *options: str) -> "subprocess.Popen[bytes]":
        process: subprocess.Popen[bytes] = self.laptop.client.popen(
            *(sys.executable, "-m", "cedos", "up", "--config", str(self.config), *options),
            env=self.environment,
            stderr=subprocess.PIPE,
        )
        self.until(lambda: self.status()["default"]["network"] is not None)
        return process

    def cedos(self, *arguments: str) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            self.laptop.client.command(sys.executable, "-m", "cedos", *arguments),
            env=self.environment, capture_output=True, text=True, timeout=30, check=False,
        )  # fmt: skip

    def status(self) -> dict:
        done = self.cedos("status", "--json")
        return json.loads(done.stdout) if done.returncode == 0 else {"default": {"network": None}}

    def until(self, condition: object, limit_s: float = 20.0) -> None:
        deadline_s = time.monotonic() + limit_s
        while not condition():
            assert time.monotonic() < deadline_s
            time.sleep(0.1)

    def download(self, *options: str, mptcp: bool, size: int = BYTES) -> "subprocess.Popen[str]":
        command = ["curl", "-sS", "-o", "/dev/null", "-w", "%{http_code} %{size_download}"]
        command += ["--max-time", "60", *options, f"http://{SERVER}/bytes/{size}"]
        process: subprocess.Popen[str] = self.laptop.client.popen(
            *(["mptcpize", "run"] if mptcp else []), *command, stdout=subprocess.PIPE, text=True
        )
        return process

    def routing(self) -> list[str]:
        client = self.laptop.client
        tables = [client.ip("rule"), client.ip("route", "show", "table", "all")]
        return [
            *tables,
            *(client.sysctl(key) for key in ("net.mptcp.pm_type", "net.ipv4.tcp_rmem")),
        ]


def whole(download: "subprocess.Popen[str]", size: int = BYTES) -> None:
    output, _ = download.communicate(timeout=90)
    assert output.split() == ["200", str(size)]


@pytest.fixture
def host(tmp_path: Path, registry: Path) -> Iterator[Host]:
    trace = Trace.constant(10e6)
    with Laptop(
        Access(NetworkKind.WIFI, trace, trace, 0.020),
        Access(NetworkKind.CELLULAR, trace, trace, 0.060),
    ) as laptop, Servers(laptop):  # fmt: skip
        yield Host(laptop, tmp_path)


def end(daemon: "subprocess.Popen[bytes]") -> str:
    daemon.send_signal(signal.SIGTERM)
    _, output = daemon.communicate(timeout=20)
    assert daemon.returncode == 0, output.decode()
    return output.decode()


def test_a_network_that_vanishes_takes_no_mptcp_download_with_it(
    host: Host, tmp_path: Path
) -> None:
    """Record all of it, too: the controller decides the same in a replay."""
    before = host.routing()
    log = tmp_path / "walk.log"
    daemon = host.up("--record", str(log))
    try:
        asked = json.loads(host.cedos("choose", "--size", "4kB", "--redundant", "--json").stdout)
        assert {e["strategy"]["kind"] for e in asked["evaluations"]} == {"single", "redundant"}
        explained = json.loads(host.cedos("explain", str(asked["number"]), "--json").stdout)
        assert explained["reason"] == asked["reason"]
        download = host.download(mptcp=True)
        host.until(lambda: any(len(f["subflows"]) == 2 for f in host.status()["flows"]))
        network = host.status()["default"]["network"]
        kind = NetworkKind.WIFI if network == "wlan0" else NetworkKind.CELLULAR
        host.laptop.detach(kind)
        host.until(lambda: host.status()["default"]["network"] not in (network, None))
        whole(download)
        whole(host.download(mptcp=False, size=30_000), 30_000)  # what starts now goes elsewhere
        explained = host.cedos("explain", SERVER)
        assert explained.returncode == 0, explained.stderr
    finally:
        output = end(daemon)
    assert "Traceback" not in output
    # The vanished network's own routes are gone with its carrier; what was ours is gone too.
    assert "lookup 52" not in host.laptop.client.ip("rule")
    assert len(host.routing()[0].splitlines()) == len(before[0].splitlines())
    header, events = open_log(log)
    found = replay(controller_of(header, None), events)
    assert not found.different
    assert found.commands["MoveConnection"] >= 1
    assert found.about(SERVER) or found.decisions


def test_a_daemon_killed_in_mid_flow_loses_no_connection_and_can_be_undone(host: Host) -> None:
    before = host.routing()
    daemon = host.up()
    downloads = [host.download(mptcp=True), host.download(mptcp=False)]
    host.until(lambda: any(len(f["subflows"]) == 2 for f in host.status()["flows"]))
    daemon.kill()
    daemon.communicate()
    assert host.routing() != before
    restored = host.cedos("restore")
    assert restored.returncode == 0, restored.stderr
    assert host.routing() == before
    for download in downloads:
        whole(download)


def test_without_predictors_it_decides_by_rule_of_thumb_and_says_so(
    host: Host, tmp_path: Path
) -> None:
    broken = tmp_path / "broken.json"
    broken.write_text('{"format": "something else"}')
    with host.config.open("a") as config:
        config.write(f'[predictors]\nmodel = "{broken}"\n')
    daemon = host.up()
    try:
        problems = " ".join(host.status()["problems"])
        assert "broken.json" in problems
        assert "rule of thumb" in problems
        whole(host.download(mptcp=True, size=100_000), 100_000)
    finally:
        end(daemon)


def test_a_program_under_exec_goes_where_its_size_says(host: Host) -> None:
    client = host.laptop.client
    daemon = host.up()
    try:
        marks = client.ip("rule").count("fwmark")
        running: subprocess.Popen[str] = client.popen(
            *(sys.executable, "-m", "cedos", "exec", "--size", "5MB", "--label", "background"),
            *("--", "curl", "-sS", "-o", "/dev/null", "-w", "%{size_download} %{local_ip}"),
            *("--max-time", "60", f"http://{SERVER}/bytes/{BYTES}"),
            env=host.environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        output, errors = running.communicate(timeout=90)
        assert (running.returncode, errors) == (0, "")
        size, address = output.split()
        assert int(size) == BYTES
        control = ControlClient(Path(host.environment["CEDOS_RUNTIME_DIR"]) / "control.sock")
        decided = [control.explain(str(n)) for n in range(1, control.status().decisions + 1)]
        by_size = [each for each in decided if each.transfer.size.source == "hint"]
        assert by_size
        assert client.ip("rule").count("fwmark") == marks  # the program's rule went with it
    finally:
        end(daemon)
    (network,) = by_size[0].choice.networks
    assert f" {address}/" in client.ip("-4", "address", "show", "dev", network)


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


def test_a_program_that_reads_slowly_gets_little_metered_data(host: Host) -> None:
    """Both networks are expected to bring it sooner, but it reads 4 Mbit/s, which Wi-Fi alone brings."""
    daemon = host.up()
    try:
        host.until(lambda: host.status()["default"]["network"] == "wlan0")
        reader = host.laptop.client.popen(sys.executable, "-c", READER)
        host.until(lambda: any(f["bytes_down"] > 2_500_000 for f in host.status()["flows"]))
        before = host.laptop.received_bytes("lte0")
        assert reader.wait(30) == 0
        assert host.laptop.received_bytes("lte0") - before < 50_000, "nothing but pings"
    finally:
        output = end(daemon)
    assert "Traceback" not in output

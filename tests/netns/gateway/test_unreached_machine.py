"""One gateway on two machines, of which the laptop does not reach the one that has its session."""

import hashlib
import os
import signal
import socket
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path

import pytest

from cedos.session.protocol.handshake.messages import HEADER_BYTES, MAGIC, MessageKind
from emu.testbed.netns import Namespace
from tests.netns.gateway.conftest import ORIGIN
from tests.netns.gateway.test_two_machines import (
    NODES,
    SIZE,
    TwoMachines,
    read_some,
    two_machines,
    until,
)

_ALL = 3  # ETH_P_ALL


@pytest.fixture
def machines(make_namespace: Callable[[str], Namespace], tmp_path: Path) -> Iterator[TwoMachines]:
    with two_machines(make_namespace, tmp_path) as made:
        yield made


def rest_of(curl: object, got: bytearray) -> float:
    """Reads a download to its end; the longest silence of it, in seconds."""
    arrivals = [time.monotonic()]
    while chunk := curl.stdout.read1(1 << 16):  # type: ignore[attr-defined]
        got += chunk
        arrivals.append(time.monotonic())
    assert curl.wait(30) == 0, curl.stderr.read()  # type: ignore[attr-defined]
    return max((later - earlier for earlier, later in pairwise(arrivals)), default=0.0)


def test_a_tunnel_goes_on_through_the_other_machine(machines: TwoMachines) -> None:
    machines.world.shape("8mbit")
    machines.forward()
    curl = machines.curl(f"https://{ORIGIN}/file")
    got = read_some(curl, SIZE // 6)
    machines.cut(0, "wlan0", "lte0")
    stall_s = rest_of(curl, got)
    print(f"the tunnel stood still for {1e3 * stall_s:.0f} ms")
    assert hashlib.sha256(got).digest() == hashlib.sha256(machines.data).digest()
    assert stall_s < 5.0
    assert "client came" not in machines.log(1)
    assert "session over" not in (machines.folder / "forward.log").read_text()
    assert machines.small_file_s() < 1.0
    # The machine that has the session dies after all: what it had breaks, and all goes on at the other.
    curl = machines.curl(f"https://{ORIGIN}/large", "-o", "/dev/null")
    time.sleep(1.0)
    assert curl.poll() is None
    machines.kill(0)
    assert curl.wait(10) != 0
    assert machines.small_file_s() < 3.0
    assert "client came" in machines.log(1)


@pytest.mark.parametrize(
    ("places", "processes"),
    [
        (NODES, (3, 2)),
        (("[fd00::1]", "[fd00::2]:7300"), (1, 1)),
        (("[fd00::1]", "[fd00::2]"), (2, 3)),
    ],
    ids=["processes", "ipv6", "both"],
)
def test_nodes_of_many_processes_and_by_ipv6(
    make_namespace: Callable[[str], Namespace],
    tmp_path: Path,
    places: tuple[str, str],
    processes: tuple[int, int],
) -> None:
    """A tunnel goes on through the other node, and the idle session of a dead one at the other."""
    with two_machines(make_namespace, tmp_path, places, processes) as machines:
        machines.world.shape("8mbit")
        machines.forward()
        curl = machines.curl(f"https://{ORIGIN}/file")
        got = read_some(curl, SIZE // 6)
        machines.cut(0, "wlan0", "lte0")
        stall_s = rest_of(curl, got)
        print(f"the tunnel stood still for {1e3 * stall_s:.0f} ms")
        assert got == machines.data
        assert stall_s < 6.0
        assert "client came" not in machines.log(1)
        assert machines.small_file_s() < 2.0
        time.sleep(1.0)
        machines.kill(0)
        assert machines.small_file_s() < 4.0
        assert "a client of another node goes on here" in machines.log(1)
        for number in range(2):
            assert "Traceback" not in machines.log(number)
            assert "Redis does not answer" not in machines.log(number)


def test_a_network_that_does_not_lead_to_its_machine_leads_to_the_other(
    machines: TwoMachines,
) -> None:
    """As where a firewall of one network knows only one of the addresses."""
    machines.cut(0, "lte0")
    machines.world.shape("8mbit")
    machines.forward()
    curl = machines.curl(f"https://{ORIGIN}/file")
    got = read_some(curl, SIZE // 6)

    def carried() -> bool:
        out = machines.near.run("ss", "-Htn", "state", "established", "dst", NODES[1]).stdout
        return "10.9.2.2" in out  # its address on lte0

    until(carried, 10.0)
    machines.cut(0, "wlan0")
    stall_s = rest_of(curl, got)
    print(f"the tunnel stood still for {1e3 * stall_s:.0f} ms")
    assert hashlib.sha256(got).digest() == hashlib.sha256(machines.data).digest()
    assert stall_s < 5.0
    assert "client came" not in machines.log(1)


def test_its_machine_may_begin_anew_meanwhile(machines: TwoMachines) -> None:
    """As by an upgrade: what goes through the other machine waits for it."""
    machines.world.shape("8mbit")
    machines.forward()
    curl = machines.curl(f"https://{ORIGIN}/file")
    got = read_some(curl, SIZE // 8)
    machines.cut(0, "wlan0", "lte0")
    got += read_some(curl, SIZE // 4)
    machines.nodes[0].send_signal(signal.SIGHUP)
    stall_s = rest_of(curl, got)
    print(f"the tunnel stood still for {1e3 * stall_s:.0f} ms")
    assert got == machines.data
    assert stall_s < 6.0
    assert machines.log(0).count("ready") == 2
    assert "client came" not in machines.log(1)


@pytest.mark.parametrize("busy", [True, False], ids=["busy", "quiet"])
def test_a_machine_that_dies_behind_the_other_is_noticed(machines: TwoMachines, busy: bool) -> None:
    """The laptop hears the kernel of the one that carries: nobody else can tell that there is no more."""
    machines.world.shape("8mbit")
    machines.cut(0, "lte0")
    machines.forward()
    curl = machines.curl(f"https://{ORIGIN}/large", "-o", "/dev/null", "--limit-rate", "100k")

    def carried() -> set[str]:
        out = machines.near.run("ss", "-Htn", "state", "established", "dst", NODES[1]).stdout
        return {line.split()[2] for line in out.splitlines()}

    until(lambda: len(carried()) > 0, 10.0)
    if not busy:
        curl.send_signal(signal.SIGSTOP)
        time.sleep(4.0)
    before = carried()
    assert before
    for direction in ("--dport", "--sport"):
        machines.far.run("iptables", "-I", "INPUT", "-p", "tcp", direction, "7011", "-j", "DROP")
    died_s = time.monotonic()
    until(lambda: not before & carried(), 5.0)
    print(f"noticed after {1e3 * (time.monotonic() - died_s):.0f} ms")
    curl.kill()
    curl.wait()


def test_an_upload_and_a_quiet_tunnel_go_on(machines: TwoMachines) -> None:
    """Both directions, and one in which nothing moved when it was cut."""
    with machines.far.entered(), socket.create_server((ORIGIN, 7)) as echo:
        machines.forward("-L", f"7007:{ORIGIN}:7")
        with machines.near.entered():
            quiet = socket.create_connection(("127.0.0.1", 7007))
        there, _ = echo.accept()
        quiet.settimeout(20)
        there.settimeout(20)
        time.sleep(1.0)
        machines.cut(0, "wlan0", "lte0")
        data = os.urandom(500_000)
        for one, other in ((quiet, there), (there, quiet)):
            one.sendall(data)
            got = b""
            while len(got) < len(data):
                chunk = other.recv(1 << 16)
                assert chunk
                got += chunk
            assert got == data
        quiet.close()
        there.close()


def test_a_stranger_with_an_old_hello_gains_nothing(machines: TwoMachines) -> None:
    """Whoever has seen the laptop's packets says its words again, at the machine that it is not at."""
    machines.world.shape("8mbit")
    with machines.near.entered():
        wire = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(_ALL))
    wire.settimeout(0.2)
    machines.forward()
    curl = machines.curl(f"https://{ORIGIN}/file")
    got = read_some(curl, SIZE // 6)
    hello = _resumption(wire)
    wire.close()
    with machines.near.entered():
        opened = [socket.create_connection((NODES[1], 7009)) for _ in range(100)]
    for each in opened:
        each.settimeout(20)
        each.sendall(hello)
    answers = [_answer(each) for each in opened]
    assert set(answers) <= {b"", b"\x05"}, "stale, or closed without a word"
    assert b"\x05" in answers
    rest_of(curl, got)
    assert got == machines.data
    for each in opened:
        each.close()


def _resumption(wire: socket.socket) -> bytes:
    """What the laptop said to join its second network, as anybody there may have seen it."""
    deadline_s = time.monotonic() + 10
    while time.monotonic() < deadline_s:
        packet = wire.recv(1 << 16)
        at = packet.find(bytes([MessageKind.RESUME]) + MAGIC) - HEADER_BYTES + 1
        if at > 0:
            return packet[at : at + HEADER_BYTES + int.from_bytes(packet[at : at + 3], "big")]
    raise AssertionError("it has not joined its second network")


def _answer(one: socket.socket) -> bytes:
    try:
        return one.recv(4)[3:4]
    except ConnectionResetError:
        return b""

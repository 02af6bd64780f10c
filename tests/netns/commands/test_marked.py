"""A marked program's connections go where the mark's rule sends them; everybody else's do not."""

import subprocess
import sys
from pathlib import Path

import pytest

from cedos.kernel.bpf import marked_cgroup, own_cgroup, run_inside
from emu.testbed.netns import Namespace

SERVER = "198.51.100.1"
ECHO = """
import socket
with socket.socket(socket.AF_INET, socket.SOCK_STREAM, 262) as listening:
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listening.bind(("0.0.0.0", 7000)); listening.listen()
    print("up", flush=True)
    while True:
        connection, peer = listening.accept()
        with connection:
            connection.sendall(peer[0].encode())
"""
ASK = """
import socket, sys
for protocol in (socket.IPPROTO_TCP, 262):
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM, protocol) as asking:
        asking.settimeout(5)
        asking.connect((sys.argv[1], 7000))
        print(asking.recv(100).decode())
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as datagrams:
    datagrams.connect((sys.argv[1], 9))
    print(datagrams.getsockname()[0])
"""
MARKED = """
import sys
from pathlib import Path
from cedos.kernel.bpf import marked_cgroup, run_inside
with marked_cgroup(0xCE000007) as cgroup:
    sys.exit(run_inside(cgroup, [sys.executable, "-c", *sys.argv[1:]]))
"""


@pytest.fixture
def client(make_namespace):
    """A host with two ways to `SERVER`: over one by default, over two what is marked."""
    client, server = make_namespace("client"), make_namespace("server")
    for number, name in ((1, "one"), (2, "two")):
        client.ip("link", "add", name, "type", "veth", "peer", name, "netns", server.name)
        client.ip("address", "add", f"10.9.{number}.2/24", "dev", name)
        server.ip("address", "add", f"10.9.{number}.1/24", "dev", name)
        client.ip("link", "set", name, "up")
        server.ip("link", "set", name, "up")
    server.ip("address", "add", f"{SERVER}/32", "dev", "lo")
    client.ip("route", "add", "default", "via", "10.9.1.1")
    client.ip("route", "add", "default", "via", "10.9.2.1", "table", "52")
    client.ip("rule", "add", "fwmark", "0xce000007", "lookup", "52")
    return client


def test_tcp_mptcp_and_udp(client):
    server = Namespace(client.name.replace("client", "server"))
    python = sys.executable
    with server.popen(python, "-c", ECHO, stdout=subprocess.PIPE, text=True) as echo:
        try:
            assert echo.stdout.readline() == "up\n"
            plain = client.run(python, "-c", ASK, SERVER)
            marked = client.run(python, "-c", MARKED, ASK, SERVER)
        finally:
            echo.kill()
    assert plain.stdout.split() == ["10.9.1.2"] * 3
    assert marked.stdout.split() == ["10.9.2.2"] * 3


def test_no_cgroup_is_left():
    parent = own_cgroup(
        Path("/proc/self/mounts").read_text(), Path("/proc/self/cgroup").read_text()
    )
    before = set(parent.iterdir())
    with marked_cgroup(7) as cgroup:
        assert cgroup.parent == parent
        assert run_inside(cgroup, ["sh", "-c", "exit 3"]) == 3
    assert set(parent.iterdir()) == before


def test_a_cgroup_that_outlived_its_program_is_removed_by_the_next():
    with marked_cgroup(7) as cgroup:
        sleeper = subprocess.Popen(["sleep", "60"])
        (cgroup / "cgroup.procs").write_text(str(sleeper.pid))
    try:
        assert cgroup.exists()  # something lives inside
    finally:
        sleeper.kill()
        sleeper.wait()
    with marked_cgroup(7):
        pass
    assert not cgroup.exists()


def test_without_privileges(tmp_path):
    code = (
        "import os; from cedos.kernel.bpf import marked_cgroup\n"
        "from cedos.errors import PrivilegeError\n"
        "os.setgroups([]); os.setgid(65534); os.setuid(65534)\n"
        "try:\n"
        "    with marked_cgroup(7): pass\n"
        "except PrivilegeError as error: print(error)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "use `sudo cedos exec ...`" in done.stdout

"""A gateway without disk, descriptors or memory left, or that one network does not lead to."""

import hashlib
import os
import resource
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path

import pytest
from kit.namespaces import small_disk
from kit.waiting import wait_until

from tests.netns.gateway.conftest import ORIGIN
from tests.netns.gateway.deaths import silent

PROXY = "socks5h://127.0.0.1:1080"
SIZE = 3_000_000


@pytest.fixture
def cache(tmp_path):
    with small_disk(tmp_path / "server" / "cache") as folder:
        yield folder


def test_without_a_disk_it_hands_on_what_it_cannot_keep(cache, laptop):
    data = os.urandom(SIZE)
    laptop.serve_file(data)
    laptop.forward("-D", "1080", "--fail", "closed")
    for _ in range(2):
        curl = laptop.curl("-x", "http://127.0.0.1:1080", f"http://{ORIGIN}:8080/file")
        out, err = curl.communicate(timeout=30)
        assert curl.returncode == 0, err
        assert hashlib.sha256(out).digest() == hashlib.sha256(data).digest()
    assert sum(each.stat().st_size for each in cache.rglob("*") if each.is_file()) < 1_000_000
    assert laptop.gateway.poll() is None


IDLE = """
import socket
held = []
for _ in range(400):
    one = socket.create_connection(("127.0.0.1", 1081))
    held.append(one)
print("there", flush=True)
input()
"""


def test_without_descriptors_those_that_live_go_on(laptop):
    """Sixty-four more than it needs for itself: the rest are refused, and the session lives."""
    laptop.world.shape("20mbit")
    data = os.urandom(4 * SIZE)
    laptop.serve_file(data)
    pid = laptop.gateway.pid
    subprocess.run(["prlimit", "--pid", str(pid), "--nofile=128:128"], check=True)
    laptop.forward("-D", "1080", "-L", f"1081:{ORIGIN}:8080", "--fail", "closed")
    curl = laptop.curl("-x", PROXY, f"http://{ORIGIN}:8080/file")
    got = bytearray(curl.stdout.read(100_000))
    flood = laptop.near.popen(
        sys.executable, "-c", IDLE, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    with ExitStack() as stack:
        stack.callback(flood.wait)
        stack.callback(flood.kill)
        flood.stdout.readline()
        wait_until(lambda: len(list(Path(f"/proc/{pid}/fd").iterdir())) >= 120)
        got += curl.stdout.read()
        assert curl.wait(10) == 0, curl.stderr.read()
        assert got == data
    flood.stdin.close()
    flood.stdout.close()
    wait_until(
        lambda: (
            not laptop.curl("-x", PROXY, "-o", "/dev/null", f"http://{ORIGIN}:8080/file").wait(30)
        )
    )
    assert laptop.gateway.poll() is None


NEVER_READS = f"""
import socket, time
with socket.create_server(("{ORIGIN}", 9000), backlog=1024):
    print("ready", flush=True)
    time.sleep(600)
"""
POUR = """
import socket
held = []
for _ in range(40):
    one = socket.create_connection(("127.0.0.1", 1081))
    one.setblocking(False)
    held.append(one)
print("there", flush=True)
while True:
    for one in held:
        try:
            one.send(bytes(65_536))
        except BlockingIOError:
            pass
        except OSError:
            held.remove(one)
            break
"""


def test_without_memory_those_that_live_go_on(laptop):
    """Uploads to a server that never reads, far beyond what the gateway has: they break, not others."""
    data = os.urandom(6 * SIZE)
    laptop.serve_file(data)
    (laptop.folder / "served" / "small").write_bytes(b"small")
    server = laptop.far.popen(sys.executable, "-c", NEVER_READS, stdout=subprocess.PIPE)
    laptop.keep(server)
    assert server.stdout.readline() == b"ready\n"
    taken = int(Path(f"/proc/{laptop.gateway.pid}/statm").read_text().split()[0])
    most = taken * resource.getpagesize() + 50_000_000
    laptop.gateway.kill()
    laptop.gateway.wait()
    laptop.start_gateway_again("prlimit", f"--as={most}")
    laptop.forward("-D", "1080", "-L", f"1081:{ORIGIN}:9000", "--fail", "closed")
    curl = laptop.curl("-x", PROXY, "--limit-rate", "2M", f"http://{ORIGIN}:8080/file")
    got = bytearray(curl.stdout.read(100_000))
    flood = laptop.near.popen(
        sys.executable, "-c", POUR, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    with ExitStack() as stack:
        stack.callback(flood.wait)
        stack.callback(flood.kill)
        flood.stdout.readline()
        deadline_s = time.monotonic() + 4
        while time.monotonic() < deadline_s:
            small = laptop.curl("-x", PROXY, "-m", "10", f"http://{ORIGIN}:8080/small")
            said, complaint = small.communicate(timeout=20)
            assert said == b"small" or b"97" in complaint, complaint  # (refused by SOCKS)
        got += curl.stdout.read()
        assert curl.wait(10) == 0, curl.stderr.read()
        assert got == data
    flood.stdout.close()
    small = laptop.curl("-x", PROXY, "-m", "10", f"http://{ORIGIN}:8080/small")
    assert small.communicate(timeout=20)[0] == b"small"
    assert laptop.gateway.poll() is None
    log = (laptop.folder / "gateway.log").read_text()
    assert "too many bytes are unread" in log
    assert "MemoryError" not in log, log[-3_000:]


@pytest.mark.parametrize("how", [("DROP",), ("REJECT", "--reject-with", "tcp-reset")])
def test_a_gateway_that_one_network_does_not_lead_to(laptop, how):
    laptop.world.shape("20mbit")
    data = os.urandom(2 * SIZE)
    laptop.serve_file(data)
    laptop.near.run(
        *("iptables", "-I", "OUTPUT", "-o", "lte0", "-p", "tcp", "--dport", "7009", "-j", *how)
    )
    laptop.forward("-D", "1080", "--fail", "closed")
    began_s = time.monotonic()
    curl = laptop.curl("-x", PROXY, f"http://{ORIGIN}:8080/file")
    got = bytearray(curl.stdout.read(SIZE))
    took_s = time.monotonic() - began_s
    print(f"half of it in {took_s:.1f} s")
    assert took_s < 2.5 * SIZE * 8 / 20e6 + 1
    silent(laptop)
    time.sleep(2)
    laptop.near.run("iptables", "-D", "OUTPUT", "1")  # (the other network leads there now)
    got += curl.stdout.read()
    assert curl.wait(10) == 0, curl.stderr.read()
    assert got == data

"""Packets that nobody asked for: nothing is learnt of them, no rule is made, and memory stays bounded."""

import os
import re
import signal
import socket
import struct
import subprocess
import sys
import time
from contextlib import ExitStack, suppress
from ipaddress import ip_address
from pathlib import Path

import pytest
from kit.nginx import nginx
from kit.waiting import wait_until

import cedos.commands
from cedos.api.client import ControlClient
from cedos.errors import CedosError

SERVER, LAPTOP = "198.51.100.1", "10.9.1.2"
PER_S = 5_000
SHARE = 0.20  # of a core, while they come
BACK_WITHIN_S, BACK_TO_MB = 60.0, 5.0
LIES = (
    b"HTTP/1.1 200 OK\r\nContent-Length: 1000000000000\r\n\r\n",
    b"GET /huge HTTP/1.1\r\nHost: bank.example\r\n\r\n",
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(200),
)


class Attacked:
    """A laptop with the daemon, two networks, a server; and somebody on the first network who lies."""

    def __init__(self, make, folder):
        self.laptop, self.far = make("laptop"), make("far")
        self.far.ip("address", "add", f"{SERVER}/32", "dev", "lo")
        for net, name in ((1, "wlan0"), (2, "lte0")):
            self.laptop.ip(
                "link", "add", name, "type", "veth", "peer", name, "netns", self.far.name
            )
            for where, end in ((self.laptop, 2), (self.far, 1)):
                where.ip("address", "add", f"10.9.{net}.{end}/24", "dev", name)
                where.ip("link", "set", name, "up")
            self.laptop.ip(
                *("route", "add", "default", "via", f"10.9.{net}.1", "dev", name),
                *("metric", str(600 + net)),
            )
        (folder / "small").write_bytes(bytes(20_000))
        server = f"server {{ listen 80 default_server; root {folder}; }}"
        self._nginx = nginx(folder / "nginx", server, where=self.far)
        (folder / "cedos.toml").write_text(
            f'[probes]\ntarget = "{SERVER}"\ndns = false\nportal_url = ""\n[providers]\nhost = false\n'
            '[steering]\nclose_stuck = "after 1s"\n'
        )
        environment = {"CEDOS_STATE_DIR": f"{folder}/state", "CEDOS_RUNTIME_DIR": f"{folder}/run"}
        self.daemon = self.laptop.popen(
            *(sys.executable, "-m", "cedos", "up", "--config", str(folder / "cedos.toml")),
            env=os.environ | environment,
            stderr=subprocess.DEVNULL,
        )
        self.client = ControlClient(folder / "run" / "control.sock")
        self.state = folder / "state"

    def ready(self):
        def decides():
            with suppress(CedosError):
                return self.client.status().default.network is not None
            assert self.daemon.poll() is None
            return False

        wait_until(decides, 60)

    def fetch(self):
        self.laptop.run("curl", "-sS", "-m", "10", "-o", "/dev/null", f"http://{SERVER}/small")

    @property
    def rules(self):
        """Return the subject of each rule, without its network: that may change, as both are equal."""
        listed = self.laptop.run("ip", "rule").stdout.splitlines()
        return [line.partition("lookup")[0] for line in listed]

    @property
    def memory_mb(self):
        status = Path(f"/proc/{self.daemon.pid}/status").read_text()
        return int(re.search(r"VmRSS:\s+(\d+)", status)[1]) / 1e3

    def end(self):
        self.daemon.send_signal(signal.SIGTERM)
        assert self.daemon.wait(20) == 0
        self._nginx.terminate()
        self._nginx.wait(10)


def checksum(data):
    total = sum(struct.unpack(f"!{len(data) // 2}H", data[: len(data) // 2 * 2]))
    total += data[-1] << 8 if len(data) % 2 else 0
    total = (total >> 16) + (total & 0xFFFF)
    return ~(total + (total >> 16)) & 0xFFFF


def packet(number, target):
    """Return a packet of one of five kinds, with right checksums: forged TCP, an opening, a datagram."""
    kind = number % 5
    # The server's own address for half of the lies, else anybody's.
    known = kind < 3 and number % 2 == 0
    source = ip_address(SERVER if known else 0xCB000000 + number * 7919 % 0x10000).packed
    near, far = 1024 + number * 31 % 60_000, 80 if kind != 1 else 1024 + number % 60_000
    if kind == 4:
        near_ports = struct.pack("!HHHH", far, near, 8 + 100, 0)
        protocol, body = 17, near_ports + bytes(100)
    else:
        flags = 0x02 if kind == 3 else 0x18
        payload = b"" if kind == 3 else LIES[kind]
        port = 80 if kind == 1 else near
        head = struct.pack("!HHIIBBHHH", far, port, number, number, 0x50, flags, 65_000, 0, 0)
        protocol, body = 6, head + payload
        pseudo = source + target + struct.pack("!BBH", 0, protocol, len(body))
        body = body[:16] + struct.pack("!H", checksum(pseudo + body)) + body[18:]
    ip = struct.pack(
        "!BBHHHBBH4s4s", 0x45, 0, 20 + len(body), 0, 0, 64, protocol, 0, source, target
    )
    return ip[:10] + struct.pack("!H", checksum(ip)) + ip[12:] + body


def flood(attacked, count):
    """Sends them from the first network, `PER_S` a second."""
    wire, ethernet = wlan0_of(attacked)
    target = ip_address(LAPTOP).packed
    with wire:
        began_s = time.monotonic()
        for number in range(count):
            if number % 100 == 0:
                time.sleep(max(began_s + number / PER_S - time.monotonic(), 0.0))
            wire.send(ethernet + packet(number, target))


# Answers with a byte each 0.2 s, and on port 8443 only after 8 s.
SERVES = """
import socket, threading, time
def steady(connection):
    while True:
        connection.sendall(b"x" * 1000); time.sleep(0.2)
def slow(connection):
    connection.recv(100); time.sleep(8); connection.sendall(b"done"); time.sleep(60)
def serve(port, answer):
    listening = socket.create_server(("", port))
    while True: threading.Thread(target=answer, args=(listening.accept()[0],), daemon=True).start()
threading.Thread(target=serve, args=(8080, steady), daemon=True).start()
serve(8443, slow)
"""


def ends(number, port, near, target):
    """Return packets that would end a connection if their numbers were right."""
    source = ip_address(SERVER).packed
    if number % 2:
        protocol = 6
        body = struct.pack("!HHIIBBHHH", port, near, number * 65_537, 0, 0x50, 4, 0, 0, 0)
        pseudo = source + target + struct.pack("!BBH", 0, protocol, len(body))
        body = body[:16] + struct.pack("!H", checksum(pseudo + body)) + body[18:]
    else:
        protocol = 1
        quoted = struct.pack("!BBHHHBBH4s4s", 0x45, 0, 40, 0, 0, 64, 6, 0, target, source)
        quoted += struct.pack("!HHI", near, port, number * 65_537)
        body = struct.pack("!BBHI", 3, number % 6, 0, 0) + quoted
        body = body[:2] + struct.pack("!H", checksum(body)) + body[4:]
    ip = struct.pack(
        "!BBHHHBBH4s4s", 0x45, 0, 20 + len(body), 0, 0, 64, protocol, 0, source, target
    )
    return ip[:10] + struct.pack("!H", checksum(ip)) + ip[12:] + body


def wlan0_of(attacked):
    """A socket at the far end of the first network, and the head of a frame to the laptop."""
    link = attacked.laptop.run("ip", "link", "show", "wlan0").stdout
    hardware = re.search(r"link/ether (\S+)", link)[1]
    with attacked.far.entered():
        wire = socket.socket(socket.AF_PACKET, socket.SOCK_RAW)
        wire.bind(("wlan0", 0))
    return wire, bytes.fromhex(hardware.replace(":", "")) + bytes(6) + b"\x08\x00"


def read_on(connection):
    while connection.recv(10_000):
        pass


@pytest.fixture
def closing():
    with ExitStack() as stack:
        yield stack


@pytest.fixture
def attacked(make_namespace, tmp_path):
    made = Attacked(make_namespace, tmp_path)
    yield made
    made.end()


@pytest.mark.parametrize("count", [20_000, pytest.param(100_000, marks=pytest.mark.long)])
def test_nothing_is_learnt_of_packets_that_nobody_asked_for(attacked, count):
    unit = (Path(cedos.commands.__file__).parent / "examples" / "cedos.service").read_text()
    limit_mb = float(re.search(r"MemoryMax=(\d+)M", unit)[1])
    attacked.ready()
    for _ in range(3):
        attacked.fetch()
    time.sleep(1.0)
    rules, before_mb = attacked.rules, attacked.memory_mb
    began_s, cpu = time.monotonic(), os.sysconf("SC_CLK_TCK")
    ticks = Path(f"/proc/{attacked.daemon.pid}/stat").read_text().split()[13:15]
    flood(attacked, count)
    took_s = time.monotonic() - began_s
    after = Path(f"/proc/{attacked.daemon.pid}/stat").read_text().split()[13:15]
    share = (sum(map(int, after)) - sum(map(int, ticks))) / cpu / took_s
    high_mb = attacked.memory_mb
    print(
        f"{count / took_s:.0f} packets/s, {share:.0%} of a core, {before_mb:.0f} -> {high_mb:.0f} MB"
    )
    assert high_mb < min(limit_mb, before_mb + 30)
    assert share < SHARE
    status = attacked.client.status()
    assert len(status.flows) < 50
    attacked.fetch()
    attacked.fetch()
    time.sleep(1.0)
    assert attacked.rules == rules
    while (back_mb := attacked.memory_mb) > before_mb + BACK_TO_MB:
        assert time.monotonic() < began_s + took_s + BACK_WITHIN_S, (before_mb, back_mb)
        time.sleep(0.5)
    attacked.daemon.send_signal(signal.SIGTERM)
    assert attacked.daemon.wait(20) == 0
    learned = (attacked.state / "sizes.json").read_text()
    assert SERVER in learned
    assert "1000000000000" not in learned
    assert "203.0." not in learned
    assert "bank.example" not in learned


def test_a_neighbour_cannot_have_a_healthy_connection_closed(attacked, closing):
    """Neither one that is carried, nor one whose server thinks for longer than the limit.

    Once the network is really dead, both are.
    """
    attacked.ready()
    attacked.fetch()
    serving = attacked.far.popen(sys.executable, "-c", SERVES)
    closing.callback(serving.wait)
    closing.callback(serving.kill)
    time.sleep(0.5)
    connections = {}
    with attacked.laptop.entered():
        for port in (8080, 8443):
            made = connections[port] = socket.create_connection((SERVER, port), 10.0, (LAPTOP, 0))
            closing.enter_context(made)
            made.sendall(b"GET /answer HTTP/1.1\r\nHost: x\r\n\r\n")
    near = {port: each.getsockname()[1] for port, each in connections.items()}
    wire, ethernet = wlan0_of(attacked)
    until_s, number = time.monotonic() + 7.0, 0
    with wire:
        while time.monotonic() < until_s:
            for port in connections:
                wire.send(ethernet + ends(number, port, near[port], ip_address(LAPTOP).packed))
            wire.send(ethernet + packet(number, ip_address(LAPTOP).packed))
            number += 1
            time.sleep(0.001)
            connections[8080].recv(10_000)
    assert connections[8443].recv(100) == b"done"
    assert attacked.client.status().closed == []
    attacked.far.run("iptables", "-t", "raw", "-A", "PREROUTING", "-i", "wlan0", "-j", "DROP")
    connections[8443].sendall(b"GET /answer HTTP/1.1\r\nHost: x\r\n\r\n")
    with pytest.raises(ConnectionAbortedError):
        read_on(connections[8080])
    with pytest.raises(ConnectionAbortedError):
        connections[8443].recv(100)
    wait_until(lambda: "2 connections on wlan0 were closed" in str(attacked.client.status().closed))

"""A laptop with two networks, each of its own rate up and down, and servers behind both."""

import json
import os
import socket
import subprocess
import sys
import threading
from contextlib import ExitStack, contextmanager

import pytest
from kit.waiting import wait_until

CEDOS = (sys.executable, "-m", "cedos")
SERVER = "198.51.100.1"
PORT, WEB = 7007, 8080
RATES_MBPS = {"wlan0": {"up": 4, "down": 30}, "lte0": {"up": 9, "down": 12}}
UPLOAD = 40_000


class World:
    """Its namespaces, and the programs in them."""

    server, port, mbps = SERVER, PORT, RATES_MBPS

    def __init__(self, near, far, folder):
        self.near, self.far, self.folder = near, far, folder
        self.key = folder / "probe.key"
        self.config = folder / "cedos.toml"
        self.environment = os.environ | {
            "CEDOS_STATE_DIR": str(folder / "state"),
            "CEDOS_RUNTIME_DIR": str(folder / "run"),
        }

    @contextmanager
    def running(self, where, *command):
        with (self.folder / f"{command[0]}.out").open("wb") as output:
            process = where.popen(
                *CEDOS, *command, env=self.environment, stdout=output, stderr=output
            )
        try:
            yield process
        finally:
            process.terminate()
            process.wait(20)

    def probe_server(self, address=SERVER):
        listen = ("--listen", f"{address}:{PORT}", "--key-file", str(self.key))
        return self.running(self.far, "probe-server", *listen)

    def daemon(self):
        return self.running(self.near, "up", "--config", str(self.config))

    def until(self, condition, limit_s=60.0):
        wait_until(condition, limit_s, every_s=0.2, describe=lambda: self.log_text()[-2000:])

    def trains(self, status):
        """Return the costs of trains, by network."""
        return {e["network"]: e for e in status.get("probes", ()) if e["kind"] == "udp-train"}

    def log_text(self):
        """Return the daemon's log."""
        return (self.folder / "up.out").read_text()

    def status(self):
        command = self.near.command(*CEDOS, "status", "--json")
        done = subprocess.run(
            command, env=self.environment, capture_output=True, text=True, timeout=60, check=False
        )
        return dict(json.loads(done.stdout)) if done.returncode == 0 else {}

    def known(self):
        """Of each network the indicators of its last trains."""
        return {
            network["name"]: {
                name: each["value"]
                for name, each in network["indicators"].items()
                if name.startswith("udp_")
            }
            for network in self.status().get("networks", ())
        }

    def upload(self):
        with self.near.entered():
            client = socket.create_connection((SERVER, WEB), timeout=20)
        with client:
            client.sendall(
                f"POST /up HTTP/1.1\r\nHost: {SERVER}\r\nContent-Length: {UPLOAD}\r\n\r\n".encode()
                + bytes(UPLOAD)
            )
            assert client.recv(100).startswith(b"HTTP/1.1 200")


def take_uploads(listening):
    """Reads what comes, and answers; until the socket is closed."""
    while True:
        try:
            client, _ = listening.accept()
        except OSError:
            return
        with client:
            left = None
            data = b""
            while left is None or len(data) < left:
                data += client.recv(65536)
                if left is None and b"\r\n\r\n" in data:
                    left = data.index(b"\r\n\r\n") + 4 + UPLOAD
            client.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")


@pytest.fixture
def world(make_namespace, tmp_path):
    near, far = make_namespace("near"), make_namespace("far")
    for net, (name, mbps) in enumerate(RATES_MBPS.items(), 1):
        near.ip("link", "add", name, "type", "veth", "peer", name, "netns", far.name)
        for side, host, way in ((near, 2, "up"), (far, 1, "down")):
            side.ip("address", "add", f"10.9.{net}.{host}/24", "dev", name)
            side.ip("link", "set", name, "up")
            shape = f"dev {name} root tbf rate {mbps[way]}mbit burst 3000 limit 300000"
            side.run("tc", "qdisc", "add", *shape.split())
        near.ip("route", "add", "default", "via", f"10.9.{net}.1", "metric", str(600 + net))
    far.ip("address", "add", f"{SERVER}/32", "dev", "lo")
    world = World(near, far, tmp_path)
    subprocess.run([*CEDOS, "probe-server", "--new-key", str(world.key)], check=True)
    world.config.write_text(
        f'[probes]\ntarget = "{SERVER}"\ndns = false\nportal_url = ""\n'
        f'server = "{SERVER}:{PORT}"\nkey_file = "{world.key}"\n'
        'rule = "fixed"\nfull_interval_s = 2.0\n[providers]\nhost = false\n'
    )
    with far.entered():
        listening = socket.create_server((SERVER, WEB))
    serving = threading.Thread(target=take_uploads, args=(listening,))
    serving.start()
    with ExitStack() as stack:
        stack.callback(serving.join)
        stack.callback(listening.close)
        stack.callback(listening.shutdown, socket.SHUT_RDWR)
        yield world

"""The relay as `cedos example relay-unit` and `relay-config` ship it, with the real squid."""

import os
import shutil
import socket
import threading
from contextlib import contextmanager, suppress

import pytest
from kit.proxy_requests import http_connect

from emu.testbed.netns import forget_black_holes
from emu.testbed.programs import servers
from emu.testbed.programs.servers import RELAY_PORT
from emu.testbed.services import Service, accepts

MPTCP = 262
SERVER = {4: "203.0.113.2", 6: "[2001:db8:9::2]"}
RELAY = {4: "10.0.1.1", 6: "[fd00:1::1]"}
OUTSIDE = "203.0.113.1"
BODY = os.urandom(300_000)

pytestmark = pytest.mark.skipif(shutil.which("squid") is None, reason="needs squid")


class World:
    """Three namespaces: `client` has `net1` and `net2` to `relay`, which routes to `server`."""

    def __init__(self, make, folder):
        self.client, self.relay, self.server = (make(n) for n in ("client", "relay", "server"))
        self.folder = folder
        for each in (self.client, self.relay, self.server):
            each.sysctl("net.ipv4.conf.all.rp_filter", 0)
            each.sysctl("net.ipv4.conf.default.rp_filter", 0)
        forget_black_holes(self.client)
        for n in (1, 2):
            self._wire(self.client, self.relay, f"net{n}", (f"10.0.{n}", f"fd00:{n}"), (2, 1))
            self.client.ip("rule", "add", "from", f"10.0.{n}.2", "table", str(n))
            self.client.ip("route", "add", "default", "via", f"10.0.{n}.1", "table", str(n))
            self.client.ip("route", "add", "default", "via", f"10.0.{n}.1", "metric", str(n))
            self.client.ip("mptcp", "endpoint", "add", f"10.0.{n}.2", "dev", f"net{n}", "subflow")
        self._wire(self.relay, self.server, "out", ("203.0.113", "2001:db8:9"), (1, 2))
        for each in (self.client, self.relay):
            each.ip("mptcp", "limits", "set", "subflows", "4", "add_addr_accepted", "4")

    @staticmethod
    def _wire(one, other, name, prefixes, ends):
        one.ip("link", "add", name, "type", "veth", "peer", name, "netns", other.name)
        for where, end in zip((one, other), ends, strict=True):
            where.ip("address", "add", f"{prefixes[0]}.{end}/24", "dev", name)
            where.ip("address", "add", f"{prefixes[1]}::{end}/64", "dev", name, "nodad")
            where.ip("link", "set", name, "up")

    @contextmanager
    def relaying(self, *lines):
        """Run the shipped relay with these lines added to its configuration."""
        command = servers.relay_command(self.folder, "shutdown_lifetime 1 second", *lines)
        with self._running("relay", RELAY_PORT, *command):
            yield

    @contextmanager
    def resolving(self, *records):
        """Run a resolver beside the relay; yields the line that makes the relay ask it."""
        options = (f"--host-record={record}" for record in records)
        command = ("dnsmasq", "--no-daemon", "--conf-file=/dev/null", "--no-resolv", "--no-hosts")
        with self._running("resolver", 53, *command, *options):
            yield "dns_nameservers 127.0.0.1"

    @contextmanager
    def _running(self, name, port, *command):
        service = Service(self.relay, *command, output=self.folder / f"{name}.log")
        try:
            service.wait_for(lambda: accepts(self.relay, "127.0.0.1", port))
            yield
        finally:
            service.close()

    @contextmanager
    def serving(self, handle, port=8000):
        """Run a server on all addresses of its host, with a thread for each connection."""
        with self.server.entered():
            listening = socket.create_server(
                ("::", port), family=socket.AF_INET6, dualstack_ipv6=True
            )

        def one(connection):
            with connection, suppress(OSError):
                connection.settimeout(20)
                handle(connection)

        def accept():
            with suppress(OSError):
                while True:
                    connection, _ = listening.accept()
                    threading.Thread(target=one, args=(connection,), daemon=True).start()

        thread = threading.Thread(target=accept, daemon=True)
        thread.start()
        try:
            yield
        finally:
            listening.shutdown(socket.SHUT_RDWR)
            listening.close()
            thread.join(5)

    def status(self, url, *options, where=None):
        """Return the HTTP status that curl gets; the body is then in the file `body`."""
        words = ("--silent", "--globoff", "--max-time", "20", "--output", str(self.folder / "body"))
        shown = ("--write-out", "%{http_code} %{http_connect}")
        command = ("mptcpize", "run", "curl", *words, *shown, *options, url)
        code, tunnel = (where or self.client).run(*command, check=False).stdout.split()
        return int(code) or int(tunnel)


@pytest.fixture
def world(make_namespace, tmp_path):
    return World(make_namespace, tmp_path)


def proxy(version=4):
    return "--proxy", f"http://{RELAY[version]}:{RELAY_PORT}"


def answering(connection):
    data = b""
    while b"\r\n\r\n" not in data:
        data += connection.recv(65536)
    head = b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: %d\r\n\r\n" % len(BODY)
    connection.sendall(head + BODY)


def endless(connection):
    while True:
        connection.sendall(bytes(10_000))


def test_a_client_gets_pages_through_it_over_mptcp(world):
    accepted = []

    def watched(connection):
        shown = world.relay.run("ss", "-Mn", "state", "established").stdout.splitlines()
        accepted.append([f":{RELAY_PORT} " in line for line in shown])
        answering(connection)

    with world.serving(watched), world.relaying():
        for version in (4, 6):
            for tunnel in ((), ("--proxytunnel",)):
                url = f"http://{SERVER[version]}:8000/x"
                assert world.status(url, *proxy(version), *tunnel) == 200
                assert (world.folder / "body").read_bytes() == BODY
    assert list(map(any, accepted)) == [True] * 4


def received(namespace, interface):
    for line in namespace.run("cat", "/proc/self/net/dev").stdout.splitlines():
        name, _, counters = line.partition(":")
        if name.strip() == interface:
            return int(counters.split()[0])
    raise AssertionError(interface)


def take(connection, size):
    while size > 0:
        block = connection.recv(1 << 18)
        assert block
        size -= len(block)


def test_a_download_moves_between_networks(world):
    with world.serving(endless), world.relaying():
        with world.client.entered():
            connection = socket.socket(socket.AF_INET, socket.SOCK_STREAM, MPTCP)
        with connection:
            connection.settimeout(20)
            connection.connect((RELAY[4], RELAY_PORT))
            connection.sendall(http_connect(8000, SERVER[4]))
            take(connection, 3_000_000)
            before = received(world.client, "net2")
            # From one moment to the next, nothing comes through net1 any more.
            world.relay.ip("link", "set", "net1", "down")
            world.client.ip("link", "set", "net1", "down")
            take(connection, 30_000_000)
            assert received(world.client, "net2") - before > 20_000_000


PRIVATE = (
    *("127.0.0.1", "127.9.9.9", "0.0.0.0", "10.0.1.1", "172.16.0.1", "192.168.1.1", "100.64.0.1"),
    *("169.254.169.254", "192.0.0.192", "224.0.0.1", "255.255.255.255", "localhost"),
    *("[::]", "[::1]", "[fd00:1::1]", "[fe80::1]", "[fec0::1]", "[ff02::1]"),
    # IPv6 addresses that contain 127.0.0.1, 10.0.1.1 or 169.254.169.254.
    *("[::ffff:127.0.0.1]", "[::ffff:a00:101]", "[::127.0.0.1]", "[64:ff9b::a00:101]"),
    *("[64:ff9b:1::a9fe:a9fe]", "[2002:7f00:1::1]", "[2001:0:a00:101::1]"),
    # Azure's metadata, benchmarks' networks, and an address that is translated (RFC 2765).
    *("168.63.129.16", "198.18.0.1", "[::ffff:0:10.0.1.1]"),
)
NAMES = ("inside.example", "both.example", "six.example")


def test_private_destinations_are_refused(world):
    records = ("inside.example,10.0.1.1", "six.example,::1", "both.example,203.0.113.2",
               "both.example,10.0.1.1", "public.example,203.0.113.2")  # fmt: skip
    with world.serving(answering), world.resolving(*records) as line, world.relaying(line):
        for host in (*PRIVATE, *NAMES):
            for tunnel in ((), ("--proxytunnel",)):
                status = world.status(f"http://{host}:8000/", *proxy(), *tunnel)
                assert status == 403, (host, tunnel)
        assert world.status("http://public.example:8000/", *proxy()) == 200


@pytest.mark.parametrize("host", ["2130706433", "0x7f000001", "017700000001", "127.1"])
def test_odd_spellings_of_loopback_lead_nowhere(world, host):
    with world.resolving() as line, world.relaying(line):
        with world.client.entered():
            asking = socket.create_connection((RELAY[4], RELAY_PORT), 20)
        with asking:
            asking.sendall(http_connect(RELAY_PORT, host))
            assert asking.recv(64).split()[1] in {b"403", b"503"}


@pytest.mark.parametrize("port", [22, 25])
def test_ports_of_passwords_and_mail_are_refused(world, port):
    with world.serving(answering, port), world.relaying():
        for tunnel in ((), ("--proxytunnel",)):
            assert world.status(f"http://{SERVER[4]}:{port}/", *proxy(), *tunnel) == 403


def test_clients_outside_the_list_are_refused(world):
    through = ("--proxy", f"http://{OUTSIDE}:{RELAY_PORT}")
    url = f"http://{SERVER[4]}:8000/"
    with world.serving(answering), world.relaying():
        assert world.status(url, *through, where=world.server) == 403
    allowed = "acl clients src 203.0.113.0/24"
    with world.serving(answering), world.relaying(allowed):
        assert world.status(url, *through, where=world.server) == 200


def test_its_own_pages_are_refused(world):
    with world.relaying():
        url = f"http://{RELAY[4]}:{RELAY_PORT}/squid-internal-mgr/menu"
        assert world.status(url, *proxy()) == 403
        assert world.status(url, "--noproxy", "*") == 403

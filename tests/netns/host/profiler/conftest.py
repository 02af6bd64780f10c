"""A client and a server namespace joined by a veth pair, with real servers in the latter."""

import select
import socket
import threading
import time
from dataclasses import dataclass, field

import pytest

from emu.testbed.netns import Namespace

IPPROTO_MPTCP = 262
ADDRESSES = {4: ("10.9.0.1", "10.9.0.2"), 6: ("fd09::1", "fd09::2")}


@dataclass
class Pair:
    """The namespaces; the client's interface is `wlan0`."""

    client: Namespace
    server: Namespace
    threads: list[threading.Thread] = field(default_factory=list)

    def open(self, where, family, *, mptcp=False):
        with where.entered():
            opened = socket.socket(
                socket.AF_INET if family == 4 else socket.AF_INET6,
                socket.SOCK_STREAM,
                IPPROTO_MPTCP if mptcp else 0,
            )
        opened.settimeout(10)
        return opened

    def serve(self, family, port, handle, **options):
        """Runs `handle` on the first connection to the server's `port`."""
        listening = self.open(self.server, family, **options)
        listening.bind((ADDRESSES[family][1], port))
        listening.listen()

        def serve_one():
            with listening:
                connection, _ = listening.accept()
            with connection:
                connection.settimeout(10)
                handle(connection)

        thread = threading.Thread(target=serve_one, daemon=True)
        thread.start()
        self.threads.append(thread)

    def connect(self, family, port, **options):
        connection = self.open(self.client, family, **options)
        connection.connect((ADDRESSES[family][1], port))
        return connection


@pytest.fixture
def pair(make_namespace):
    client, server = make_namespace("client"), make_namespace("server")
    client.ip("link", "add", "wlan0", "type", "veth", "peer", "name", "eth0", "netns", server.name)
    for namespace, interface, index in ((client, "wlan0", 0), (server, "eth0", 1)):
        namespace.ip("addr", "add", f"{ADDRESSES[4][index]}/24", "dev", interface)
        namespace.ip("addr", "add", f"{ADDRESSES[6][index]}/64", "dev", interface, "nodad")
        namespace.ip("link", "set", interface, "up")
    joined = Pair(client, server)
    yield joined
    for thread in joined.threads:
        thread.join(timeout=10)
        assert not thread.is_alive()


def drain(capture, at_least, quiet_s=0.2):
    """Return the captured packets: wait for `at_least` of them, then for `quiet_s` without more."""
    captured = []
    deadline_at_s = time.monotonic() + 10
    while time.monotonic() < deadline_at_s:
        wait_s = quiet_s if len(captured) >= at_least else 5.0
        if not select.select([capture], [], [], wait_s)[0]:
            break
        captured += capture.read()
    return captured


@pytest.fixture(name="drain")
def _drain():
    return drain

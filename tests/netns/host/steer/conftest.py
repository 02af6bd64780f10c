"""A laptop with two networks over plain veths, IPv4 and IPv6, and a server that says who asks."""

import asyncio
import contextlib
import json
import socket
import threading
from dataclasses import dataclass, field
from ipaddress import ip_address, ip_interface
from pathlib import Path

import pytest
from kit.namespaces import echo
from kit.waiting import until

from cedos.model import Network, NetworkKind, NextHop
from emu.testbed.netns import Namespace, forget_black_holes

SERVER4 = "198.51.100.1"
SERVER6 = "2001:db8:100::1"
TCP_PORT, UDP_PORT = 8000, 8001
MPTCP = 262
FAMILY = {4: socket.AF_INET, 6: socket.AF_INET6}
SERVER = {4: SERVER4, 6: SERVER6}
ADDRESS = {
    ("wlan0", 4): "192.168.43.2",
    ("lte0", 4): "192.168.44.2",
    ("wlan0", 6): "2001:db8:43::2",
    ("lte0", 6): "2001:db8:44::2",
}

STATE = """
for version in -4 -6; do ip $version rule; ip $version route show table all; done
iptables-save; ip6tables-save; sysctl -a -r "^net"; ip mptcp endpoint; tc qdisc show; ip link
for name in wlan0 lte0; do tc filter show dev $name egress; done
"""


@dataclass
class Host:
    """Two namespaces: `client` with `wlan0` and `lte0`, `server` behind both."""

    client: Namespace
    server: Namespace
    directory: Path
    sockets: list[socket.socket] = field(default_factory=list)

    until = staticmethod(until)

    @staticmethod
    def address(name, version):
        """The client's address in a network."""
        return ADDRESS[name, version]

    def networks(self, *down):
        """Return the networks as the monitor would; those named in `down` are down."""
        with self.client.entered():
            indices = {name: socket.if_nametoindex(name) for name in ("wlan0", "lte0")}
        return [
            Network(
                name=name,
                interface=name,
                index=indices[name],
                kind=kind,
                metered=kind is NetworkKind.CELLULAR,
                addresses=(
                    ip_interface(f"192.168.{subnet}.2/24"),
                    ip_interface(f"2001:db8:{subnet}::2/64"),
                ),
                next_hops=(
                    NextHop(4, ip_address(f"192.168.{subnet}.1")),
                    NextHop(6, ip_address(f"2001:db8:{subnet}::1")),
                ),
                resolvers=(ip_address(resolver),),
                up=name not in down,
            )
            for name, kind, subnet, resolver in (
                ("wlan0", NetworkKind.WIFI, 43, "198.51.100.3"),
                ("lte0", NetworkKind.CELLULAR, 44, "198.51.100.4"),
            )
        ]

    def plug(self, name, subnet, metric):
        """A network comes, with a default route."""
        client, server = self.client, self.server
        client.ip("link", "add", name, "type", "veth", "peer", name, "netns", server.name)
        for namespace, last in ((client, 2), (server, 1)):
            namespace.ip("addr", "add", f"192.168.{subnet}.{last}/24", "dev", name)
            namespace.ip("addr", "add", f"2001:db8:{subnet}::{last}/64", "dev", name, "nodad")
        # Strict: what comes back must be routed by the rules too.
        client.sysctl(f"net.ipv4.conf.{name}.rp_filter", 1)
        for namespace in (client, server):
            namespace.ip("link", "set", name, "up")
        for version, gateway in ((4, f"192.168.{subnet}.1"), (6, f"2001:db8:{subnet}::1")):
            route = ("default", "via", gateway, "dev", name, "metric", str(metric))
            client.ip(f"-{version}", "route", "add", *route)

    def run(self, body):
        """Runs a coroutine inside the client."""
        with self.client.entered():
            asyncio.run(body())

    def state(self):
        """Return all state that steering may change, as the usual programs print it."""
        # One shell for all: some tests ask a hundred times.
        printed = self.client.run("sh", "-c", STATE, check=False).stdout
        noisy = ("nf_conntrack_count",)
        # iptables-save's remarks bear the time.
        lines = [line for line in printed.splitlines() if not line.startswith("# ")]
        return "\n".join(line for line in lines if not any(word in line for word in noisy))

    def connect(self, version, proto=0, **where):
        """A TCP (or MPTCP) connection from the client to the server."""
        with self.client.entered():
            connecting = socket.socket(FAMILY[version], socket.SOCK_STREAM, proto)
        self.sockets.append(connecting)
        connecting.settimeout(where.get("limit_s", 5))
        if "bind" in where:
            connecting.bind((where["bind"], 0))
        connecting.connect((where.get("to", SERVER[version]), where.get("port", TCP_PORT)))
        return connecting

    def seen_tcp(self, version, **where):
        """The source address that the server sees of a new TCP connection."""
        with self.connect(version, **where) as connection:
            connection.sendall(b"who\n")
            return connection.recv(100).decode()

    def seen_udp(self, version, **where):
        """The source address that the server sees of a new UDP flow."""
        with self.client.entered():
            asking = socket.socket(FAMILY[version], socket.SOCK_DGRAM)
        with asking:
            asking.settimeout(5)
            asking.connect((where.get("to", SERVER[version]), UDP_PORT))
            asking.send(b"who")
            return asking.recv(100).decode()


def _serve(server, stop):
    with server.entered():
        for version, family in FAMILY.items():
            listening = socket.socket(family, socket.SOCK_STREAM, MPTCP)
            udp = socket.socket(family, socket.SOCK_DGRAM)
            for one, port in ((listening, TCP_PORT), (udp, UDP_PORT)):
                one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                if family == socket.AF_INET6:
                    one.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
                # From an unbound socket the answer would come from another address.
                one.bind((SERVER[version] if one is udp else "", port))
            listening.listen(50)
            stop += [listening, udp]
            echo(listening, stop)
            threading.Thread(target=_answer_udp, args=(udp,), daemon=True).start()


def _answer_udp(udp):
    with contextlib.suppress(OSError):
        while True:
            _, peer = udp.recvfrom(100)
            if peer is None:  # shut down
                return
            udp.sendto(peer[0].encode(), peer)


def _acquainted(client, server):
    """Tells each its neighbours' hardware addresses: the first question for one of IPv6 is often lost,
    and the kernel asks again a second later."""
    here, there = (
        {link["ifname"]: link["address"] for link in json.loads(each.ip("-j", "link"))}
        for each in (client, server)
    )
    for namespace, known, last in ((client, there, 1), (server, here, 2)):
        for name, subnet in (("wlan0", 43), ("lte0", 44)):
            for address in (f"192.168.{subnet}.{last}", f"2001:db8:{subnet}::{last}"):
                where = (address, "lladdr", known[name], "dev", name, "nud", "reachable")
                namespace.ip("neigh", "replace", *where)


@pytest.fixture
def host(make_namespace, tmp_path):
    client, server = make_namespace("client"), make_namespace("server")
    for namespace in (client, server):
        namespace.sysctl("net.ipv6.conf.default.accept_dad", 0)
        namespace.sysctl("net.ipv6.conf.default.router_solicitations", 0)
        forget_black_holes(namespace)
    made = Host(client, server, tmp_path)
    made.plug("wlan0", 43, 100)
    made.plug("lte0", 44, 200)
    for last in range(1, 10):
        server.ip("addr", "add", f"198.51.100.{last}/32", "dev", "lo")
        server.ip("addr", "add", f"2001:db8:100::{last}/128", "dev", "lo", "nodad")
    server.ip("mptcp", "limits", "set", "subflows", "8")
    _acquainted(client, server)
    stop = []
    _serve(server, stop)
    yield made
    for one in (*stop, *made.sockets):
        with contextlib.suppress(OSError):
            one.shutdown(socket.SHUT_RDWR)
        one.close()

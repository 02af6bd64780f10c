"""Records what steering and the kernel say to each other into this folder. By hand, as root:

    .venv/bin/python tests/recorded/steer/record.py

Two namespaces, two links, IPv4 and IPv6. An MPTCP connection in each IP version gets a backup subflow,
which is made active, and is destroyed in the end; the kernel has acknowledged all commands recorded.
"""

import socket
import threading
import time
from ipaddress import ip_address, ip_network
from pathlib import Path

from cedos.host.steer.kernel.linux import LinuxKernel
from cedos.kernel import generic_netlink, mptcp, sock_diag
from cedos.kernel.mptcp import (
    CreateSubflow,
    DestroySubflow,
    MptcpEventKind,
    SetBackup,
    mptcp_events,
)
from cedos.kernel.netlink import Requester
from cedos.kernel.policy_routing import Route, Rule
from cedos.model import FlowKey
from emu.testbed.netns import Namespace

HERE = Path(__file__).parent
MPTCP = 262
LOCAL = {4: "192.168.1.1", 6: "fd00:1::1"}
SPARE = {4: "192.168.2.1", 6: "fd00:2::1"}
REMOTE = {4: "192.168.1.2", 6: "fd00:1::2"}
PORT = {4: 7004, 6: 7006}
FAMILY = {4: socket.AF_INET, 6: socket.AF_INET6}
TABLE = 7_300_002
RULES = [
    Rule(4, 32017, 254, suppress_prefixlength=0),
    Rule(4, 32020, TABLE, interface="wlan0"),
    Rule(4, 32030, TABLE, source=ip_network("192.168.1.1/32")),
    Rule(4, 32031, None, source=ip_network("192.168.1.1/32")),
    Rule(4, 32045, TABLE, local=True, mark=0xC0FFEE),
    Rule(6, 32050, TABLE, destination=ip_network("2001:db8::/32"), local=True, port=443),
    Rule(6, 32051, TABLE, destination=ip_network("2001:db8::/48"), local=True, protocol="udp"),
    Rule(6, 32090, TABLE, local=True),
]


def routes(index):
    metrics = bytes.fromhex("0800020078050000")  # an MTU of 1400
    return [
        Route(TABLE, ip_network("0.0.0.0/0"), index, ip_address("192.168.1.2"), metrics),
        Route(TABLE, ip_network("192.168.1.0/24"), index),
        Route(TABLE, ip_network("::/0"), index, ip_address("fe80::1")),
    ]


class Tap:
    """A socket that remembers what went through it."""

    def __init__(self, real):
        self.real, self.sent, self.received = real, [], []

    def send(self, data):
        self.sent.append(data)
        return self.real.send(data)

    def recv(self, size):
        self.received.append(self.real.recv(size))
        return self.received[-1]

    def __getattr__(self, name):
        return getattr(self.real, name)


def tapped(commands):
    commands._socket = Tap(commands._socket)
    return commands._socket


def save(name, datagrams):
    (HERE / f"{name}.hex").write_text("\n".join(d.hex() for d in datagrams) + "\n")


def main():
    near, far = Namespace.create("cedos-record-near"), Namespace.create("cedos-record-far")
    try:
        for name, net in (("wlan0", 1), ("lte0", 2)):
            near.ip("link", "add", name, "type", "veth", "peer", name, "netns", far.name)
            for side, host in ((near, 1), (far, 2)):
                side.ip("address", "add", f"192.168.{net}.{host}/24", "dev", name)
                side.ip("address", "add", f"fd00:{net}::{host}/64", "dev", name, "nodad")
                side.ip("link", "set", name, "up")
        near.ip("tuntap", "add", "vpn0", "mode", "tun")
        near.ip("rule", "add", "pref", "32500", "not", "fwmark", "51820", "table", "51820")
        near.ip("rule", "add", "pref", "32501", "from", "10.0.0.5", "table", "88")
        for net in (1, 2):
            far.ip("route", "add", f"192.168.{3 - net}.1/32", "dev", ("lte0", "wlan0")[net - 1])
        near.ip("-6", "route", "add", "fd00:1::/64", "via", "fd00:2::2", "metric", "999")
        far.ip("mptcp", "limits", "set", "subflows", "8")
        near.sysctl("net.mptcp.path_manager", "userspace")
        with near.entered():
            kernel = LinuxKernel()
            routing(kernel)
            paths(near, far, kernel)
            refusals(kernel)
            kernel.close()
    finally:
        near.remove()
        far.remove()


def routing(kernel):
    index = socket.if_nametoindex("wlan0")
    tap = tapped(kernel._routing)
    kernel.add_routes(routes(index))
    kernel.add_rules(RULES)
    save("routing-commands", tap.sent)
    for name, call in (("rules", kernel.rules), ("routes", kernel.routes), ("links", kernel.links)):
        tap.received.clear()
        call()
        save(name, tap.received)
    tap.received.clear()
    kernel.lookup(ip_address("198.51.100.1"), ip_address("192.168.1.1"))
    save("lookup", tap.received)
    kernel.delete_rules(RULES)
    kernel.delete_routes(routes(index))


def paths(near, far, kernel):
    commands, family = kernel._path_manager()
    tap = tapped(commands)
    request = generic_netlink.family_request(mptcp.FAMILY_NAME)
    (answer,) = commands.ask(generic_netlink.GENL_ID_CTRL, request)
    save("family", tap.received)
    assert generic_netlink.parse_family(answer) == family
    group = family.groups[mptcp.EVENT_GROUP]
    listening = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 16)
    listening.bind((0, 0))
    listening.setsockopt(270, 1, group)
    listening.settimeout(2)
    told = []

    def wait(kind):
        while True:
            told.append(listening.recv(1 << 16))
            for event in mptcp_events(told[-1]):
                if event.kind is kind:
                    return event

    tap.sent.clear()
    open_ones = []
    for version in (4, 6):
        open_ones += talk(far, version)
        event = wait(MptcpEventKind.ESTABLISHED)
        local, remote = ip_address(SPARE[version]), ip_address(REMOTE[version])
        index, port = socket.if_nametoindex("lte0"), PORT[version]
        token = event.token
        assert kernel.steer([CreateSubflow(token, local, 3, index, remote, port, True)]) == [None]
        spare = wait(MptcpEventKind.SUBFLOW_UP).key
        assert isinstance(spare, FlowKey)
        time.sleep(0.3)
        assert kernel.steer([SetBackup(token, spare, False)]) == [None]
        assert event.key is not None
        assert kernel.steer([SetBackup(token, event.key, True)]) == [None]
        if version == 4:
            kernel._diag = None
            seen = kernel.sockets()
            assert any(s.token == token and s.backup for s in seen)
        with_sockets(version)
        assert kernel.steer([DestroySubflow(token, spare)]) == [None]
        wait(MptcpEventKind.SUBFLOW_DOWN)
    save("commands", tap.sent)
    for one in open_ones:
        one.close()
    wait(MptcpEventKind.CLOSED)
    save("events", told)
    listening.close()


def with_sockets(version):
    commands = Requester(4)
    tap = tapped(commands)
    commands.dump(sock_diag.TCP_SOCKETS, sock_diag.tcp_sockets_request())
    save(f"sockets{version}", tap.received)
    commands.close()


def refusals(kernel):
    commands, _ = kernel._path_manager()
    tap = commands._socket
    tap.received.clear()
    key = FlowKey(ip_address("192.168.2.1"), 1, ip_address("192.168.1.2"), 2)
    (error,) = kernel.steer([SetBackup(1, key, True)])
    assert error is not None
    save("refusal", tap.received)


def talk(far, version):
    with far.entered():
        listener = socket.socket(FAMILY[version], socket.SOCK_STREAM, MPTCP)
        listener.bind((REMOTE[version], PORT[version]))
        listener.listen()
    accepted = []
    thread = threading.Thread(target=lambda: accepted.append(listener.accept()[0]), daemon=True)
    thread.start()
    talking = socket.socket(FAMILY[version], socket.SOCK_STREAM, MPTCP)
    talking.bind((LOCAL[version], 0))
    talking.connect((REMOTE[version], PORT[version]))
    talking.sendall(b"hello")
    thread.join()
    accepted[0].recv(5)
    accepted[0].sendall(b"hello")
    talking.recv(5)
    return [talking, accepted[0], listener]


if __name__ == "__main__":
    main()

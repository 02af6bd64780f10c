"""Records what the kernel says into this folder, for the parsers' tests. By hand, as root:

    .venv/bin/python tests/recorded/monitor/record.py

Two namespaces, one link with IPv4 and IPv6; over it a TCP connection of 5,000 bytes up and 70,000 down
in each IP version, an IPv6 socket speaking IPv4, an MPTCP connection, and a UDP question with answer.
"""

import socket
import threading
import time
from pathlib import Path

from emu.testbed.netns import Namespace

HERE = Path(__file__).parent
UP, DOWN = 5_000, 70_000
MPTCP = 262


def main():
    near, far = Namespace.create("cedos-record-near"), Namespace.create("cedos-record-far")
    try:
        build(near, far)
        with near.entered():
            recorders = {
                "destroy": Recorder(4, (1, 3)),
                "conntrack": Recorder(12, (1, 3)),
                "rtnl-events": Recorder(0, (1, 5, 7, 9, 11)),
            }
            dump("rtnl-links", 0, 18, bytes(16) + bytes.fromhex("08001d0008000000"))
            dump("rtnl-addresses", 0, 22, bytes(8))
            dump("rtnl-routes4", 0, 26, b"\x02" + bytes(11))
            dump("rtnl-routes6", 0, 26, b"\x0a" + bytes(11))
            dump("rtnl-stats", 0, 94, bytes(4) + index("wlan0").to_bytes(4, "little") + b"\1\0\0\0")
        talk(near, far)
        near.ip("link", "set", "lte0", "down")
        near.run("conntrack", "-F", check=False)
        time.sleep(0.5)
        for name, recorder in recorders.items():
            recorder.save(name)
    finally:
        near.remove()
        far.remove()


def index(name):
    return socket.if_nametoindex(name)


def build(near, far):
    for name, net in (("wlan0", 1), ("lte0", 2)):
        near.ip("link", "add", name, "type", "veth", "peer", name, "netns", far.name)
        for side, host in ((near, 1), (far, 2)):
            side.ip("address", "add", f"192.168.{net}.{host}/24", "dev", name)
            side.ip("address", "add", f"fd00:{net}::{host}/64", "dev", name, "nodad")
            side.ip("link", "set", name, "up")
    near.ip("route", "add", "default", "via", "192.168.1.2", "dev", "wlan0", "metric", "600")
    near.ip("route", "add", "default", "via", "192.168.2.2", "dev", "lte0", "metric", "700")
    near.ip("-6", "route", "add", "default", "via", "fd00:1::2", "dev", "wlan0", "metric", "600")
    near.ip(
        "route", "add", "default", "via", "192.168.9.9", "dev", "wlan0", "onlink", "table", "99"
    )
    near.sysctl("net.netfilter.nf_conntrack_acct", 1)
    for program in ("iptables", "ip6tables"):
        near.run(program, "-A", "OUTPUT", "-m", "conntrack", "--ctstate", "INVALID", "-j", "ACCEPT")
    time.sleep(1)  # the links' own chatter (router solicitations) is not what we want


def talk(near, far):
    kinds = [
        (socket.AF_INET, "192.168.1.2", 0, 7001, "192.168.1.2"),
        (socket.AF_INET6, "fd00:1::2", 0, 7002, "fd00:1::2"),
        (socket.AF_INET, "192.168.1.2", 0, 7003, "::ffff:192.168.1.2"),
        (socket.AF_INET, "192.168.1.2", MPTCP, 7004, "192.168.1.2"),
    ]
    pairs = []
    for family, host, protocol, port, target in kinds:
        with far.entered():
            listener = socket.socket(family, socket.SOCK_STREAM, protocol)
        listener.bind((host, port))
        listener.listen()
        threading.Thread(target=serve, args=(listener,), daemon=True).start()
        with near.entered():
            own = socket.socket(
                socket.AF_INET6 if ":" in target else family, socket.SOCK_STREAM, protocol
            )
        own.bind(("::" if ":" in target else "0.0.0.0", port + 1000))
        own.connect((target, port))
        own.sendall(bytes(UP))
        got = 0
        while got < DOWN:
            got += len(own.recv(1 << 16))
        pairs.append(own)
    time.sleep(0.3)
    with near.entered():
        body = bytes((0, 0, 0, 2)) + bytes(48) + (0xFFF).to_bytes(4, "little") + bytes(4)
        dump("sockets", 4, 18, body)
    with far.entered():
        answerer = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    answerer.bind(("192.168.1.2", 5300))
    with near.entered():
        asker = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    asker.bind(("0.0.0.0", 5301))
    asker.sendto(bytes(100), ("192.168.1.2", 5300))
    _, peer = answerer.recvfrom(1000)
    answerer.sendto(bytes(300), peer)
    asker.recv(1000)
    for own in (*pairs, asker, answerer):
        own.close()
    time.sleep(0.3)


def serve(listener):
    peer, _ = listener.accept()
    got = 0
    while got < UP:
        got += len(peer.recv(1 << 16))
    peer.sendall(bytes(DOWN))
    peer.recv(1)
    peer.close()
    listener.close()


class Recorder:
    def __init__(self, protocol, groups):
        self.socket = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, protocol)
        self.socket.bind((0, 0))
        for group in groups:
            self.socket.setsockopt(270, 1, group)
        self.socket.settimeout(0.2)

    def save(self, name):
        datagrams = []
        try:
            while True:
                datagrams.append(self.socket.recv(1 << 16))
        except TimeoutError:
            pass
        self.socket.close()
        write(name, datagrams)


def dump(name, protocol, kind, body):
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, protocol) as asker:
        asker.bind((0, 0))
        flags = 0x305 if kind != 94 else 0x5
        header = (16 + len(body)).to_bytes(4, "little") + kind.to_bytes(2, "little")
        asker.send(header + flags.to_bytes(2, "little") + bytes(8) + body)
        datagrams = []
        while not datagrams or datagrams[-1][4:6] not in (b"\2\0", b"\3\0"):
            datagrams.append(asker.recv(1 << 16))
    write(name, datagrams)


def write(name, datagrams):
    (HERE / f"{name}.hex").write_text("".join(f"{data.hex()}\n" for data in datagrams))


if __name__ == "__main__":
    main()

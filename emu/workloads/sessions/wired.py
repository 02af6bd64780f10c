"""Namespaces for the bench: a loopback alone, and two hosts with a shaped cable between them."""

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from emu.testbed.netns import Namespace

CLIENT, MOVED, SERVER, GATEWAY = "10.99.1.1", "10.99.1.9", "10.99.9.1", "10.99.1.2"
INTERFACE = "wlan0"


@contextmanager
def host() -> Iterator[Namespace]:
    """A namespace with nothing but its loopback."""
    made = Namespace.create(f"cedos-bench-{os.getpid()}-host")
    try:
        yield made
    finally:
        made.remove()


@contextmanager
def cable(rate: str | None, latency: str = "50ms") -> Iterator[tuple[Namespace, Namespace]]:
    """A client whose `wlan0` leads to a server; with a rate (of `tc`), no faster than that."""
    with ExitStack() as stack:
        ends = []
        for role in ("client", "server"):
            made = Namespace.create(f"cedos-bench-{os.getpid()}-{role}")
            stack.callback(made.remove)
            ends.append(made)
        near, far = ends
        near.ip("link", "add", INTERFACE, "type", "veth", "peer", "eth0", "netns", far.name)
        for where, interface, address in ((near, INTERFACE, CLIENT), (far, "eth0", GATEWAY)):
            where.ip("address", "add", f"{address}/24", "dev", interface)
            where.ip("link", "set", interface, "up")
            where.sysctl("net.ipv4.tcp_no_metrics_save", 1)
            where.sysctl("net.ipv4.tcp_congestion_control", "reno")
            if rate is not None:
                shaper = f"tc qdisc add dev {interface} root tbf rate {rate} burst 32kb latency {latency}"
                where.run(*shaper.split())
        far.ip("address", "add", f"{SERVER}/32", "dev", "lo")
        near.ip("route", "add", "default", "via", GATEWAY, "dev", INTERFACE)
        yield near, far

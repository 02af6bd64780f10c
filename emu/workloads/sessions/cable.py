"""Where sessions are measured: a loopback alone, and two hosts with a shaped cable between them."""

from collections.abc import Iterator
from contextlib import contextmanager

from emu.testbed import stale, wires
from emu.testbed.hosts import Hosts
from emu.testbed.netns import Namespace
from emu.testbed.wires import End

CLIENT, OTHER_CLIENT, SERVER, GATEWAY = "10.99.1.1", "10.99.1.9", "10.99.9.1", "10.99.1.2"
INTERFACE = "wlan0"


@contextmanager
def loopback() -> Iterator[Namespace]:
    with stale.registered() as instance:
        yield instance.namespace("host")


@contextmanager
def cable(rate: str | None, latency: str = "50ms") -> Iterator[tuple[Namespace, Namespace]]:
    """A client whose `wlan0` leads to a server; with a rate (of `tc`), no faster than that."""
    with Hosts() as hosts:
        near = End(hosts.client, INTERFACE, f"{CLIENT}/24")
        far = End(hosts.server, "eth0", f"{GATEWAY}/24")
        wires.connect(near, far, offloads=True)
        for end in (near, far):
            end.host.sysctl("net.ipv4.tcp_no_metrics_save", 1)
            end.host.sysctl("net.ipv4.tcp_congestion_control", "reno")
            if rate is not None:
                wires.limit_rate(end, rate, latency=latency)
        wires.add_address(hosts.server, SERVER)
        hosts.client.ip("route", "add", "default", "via", GATEWAY, "dev", INTERFACE)
        yield hosts.client, hosts.server

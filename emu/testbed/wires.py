"""Wires between namespaces: veth pairs, their addresses, and how fast they are."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from pyroute2 import IPRoute

from emu.testbed import kernel
from emu.testbed.netns import Namespace, entered


@dataclass(frozen=True, slots=True)
class End:
    """One end of a wire; with an address (`10.0.0.1/24`) it is up, without one it is left down."""

    host: Namespace
    interface: str
    address: str = ""


@contextmanager
def netlink_in(path: Path) -> Iterator[IPRoute]:
    with entered(path):
        netlink = IPRoute()
    try:
        yield netlink
    finally:
        netlink.close()


def connect(one: End, other: End, *, offloads: bool = False) -> None:
    """Makes a wire; without offloads its packets are as on a wire (1500 bytes)."""
    with netlink_in(one.host.path) as netlink, other.host.path.open("rb") as there:
        peer = {"ifname": other.interface, "net_ns_fd": there.fileno()}
        netlink.link("add", ifname=one.interface, kind="veth", peer=peer)
    for end in (one, other):
        if end.address:
            address, _, length = end.address.partition("/")
            with netlink_in(end.host.path) as netlink:
                (index,) = netlink.link_lookup(ifname=end.interface)
                netlink.addr("add", index=index, address=address, prefixlen=int(length))
                netlink.link("set", index=index, state="up")
        if not offloads:
            with end.host.entered():
                kernel.without_offloads(end.interface)


def add_address(host: Namespace, *addresses: str) -> None:
    with netlink_in(host.path) as netlink:
        (loopback,) = netlink.link_lookup(ifname="lo")
        for address in addresses:
            netlink.addr("add", index=loopback, address=address, prefixlen=32)


def limit_rate(end: End, rate: str, *, burst: str = "32kb", latency: str = "50ms") -> None:
    shaper = (
        f"tc qdisc add dev {end.interface} root tbf rate {rate} burst {burst} latency {latency}"
    )
    end.host.run(*shaper.split())

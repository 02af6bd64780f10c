"""Two networks on a kernel in memory."""

from dataclasses import dataclass, field, replace
from ipaddress import ip_address, ip_interface

import pytest
from kit.steer_kernel import MemoryKernel

from cedos.host.steer.steering import Steering
from cedos.kernel.mptcp import MptcpEvent, MptcpEventKind
from cedos.kernel.policy_routing import LOOPBACK_INDEX
from cedos.model import FlowKey, Network, NetworkKind, NextHop

REMOTE = {4: "198.51.100.1", 6: "2001:db8:100::1"}


def network(name, subnet, index, kind):
    return Network(
        name=name,
        interface=name,
        index=index,
        kind=kind,
        metered=kind is NetworkKind.CELLULAR,
        addresses=(
            ip_interface(f"192.168.{subnet}.2/24"),
            ip_interface(f"2001:db8:{subnet}::2/64"),
            ip_interface(f"fe80::{subnet}/64"),
        ),
        next_hops=(
            NextHop(4, ip_address(f"192.168.{subnet}.1")),
            NextHop(6, ip_address(f"fe80::{subnet}:1")),
        ),
    )


WLAN0 = network("wlan0", 43, 3, NetworkKind.WIFI)
LTE0 = network("lte0", 44, 4, NetworkKind.CELLULAR)


@dataclass
class World:
    """The kernel, and what the outside does to it."""

    kernel: MemoryKernel = field(default_factory=MemoryKernel)
    wlan0 = WLAN0
    lte0 = LTE0
    down = staticmethod(lambda one: replace(one, up=False))

    def __post_init__(self):
        for metric, one in ((100, WLAN0), (200, LTE0)):
            self.kernel.add_link(one.index, one.interface)
            for address in one.addresses[:2]:
                self.kernel.add_main_route(str(address.network), one.index)
                default = "0.0.0.0/0" if address.version == 4 else "::/0"
                self.kernel.add_main_route(default, one.index, one.gateways[0], metric)

    def carrier(self, version=4, **packet):
        """The interface through which a packet to somewhere far away leaves."""
        remote = ip_address(packet.pop("remote", REMOTE[version]))
        local = packet.pop("local", None)
        way = self.kernel.way(remote, ip_address(local) if local else None, **packet)
        if way is None and version == 6 and not (local or packet.get("forwarded")):
            # As Linux does: it looks again, from some address of its own.
            own = [one.ip for network in (WLAN0, LTE0) for one in network.addresses[1:2]]
            found = (self.kernel.way(remote, ip, **packet) for ip in own)
            way = next(filter(None, found), None)
        names = {link.index: link.name for link in self.kernel.all_links}
        return names[way.index] if way and way.index != LOOPBACK_INDEX else None

    def picture(self):
        """Return all state that steering may change."""
        return self.picture_of(self.kernel)

    @staticmethod
    def picture_of(kernel):
        """Return all state of a kernel that steering may change."""
        return (
            tuple(kernel.own),
            tuple(sorted(map(str, kernel.all_routes))),
            dict(kernel.sysctls),
            kernel.filter,
            frozenset(kernel.walled),
        )

    def established(self, token, one=WLAN0, version=4, **also):
        """A connection's first event."""
        local = one.addresses[0 if version == 4 else 1].ip
        key = FlowKey(local, 50_000 + token, ip_address(REMOTE[version]), 443)
        return MptcpEvent(MptcpEventKind.ESTABLISHED, token, key, **also)

    @staticmethod
    def came_up(command, port=60_000):
        """The event of a subflow that was asked for."""
        key = FlowKey(command.local, port, command.remote, command.remote_port)
        return MptcpEvent(MptcpEventKind.SUBFLOW_UP, command.token, key)


@pytest.fixture
def world():
    return World()


@pytest.fixture(scope="session")
def make_world():
    """For tests that need one for each of their examples."""
    return World


@pytest.fixture(scope="session")
def fresh(tmp_path_factory):
    """A folder of its own for each example."""
    return lambda: tmp_path_factory.mktemp("state")


@pytest.fixture
async def steering(world, tmp_path):
    async with Steering(tmp_path, kernel=world.kernel) as made:
        await made.networks_changed([world.wlan0, world.lte0])
        yield made

"""Addresses, routes and wires of the emulated laptop's namespaces (see `emu.testbed.phones`)."""

import errno
from dataclasses import dataclass
from pathlib import Path

from pyroute2.netlink.exceptions import NetlinkError

from cedos.config.sections import ProbesConfig
from cedos.errors import EmulationError
from cedos.model import NetworkKind
from emu.testbed import hosts, netns
from emu.testbed.access import ADDRESSES, GATEWAYS, INTERFACES
from emu.testbed.hosts import End, netlink_in
from emu.testbed.netns import Namespace

SERVER = "198.51.100.1"
# The server's addresses, each a "different host".
SERVER_ADDRESSES = tuple(f"198.51.100.{n}" for n in range(1, 10))
# The address that a daemon pings by default. The server has it.
PING_TARGET = ProbesConfig().target
_ALL_SERVER_ADDRESSES = (*SERVER_ADDRESSES, PING_TARGET)
_ANYWHERE = "0.0.0.0/0"
_PREFERRED_METRIC = 50


@dataclass(frozen=True, slots=True)
class _Plan:
    interface: str
    address: str
    gateway: str
    backbone: str
    metric: int
    table: int


_PLANS = {
    kind: _Plan(INTERFACES[kind], ADDRESSES[kind], GATEWAYS[kind], backbone, metric, table)
    for kind, backbone, metric, table in (
        (NetworkKind.WIFI, "198.51.101", 100, 101),
        (NetworkKind.CELLULAR, "198.51.102", 200, 102),
    )
}


def subnet(kind: NetworkKind) -> str:
    return f"{GATEWAYS[kind].rpartition('.')[0]}.0/24"


def set_up_hosts(client: Namespace, server: Namespace) -> None:
    """Set up the laptop and the server before any network."""
    for host in (client, server):
        with host.entered():
            netns.write_sysctls(netns.HOST_SYSCTLS)
    netns.use_cubic([client, server])
    hosts.add_address(server, *_ALL_SERVER_ADDRESSES)
    # Accept all subflows that a client may open.
    server.run("ip", "mptcp", "limits", "set", "subflows", "8", check=False)


def set_up_provider(kind: NetworkKind, isp: Namespace, server: Namespace) -> None:
    """Set up the provider: its line to the server, and the only NAT on the way."""
    backbone = _PLANS[kind].backbone
    with isp.entered():
        netns.write_sysctls(netns.ROUTER_SYSCTLS)
    hosts.connect(
        End(isp, "up0", f"{backbone}.2/30"), End(server, f"isp-{kind}", f"{backbone}.1/30")
    )
    with netlink_in(isp.path) as netlink:
        netlink.route("add", dst=_ANYWHERE, gateway=f"{backbone}.1")
    isp.run(*["iptables", "-w", "-t", "nat", "-A", "POSTROUTING", "-o", "up0", "-j", "MASQUERADE"])
    # Refuse packets of a connection that the NAT does not know, or no more.
    refuse = "iptables -w -A FORWARD -o up0 -p tcp -m conntrack --ctstate INVALID -j REJECT"
    isp.run(*refuse.split(), "--reject-with", "tcp-reset")
    with isp.entered():
        netns.write_sysctls(netns.NAT_SYSCTLS)


def set_up_wire(
    kind: NetworkKind, client: Namespace, server: Namespace, source_rules: bool
) -> None:
    """Make the client's interface if it is absent; the wire's far end waits in the server's namespace."""
    plan = _PLANS[kind]
    with netlink_in(client.path) as netlink:
        if netlink.link_lookup(ifname=plan.interface):
            return
        hosts.connect(End(client, plan.interface, f"{plan.address}/24"), End(server, _wire(kind)))
        (index,) = netlink.link_lookup(ifname=plan.interface)
        route = {"dst": _ANYWHERE, "gateway": plan.gateway, "oif": index}
        netlink.route("add", **route, priority=plan.metric)
        if source_rules:
            netlink.route("add", **route, table=plan.table)
            netlink.rule("add", src=plan.address, priority=200, table=plan.table)
            netlink.rule("add", oifname=plan.interface, priority=210, table=plan.table)


def move_wire(kind: NetworkKind, source: int, target: int) -> None:
    """Move the wire's far end between namespaces, both given as open files; the move sets it down."""
    with netlink_in(Path(f"/proc/self/fd/{source}")) as netlink:
        (index,) = netlink.link_lookup(ifname=_wire(kind))
        netlink.link("set", index=index, net_ns_fd=target)


def connect_phone(kind: NetworkKind, phone: int, client: Namespace) -> None:
    """Make the phone, whose namespace the wire has been moved into, the client's gateway."""
    plan = _PLANS[kind]
    with netlink_in(Path(f"/proc/self/fd/{phone}")) as netlink:
        (index,) = netlink.link_lookup(ifname=_wire(kind))
        netlink.addr("add", index=index, address=plan.gateway, prefixlen=24)
        netlink.link("set", index=index, state="up")
        (link,) = netlink.get_links(index)
        hardware = link.get_attr("IFLA_ADDRESS")
    # The client may have asked for the gateway's hardware address while no phone was there, and would ask
    # again only after a second. So enter the address into its neighbour table.
    with netlink_in(client.path) as netlink:
        (index,) = netlink.link_lookup(ifname=plan.interface)
        netlink.neigh(
            "replace", dst=plan.gateway, lladdr=hardware, ifindex=index, state="reachable"
        )


def prefer(client: Namespace, interface: str | None) -> None:
    """Give one interface a default route that goes before all others; None: no interface."""
    with netlink_in(client.path) as netlink:
        for plan in _PLANS.values():
            wanted = plan.interface == interface
            found = netlink.link_lookup(ifname=plan.interface)
            if not found:
                if wanted:
                    raise EmulationError(f"{interface} has never been attached")
                continue
            route = {"dst": _ANYWHERE, "gateway": plan.gateway, "oif": found[0]}
            if wanted:
                netlink.route("replace", **route, priority=_PREFERRED_METRIC)
                continue
            try:
                netlink.route("del", **route, priority=_PREFERRED_METRIC)
            except NetlinkError as error:
                if error.code != errno.ESRCH:  # it was not preferred
                    raise


def _wire(kind: NetworkKind) -> str:
    return f"tether-{kind}"

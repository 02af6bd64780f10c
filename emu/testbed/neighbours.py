"""Neighbours on one link: a requestor without a network of its own, and helpers with emulated uplinks.

    requestor -- link (a bridge) -- helper 1, 2, ... -- emulated link -- provider -- server

Each helper is the innermost namespace of a Mahimahi link, which is its uplink. It forwards nothing until
a program there turns forwarding on. While the requestor is at home, it has a wire to the server.
"""

import json
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Final

from cedos.errors import EmulationError
from emu.testbed import hosts, netns, stale
from emu.testbed.access import Access
from emu.testbed.hosts import End, netlink_in
from emu.testbed.mahimahi import MahimahiLink, launch
from emu.testbed.netns import Namespace
from emu.testbed.phones import ExitOnSignals, uninterrupted
from emu.testbed.services import Started
from emu.testbed.wiring import SERVER, SERVER_ADDRESSES

LINK: Final = "wlan0"
_BRIDGE: Final = "br0"
_REQUESTOR: Final = "192.168.77.100"
_ANYWHERE: Final = "0.0.0.0/0"
MOST_HELPERS: Final = 16


@dataclass(frozen=True, slots=True)
class HelperHost:
    """A helper: its namespace, its address on the link, and its emulated uplink."""

    namespace: Namespace
    address: str
    link: MahimahiLink


class Neighbourhood(Started):
    """The namespaces, as a `with` block.

    Args:
        accesses: the helpers' uplinks.
        own: the network of the requestor's own phone; None: it has none.

    Attributes:
        requestor: has `wlan0`, and `lte0` where it has a network of its own.
        helpers: each has `wlan0`, and its uplink.
        server: has 198.51.100.1 to .9.
        air: the link's bridge, which passes on every frame.
        directory: for files that are removed with the namespaces.
    """

    def __init__(self, accesses: Sequence[Access], *, own: Access | None = None) -> None:
        if not 0 < len(accesses) <= MOST_HELPERS:
            raise EmulationError(f"there are 1 to {MOST_HELPERS} helpers, not {len(accesses)}")
        self._accesses, self._own = tuple(accesses), own
        self._stack = ExitStack()
        self._guard = ExitOnSignals()
        self._links: list[MahimahiLink] = []
        self.helpers: list[HelperHost] = []

    def _start(self) -> None:
        stale.remove_stale()
        self._guard.begin()
        self.instance = stale.Instance()
        self._stack.callback(self.instance.close)
        self.directory = self.instance.directory
        self.requestor, self.server, self.air = (
            self.instance.namespace(name) for name in ("requestor", "server", "air")
        )
        for host in (self.requestor, self.server):
            with host.entered():
                netns.write_sysctls(netns.HOST_SYSCTLS)
        netns.use_cubic([self.requestor, self.server])
        hosts.add_address(self.server, *SERVER_ADDRESSES)
        self.air.ip("link", "add", _BRIDGE, "type", "bridge")
        self.air.ip("link", "set", _BRIDGE, "up")
        self._plug(self.requestor, _REQUESTOR, "requestor")
        self._launch_all()

    def close(self) -> None:
        with uninterrupted():
            for link in self._links:
                link.stop()
            self._stack.close()
            for link in self._links:
                link.wait()
            self._links.clear()
            self._guard.end()

    @contextmanager
    def at_home(self) -> Iterator[None]:
        """Give the requestor a fast network of its own while the block runs."""
        hosts.connect(
            End(self.requestor, "home0", "198.51.109.2/30"),
            End(self.server, "home", "198.51.109.1/30"),
        )
        way = ("default", "via", "198.51.109.1", "metric", "1")
        self.requestor.ip("route", "add", *way)
        try:
            yield
        finally:
            self.requestor.ip("link", "del", "home0")

    def walk_away(self, number: int) -> None:
        """Take a helper (from 0) out of the link's range, silently."""
        self.air.ip("link", "set", f"helper-{number}", "down")

    def come_back(self, number: int) -> None:
        self.air.ip("link", "set", f"helper-{number}", "up")

    def _launch_all(self) -> None:
        accesses = [*self._accesses, *([self._own] if self._own is not None else [])]
        made = [self._launch(number, access) for number, access in enumerate(accesses)]
        for link in made:
            link.prepare()
        for link in made:
            link.start()
        for number, link in enumerate(made):
            link.finish()
            if number < len(self._accesses):
                self._make_helper(number, link)
            else:
                self._tether(number, link)

    def _launch(self, number: int, access: Access) -> MahimahiLink:
        isp = self.instance.namespace(f"isp-{number}")
        with isp.entered():
            netns.write_sysctls(netns.ROUTER_SYSCTLS)
        backbone = f"198.51.{110 + number}"
        hosts.connect(
            End(isp, "up0", f"{backbone}.2/30"),
            End(self.server, f"isp-{number}", f"{backbone}.1/30"),
        )
        subnet = _subnet(number)
        with netlink_in(isp.path) as netlink:
            netlink.route("add", dst=_ANYWHERE, gateway=f"{backbone}.1")
        with netlink_in(self.server.path) as netlink:
            netlink.route("add", dst=subnet, gateway=f"{backbone}.2")
        directory = self.directory / f"uplink-{number}"
        directory.mkdir(mode=0o755)
        link = launch(access, isp, subnet, directory)
        self._links.append(link)
        self.instance.add_session(link.pid)
        return link

    def _make_helper(self, number: int, link: MahimahiLink) -> None:
        name = self.instance.namespace_name(f"helper-{number}")
        helper = Namespace.attach(name, link.phone_pid)
        # Mahimahi's innermost namespace is a router; a helper is a host with an address of its own.
        (default,) = json.loads(helper.ip("-j", "route", "show", "default"))
        uplink = default["dev"]
        helper.sysctl("net.ipv4.ip_forward", 0)
        helper.ip("addr", "flush", "dev", uplink)
        helper.ip("addr", "add", f"192.168.{100 + number}.1/32", "dev", uplink)
        helper.ip("route", "add", "default", "dev", uplink)
        address = f"192.168.77.{number + 1}"
        self._plug(helper, address, f"helper-{number}")
        self.helpers.append(HelperHost(helper, address, link))

    def _tether(self, number: int, link: MahimahiLink) -> None:
        """Connect the requestor to its own phone, a router whose uplink is the emulated link."""
        phone = Namespace.attach(self.instance.namespace_name("phone"), link.phone_pid)
        near, far = (_subnet(number).replace(".0/24", f".{last}") for last in (2, 1))
        hosts.connect(End(self.requestor, "lte0", f"{near}/24"), End(phone, "tether", f"{far}/24"))
        self.requestor.ip("route", "add", "default", "via", far)

    def _plug(self, host: Namespace, address: str, port: str) -> None:
        hosts.connect(End(host, LINK, f"{address}/24"), End(self.air, port))
        self.air.ip("link", "set", port, "master", _BRIDGE, "up")


def _subnet(number: int) -> str:
    return f"192.168.{100 + number}.0/24"


__all__ = ["LINK", "SERVER", "HelperHost", "Neighbourhood"]

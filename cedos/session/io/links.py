"""The local interfaces that lead to an address, their kinds, and changes of them (rtnetlink).

Every connection of a session is bound to one interface, so the routing table's own preference does
not count: an interface is an egress if a route leads through it, whatever its metric. Where the kernel
itself would go through a tunnel (a VPN) or stay inside the host, that is the only one: a session
never goes around a VPN. An address that leads by way of a helper (`cedos.host.steer.sharing`) is an
egress of its own, beside that of its interface.
"""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from ipaddress import ip_address
from typing import Final

from cedos import config
from cedos.errors import ConfigError, HostError
from cedos.kernel.interface_kind import (
    TUNNEL_KINDS,
    HardwareSource,
    Identity,
    MeteredWord,
    Sysfs,
    announced_metered,
    carriers,
    guess,
    identify,
    is_translator,
)
from cedos.kernel.netlink import NETLINK_ROUTE, NetlinkListener, Requester, messages
from cedos.kernel.policy_routing import (
    RTN_LOCAL,
    SHARING_PROTOCOL,
    SeenRoute,
    lookup_request,
    parse_route,
)
from cedos.kernel.rtnetlink import (
    FAMILIES,
    GROUP_IPV4_ADDRESS,
    GROUP_IPV4_ROUTE,
    GROUP_IPV6_ADDRESS,
    GROUP_IPV6_ROUTE,
    GROUP_LINK,
    RTM_GETADDR,
    RTM_GETLINK,
    RTM_GETROUTE,
    Link,
    LinkAddress,
    addresses_request,
    links_request,
    parse_address,
    parse_link,
)
from cedos.model import Address, NetworkKind, NetworkOverride

_SYSFS: Final = Sysfs()


def user_overrides() -> Mapping[str, NetworkOverride]:
    """Return the user's settings of interfaces, those of the daemon, if this program may read them."""
    try:
        return config.load().network_overrides()
    except ConfigError:  # the daemon says what is wrong with it
        return {}


class NetworkIdentifier:
    """The identifier of networks as the daemon does it: by the user's word, driver or name.

    `certain`: the hardware of the last one could be read.
    """

    def __init__(
        self, overrides: Mapping[str, NetworkOverride], hardware: HardwareSource = _SYSFS
    ) -> None:
        self._overrides = overrides
        self._hardware = hardware
        self._known: dict[tuple[Link, ...], Identity] = {}
        self.certain = True

    def identify(self, link: Link, links: Mapping[int, Link]) -> Identity:
        """Return an interface's kind; one that the daemon ignores (a VPN) may be used, too.

        `links`: all links by index.
        """
        beneath = carriers(link, links, self._hardware)
        key = (link, *(each for each, _ in beneath))
        found = self._known.get(key)
        self.certain = True
        if found is None:
            hardware = self._hardware.look_up(link)
            found = identify(link, hardware, self._overrides, beneath, leads_out=True)
            if found is None:
                kind = guess(link, hardware, beneath, leads_out=True) or NetworkKind.ETHERNET
                found = Identity(link.name, kind)
            self.certain = all(each.known for each in (hardware, *(its for _, its in beneath)))
            if self.certain:
                self._known[key] = found
        return found


_GROUPS: Final = (
    GROUP_LINK,
    GROUP_IPV4_ADDRESS,
    GROUP_IPV4_ROUTE,
    GROUP_IPV6_ADDRESS,
    GROUP_IPV6_ROUTE,
)
_LOOPBACK_INDEX: Final = 1


@dataclass(frozen=True, slots=True)
class Egress:
    """An interface that leads somewhere, with the own addresses that packets may have there.

    `came_s` is when its link came up, by the loop's clock; if it was up before, a time long ago.
    `source`: connections are bound to this address, from which a helper leads on; empty: to none.
    `leaving`: its helper leaves, and nothing new is sent there.
    """

    interface: str
    index: int
    addresses: frozenset[str]
    kind: NetworkKind
    metered: bool
    came_s: float = float("-inf")
    source: str = ""
    leaving: bool = False

    @property
    def name(self) -> str:
        """The key of its paths: the interface's name, and the address where that leads elsewhere."""
        return f"{self.interface}/{self.source}" if self.source else self.interface


class EgressReader:
    """A reader of the routes of this thread's network namespace; it blocks for a moment.

    `certain`: each of the last egresses is known; else some count as metered until they are.
    HostError: the kernel has no rtnetlink.
    """

    def __init__(self, identifier: NetworkIdentifier | None = None) -> None:
        self._identifier = identifier or NetworkIdentifier(user_overrides())
        self._requester = Requester(NETLINK_ROUTE)
        self.certain = True

    def egresses(self, destination: Address) -> tuple[Egress, ...]:
        """Return the interfaces that lead to `destination`; empty where none does.

        HostError: the kernel does not answer.
        """
        self.certain = True
        try:
            return self._egresses(destination)
        except OSError as error:
            raise HostError(f"rtnetlink does not answer: {error.strerror or error}") from error

    def has_own(self, destination: Address) -> bool:
        """Return whether a specific route or a tunnel leads there, or it is this host. As above."""
        try:
            route = self._route(destination, None)
            if route is None:
                return False
            if route.index == _LOOPBACK_INDEX or route.destination.prefixlen:
                return True
            return any(link.index == route.index for link in self._vpns())
        except OSError as error:
            raise HostError(f"rtnetlink does not answer: {error.strerror or error}") from error

    def has_tunnel(self) -> bool:
        """Return whether this host has a VPN that is up. Raises as above."""
        try:
            return any(link.carries for link in self._vpns())
        except OSError as error:
            raise HostError(f"rtnetlink does not answer: {error.strerror or error}") from error

    def carrying(self) -> dict[int, bool]:
        """Return, by interface index, whether its link has a carrier. Raises as above."""
        try:
            return {link.index: link.carries for link in self._links()}
        except OSError as error:
            raise HostError(f"rtnetlink does not answer: {error.strerror or error}") from error

    def _egresses(self, destination: Address) -> tuple[Egress, ...]:
        links = {link.index: link for link in self._links()}
        own, shared = self._addresses(destination.version)
        # A VPN or this host itself: no other way counts. Else every link that has a route there.
        usual = links.get(self._index(destination, None) or 0)
        if usual is not None and (usual.loopback or usual in self._vpns()):
            candidates, shared = [usual], []
        else:
            candidates = [link for link in links.values() if not link.loopback]
        direct = [
            self._egress(link, links, own.get(link.index, set()))
            for link in candidates
            # An egress has a carrier and an address, and the kernel's route over this link exists (a
            # look-up with the link as output interface).
            if link.carries
            and (link.index in own or link.loopback)
            and (link is usual or self._index(destination, link.index) == link.index)
        ]
        # An address that leads by a helper has a rule of its own: look up from this source.
        by_helpers = [
            Egress(
                links[each.index].name,
                each.index,
                frozenset({str(each.interface.ip)}),
                NetworkKind.HELPER,
                metered=True,
                source=str(each.interface.ip),
                leaving=not each.preferred,
            )
            for each in shared
            if each.index in links
            and links[each.index].carries
            and self._index(destination, None, each.interface.ip) == each.index
        ]
        return (*direct, *by_helpers)

    def _egress(self, link: Link, links: Mapping[int, Link], addresses: set[str]) -> Egress:
        identity = self._identifier.identify(link, links)
        self.certain = self.certain and self._identifier.certain
        try:
            announced = announced_metered(link.name, link.index)
        except OSError:  # no descriptor is left to find it out
            announced, self.certain = True, False
        metered = identity.is_metered(
            map(ip_address, addresses), MeteredWord.GUESSED_YES if announced else None
        )
        return Egress(link.name, link.index, frozenset(addresses), identity.kind, metered)

    def _vpns(self) -> list[Link]:
        """Return the tunnels, without 464XLAT's and without ports of bridges (of virtual machines)."""
        tunnels = [each for each in self._links() if each.kind in TUNNEL_KINDS and not each.master]
        own = self._addresses(4)[0] if tunnels else {}
        return [
            each
            for each in tunnels
            if not is_translator(each, map(ip_address, own.get(each.index, ())))
        ]

    def _links(self) -> list[Link]:
        answers = map(parse_link, self._requester.dump(RTM_GETLINK, links_request()))
        return [link for link in answers if link is not None]

    def _addresses(self, version: int) -> tuple[dict[int, set[str]], list[LinkAddress]]:
        """Return the addresses of an IP version by interface, apart from those that lead by helpers."""
        found: dict[int, set[str]] = {}
        shared: list[LinkAddress] = []
        request = addresses_request(FAMILIES[version])
        for address in map(parse_address, self._requester.dump(RTM_GETADDR, request)):
            if address is None or address.interface.version != version:
                continue
            if address.protocol == SHARING_PROTOCOL:
                shared.append(address)
            else:
                found.setdefault(address.index, set()).add(str(address.interface.ip))
        return found, shared

    def _index(
        self, destination: Address, through: int | None, local: Address | None = None
    ) -> int | None:
        """Return the index of the interface a packet would leave by; None: no route."""
        route = self._route(destination, through, local)
        return None if route is None else route.index

    def _route(
        self, destination: Address, through: int | None, local: Address | None = None
    ) -> SeenRoute | None:
        """Return the route that a packet would take; one to an own address is loopback's."""
        try:
            answers = self._requester.ask(
                RTM_GETROUTE, lookup_request(destination, local, through), flags=0
            )
        except TimeoutError:
            raise
        except OSError:
            return None  # no route: ENETUNREACH, EHOSTUNREACH, EACCES, EINVAL, ENODEV
        for answer in answers:
            if (route := parse_route(answer, (RTN_LOCAL,))) is not None:
                # The kernel reports it with the interface that has the address.
                return replace(route, index=_LOOPBACK_INDEX)
            if (route := parse_route(answer)) is not None:
                # An address of another host that leads to the loopback: steering refuses it.
                return None if route.index == _LOOPBACK_INDEX else route
        return None

    def close(self) -> None:
        self._requester.close()


class EgressTable:
    """The egresses of the loop's namespace; `changed` is called after each burst of messages.

    HostError: the kernel has no rtnetlink, or does not answer.
    """

    def __init__(self, changed: Callable[[], None]) -> None:
        self._changed = changed
        self._loop = asyncio.get_running_loop()
        self._scheduled = False
        self._known: dict[Address, tuple[Egress, ...]] = {}
        self._came_s: dict[int, float] = {}
        self._reader = EgressReader()
        self._listener = NetlinkListener(
            NETLINK_ROUTE, _GROUPS, self._receive, self._invalidate, 1 << 20
        )
        try:
            # A link that has a carrier already must not count as new at the first message about it.
            self._carry = self._reader.carrying()
        except HostError:
            self.close()
            raise

    def egresses(self, destination: str) -> tuple[Egress, ...]:
        """Return the interfaces that lead to `destination` (IPv4, or IPv6 without a scope) now."""
        address = ip_address(destination.partition("%")[0])
        if (known := self._known.get(address)) is not None:
            return known
        found = tuple(
            replace(egress, came_s=self._came_s.get(egress.index, egress.came_s))
            for egress in self._reader.egresses(address)
        )
        if self._reader.certain:
            self._known[address] = found
        return found

    def _receive(self, datagram: bytes) -> None:
        for link in map(parse_link, messages(datagram)):
            if link is not None:
                if link.carries and not self._carry.get(link.index):
                    self._came_s[link.index] = self._loop.time()
                self._carry[link.index] = link.carries
        self._invalidate()

    def _invalidate(self) -> None:
        self._known.clear()
        if not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._tell)

    def _tell(self) -> None:
        self._scheduled = False
        self._changed()

    def close(self) -> None:
        self._listener.close()
        self._reader.close()

"""The helper's side: the kernel forwards from each admitted requestor to its gateway, behind NAT."""

from collections.abc import Mapping
from contextlib import suppress
from ipaddress import IPv4Address
from typing import Final

from cedos.errors import HostError, SteeringError
from cedos.host.steer.journal import JournalKeeper
from cedos.host.steer.journal_records import SHARING, InterfaceForwardingRecord, current_place
from cedos.host.steer.kernel import forwarding_filter
from cedos.host.steer.kernel.forwarding_filter import ForwardedRequestor, ForwardingLinks
from cedos.host.steer.kernel.iptables import Counted
from cedos.host.steer.sharing.kernel import (
    MOST_NEIGHBOURS,
    PROVIDERS,
    SharingKernel,
    SharingRole,
    host,
)
from cedos.kernel.policy_routing import SHARING_PROTOCOL, Route, Rule, SeenRoute
from cedos.kernel.rtnetlink import Neighbour, interface_name
from cedos.model import Address

NOTHING: Final = Counted(0, 0)
_ROLE: Final = SharingRole.HELP


class Forwarding:
    """The forwarding of this host for its neighbours, until it is undone. Use it from one thread.

    Where nothing but that is forwarded, two things see to it: the packet filter, and policy rules. If
    another program flushes one of them, or renames an interface, the other stands until `check`.

    Args:
        kernel: of the host's namespace.
        journal: gets the way back before each change.
        shared: the interface of the link that requestors are on.
        limit_bytes: of IP, for all requestors together, both directions; beyond it the kernel resets
            their connections.
        uplink: the interface that leads to gateways; None: that of the preferred default route which
            does not go by the shared link.

    Raises:
        HostError: there is no such interface, or no uplink.
        SteeringError: the journal cannot be written.
        OSError: the kernel refuses, as without CAP_NET_ADMIN.
    """

    def __init__(
        self,
        kernel: SharingKernel,
        journal: JournalKeeper,
        shared: str,
        *,
        limit_bytes: int,
        uplink: str | None = None,
    ) -> None:
        self._kernel, self._journal = kernel, journal
        self._shared = kernel.link(shared)
        self._way = _way_out(kernel, self._shared.index, uplink)
        names = {link.index: link.name for link in kernel.links()}
        self.uplink = names[self._way.index]
        self._requestors: dict[int, ForwardedRequestor] = {}
        self._names = {self._shared.index: shared, self._way.index: self.uplink}
        self._journal.append(SHARING)
        # Packets that arrive at either interface are forwarded, though only those of requestors.
        closed = {index: name for index, name in self._names.items() if not kernel.forwards(name)}
        self._links = ForwardingLinks(shared, self.uplink, tuple(closed))
        self._closing = [
            Rule(4, _ROLE.preference + 3, None, arrival=name) for name in closed.values()
        ]
        forwarding_filter.put_quota(limit_bytes)
        forwarding_filter.put_in((), self._links)
        kernel.add_rules(self._closing)
        for index, name in closed.items():
            self._journal.append(InterfaceForwardingRecord(name, index, current_place()))
            kernel.forward(name, True)

    def hardware_address(self, requestor: Address) -> bytes | None:
        """Return the hardware address that the kernel knows of a host on the shared link."""
        return next(
            (
                each.hardware_address
                for each in self._kernel.neighbours()
                if each.address == requestor and each.index == self._shared.index
            ),
            None,
        )

    def admit(self, requestor: ForwardedRequestor) -> None:
        """Forward for one more requestor; one with the same address is replaced.

        SteeringError: there are too many, or its address is one that this host uses, or another host's.
        """
        self.dismiss(requestor.address)
        self._must_be_free(requestor)
        free = set(range(MOST_NEIGHBOURS)) - self._requestors.keys()
        if not free:
            raise SteeringError(f"no more than {MOST_NEIGHBOURS} requestors are forwarded for")
        slot = min(free)
        # The counter first, the way next, and the filter that opens it last.
        forwarding_filter.put_counter(slot)
        self._requestors[slot] = requestor
        try:
            self._kernel.add_neighbour(self._neighbour(requestor))
            self._kernel.add_routes(self._routes(slot, requestor))
            self._kernel.add_rules(_rules(slot, requestor))
            forwarding_filter.put_in(self._requestors.items(), self._links)
        except BaseException:
            self.dismiss(requestor.address)
            raise

    def _must_be_free(self, requestor: ForwardedRequestor) -> None:
        """Refuse an address that this host's own packets reach: they would go to the requestor."""
        address, kernel = requestor.address, self._kernel
        if any(each.interface.ip == address for each in kernel.addresses()):
            raise SteeringError(f"{address} is an address of this host")
        way = kernel.lookup(address)
        elsewhere = (
            way is not None and way.destination.prefixlen and way.index != self._shared.index
        )
        if elsewhere or any(address in each for each in PROVIDERS):
            raise SteeringError(f"{address} is an address of another network")
        others = {each.hardware_address for each in kernel.neighbours() if each.address == address}
        if others - {requestor.hardware_address}:
            raise SteeringError(f"{address} is the address of another host")

    def dismiss(self, address: IPv4Address) -> None:
        """Forward nothing more from or to a requestor; none with this address is fine."""
        slots = [slot for slot, each in self._requestors.items() if each.address == address]
        for slot in slots:
            requestor = self._requestors[slot]
            others = [each for each in self._requestors.items() if each[0] != slot]
            forwarding_filter.put_in(others, self._links)
            forwarding_filter.remove_counter(slot)
            self._kernel.delete_rules(_rules(slot, requestor))
            self._kernel.delete_routes(self._routes(slot, requestor))
            self._kernel.delete_neighbour(self._neighbour(requestor))
            del self._requestors[slot]  # what is refused before is tried again

    def check(self) -> None:
        """Have the interfaces forward nothing more, and raise SteeringError, if something has changed.

        The count of what was forwarded may have gone with it: nothing is put back.
        """
        if why := self._describe_change():
            for index in self._links.closed:
                with suppress(OSError):  # what is left is told once all is undone
                    if name := self._kernel.forwarding_name(index):
                        self._kernel.forward(name, False)
            raise SteeringError(f"another program has changed {why}: nothing is forwarded any more")

    def _describe_change(self) -> str:
        for index, name in self._names.items():
            if interface_name(index) != name:
                return f"the interface {name}"
        rules = [*self._closing]
        for slot, requestor in self._requestors.items():
            rules += _rules(slot, requestor)
        if not set(rules) <= set(self._kernel.own_rules(_ROLE)):
            return "the policy rules (`ip rule`)"
        with suppress(OSError):
            if forwarding_filter.stands(self._requestors.items(), self._links):
                return ""
        return "the packet filter (iptables)"

    def read_carried(self) -> Mapping[IPv4Address, Counted]:
        """Return what the kernel forwarded for each requestor: IP, both directions."""
        counted = forwarding_filter.read_carried()
        return {each.address: counted.get(slot, NOTHING) for slot, each in self._requestors.items()}

    def _neighbour(self, requestor: ForwardedRequestor) -> Neighbour:
        return Neighbour(
            self._shared.index, requestor.address, requestor.hardware_address, SHARING_PROTOCOL
        )

    def _routes(self, slot: int, requestor: ForwardedRequestor) -> list[Route]:
        table, way = _ROLE.table(slot), self._way
        return [
            Route(table, host(requestor.address), self._shared.index),
            Route(table, host(requestor.gateway), way.index, way.gateway, way.metrics),
        ]


def _rules(slot: int, requestor: ForwardedRequestor) -> list[Rule]:
    table, first = _ROLE.table(slot), _ROLE.preference
    address, gateway = host(requestor.address), host(requestor.gateway)
    return [
        Rule(4, first, table, destination=address),
        Rule(4, first + 1, table, source=address, destination=gateway),
        Rule(4, first + 2, None, source=address),
    ]


def _way_out(kernel: SharingKernel, shared: int, uplink: str | None) -> SeenRoute:
    routes = [each for each in kernel.default_routes() if each.index != shared]
    if uplink is not None:
        index = kernel.link(uplink).index
        routes = [each for each in routes if each.index == index]
    if not routes:
        where = f"by {uplink}" if uplink else "by another interface than the shared link"
        raise HostError(f"there is no default route {where}: nothing can be shared")
    return routes[0]

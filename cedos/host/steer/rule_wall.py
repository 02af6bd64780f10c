"""The wall of users' rules: at each interface the places where programs may begin nothing over it.

It holds for what routing does not lead (`rule_filter`). As with routing, a network's own subnet of
private addresses is an exception from rules for more than that, and so is what never leaves a link.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from ipaddress import ip_network
from typing import Final

from cedos.errors import HostError
from cedos.host.steer.kernel.interface import SteeringKernel
from cedos.host.steer.kernel.rule_filter import element, later_parts, own_address
from cedos.host.steer.routing_rules import contains, own_subnets
from cedos.kernel.policy_routing import Prefix
from cedos.model import Network

# Link-local addresses; groups that no router forwards, or (239.255) none beyond a site, for what is found
# there: printers, helpers (SSDP, CBSP); the broadcast address.
_ON_LINK: Final = tuple(
    map(
        ip_network,
        (
            *("169.254.0.0/16", "224.0.0.0/24", "239.255.0.0/16", "255.255.255.255/32"),
            *("fe80::/10", "ff02::/16"),
        ),
    )
)


@dataclass(frozen=True, slots=True)
class _Place:
    """A place where networks (names) are forbidden, and its key in the kernel's tables."""

    prefix: Prefix
    port: int | None
    names: frozenset[str]
    key: bytes


class RuleWall:
    """The wall as it is wanted, and as the kernel has it. Errors: OSError, HostError."""

    def __init__(self, kernel: SteeringKernel) -> None:
        self._kernel = kernel
        self._networks: Sequence[Network] = ()
        self._places: dict[tuple[str, int | None], _Place] = {}
        self._stands: dict[int, Mapping[bytes, bool | None]] = {}
        self._behind = False

    def forbid(self, news: Mapping[tuple[str, int | None], Sequence[str] | None]) -> None:
        """Forbid networks (names) at places (prefix, port); None: forget a place."""
        for place, names in news.items():
            if names is None:
                self._places.pop(place, None)
            else:
                prefix, port = ip_network(place[0], strict=False), place[1]
                key = element(prefix, port)
                self._places[place] = _Place(prefix, port, frozenset(names), key)
        self.apply()

    def follow(self, networks: Sequence[Network]) -> None:
        """Take the networks, with their interfaces and addresses."""
        self._networks = networks
        self.apply()

    def repair(self) -> None:
        """Do what was refused; put back what others took out."""
        if self._behind:
            self.apply()
        if self._stands:
            self._kernel.put_back_rules()

    def apply(self) -> None:
        """Bring the kernel in line."""
        self._behind = True
        wanted = self._wanted_entries()
        refused = None
        for index in [*self._stands.keys() - wanted.keys(), *wanted]:
            try:
                self._bring(index, wanted.get(index, {}))
            except (OSError, HostError) as error:  # the others have theirs
                refused = error
        if refused is not None:
            raise refused
        self._behind = False

    def close(self) -> None:
        """Take the wall down. Errors: OSError."""
        self._places.clear()
        self.apply()

    def _bring(self, index: int, wanted: Mapping[bytes, bool]) -> None:
        before = self._stands.get(index, {})
        # Own addresses and what is forbidden first.
        news = [each for each in wanted.items() if before.get(each[0]) is not each[1]]
        changes = sorted(news, key=lambda each: not each[1])
        gone = [(key, None) for key in before.keys() - wanted.keys()]
        if changes or gone:
            # Should it be refused, any part of it may stand.
            self._stands[index] = dict.fromkeys((*before, *wanted))
            self._kernel.forbid(index, (*changes, *gone))
        self._stands[index] = dict(wanted)
        if not wanted:
            del self._stands[index]

    def _wanted_entries(self) -> dict[int, dict[bytes, bool]]:
        """Return by interface its addresses, what is forbidden there, and exceptions from that."""
        names: defaultdict[int, set[str]] = defaultdict(set)
        addresses: defaultdict[int, dict[bytes, bool]] = defaultdict(dict)
        for network in self._networks:
            for at in (network, network.translator):
                if at is not None:
                    names[at.index].add(network.name)
                    addresses[at.index] |= {own_address(each.ip): True for each in at.addresses}
        subnets = {**own_subnets(4, self._networks), **own_subnets(6, self._networks)}
        found = {}
        for index, own in names.items():
            places = {each.key: own <= each.names for each in self._places.values()}
            if any(places.values()):
                near = [*_ON_LINK, *(each for each, of in subnets.items() if of.name in own)]
                parts = {
                    later_parts(each.prefix): True
                    for each in self._places.values()
                    if each.port is not None and own <= each.names
                }
                forbidden = {**self._exceptions(near, own), **places, **parts}
                found[index] = {**addresses[index], **forbidden}
        return found

    def _exceptions(self, near: Sequence[Prefix], own: set[str]) -> dict[bytes, bool]:
        """Return the exceptions from what is forbidden around prefixes, by the ports that it is about.

        A port counts before any prefix. So what is said of parts of such a prefix is said for it, too.
        """
        found: dict[bytes, bool] = {}
        wide = [
            each
            for each in self._places.values()
            if each.prefix.prefixlen < each.prefix.max_prefixlen and own <= each.names
        ]
        for prefix in near:
            version = prefix.version
            around = [each for each in wide if each.prefix.version == version]
            inside = [
                each
                for each in self._places.values()
                if each.port is None
                and each.prefix.version == version
                and (each.prefix == prefix or contains(prefix, each.prefix))
            ]
            for port in {each.port for each in around if contains(each.prefix, prefix)}:
                found[element(prefix, port)] = False
                if port is not None:
                    found[later_parts(prefix)] = False
                    found |= {element(each.prefix, port): own <= each.names for each in inside}
        return found

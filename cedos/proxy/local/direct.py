"""Destinations that go direct: hosts nearby, and those of a user's rules (`cedos rule`)."""

from collections.abc import Awaitable, Callable, Sequence
from ipaddress import IPv4Network, IPv6Network, ip_address, ip_network
from typing import Final

from cedos.model import Address

NEAR: Final[tuple[IPv4Network | IPv6Network, ...]] = tuple(
    map(
        ip_network,
        (
            *("10.0.0.0/8", "127.0.0.0/8", "169.254.0.0/16", "172.16.0.0/12", "192.168.0.0/16"),
            *("::1/128", "fc00::/7", "fe80::/10"),
            # This host once more, and addresses that are no single host's.
            *("0.0.0.0/8", "::/128", "224.0.0.0/3", "ff00::/8"),
        ),
    )
)
_LOCAL_NAMES: Final = (".local", ".localhost", ".lan", ".home.arpa", ".internal")


def is_near(host: str) -> bool:
    """Tell whether a host is nearby: the gateway would not find it, or would find another one."""
    try:
        address = ip_address(host.partition("%")[0])
    except ValueError:
        name = host.rstrip(".").lower()
        return "." not in name or name.endswith(_LOCAL_NAMES)
    return any(address.version == each.version and address in each for each in NEAR)


LookUp = Callable[[str, int], Awaitable[Sequence[str]]]
"""Returns the addresses of a host, for a port, by this host's own resolver; none if it finds none."""


class RuleBook:
    """A user's rules: connections and datagrams under a rule go direct. This book has none."""

    async def find(self, _host: str, _port: int, _look_up: LookUp) -> bool:
        """Tell whether a rule is about this host and port; may wait for a name."""
        return False

    def covers(self, _host: str, _port: int, _look_up: LookUp) -> bool:
        """Tell the same, as far as that is known now."""
        return False

    def names(self, _name: str) -> bool:
        """Tell whether a rule is about this name, or about a domain above it."""
        return False

    def learn(self, _name: str, _addresses: Sequence[Address]) -> None:
        """Note what a program was answered for such a name: the rule is about these addresses, too."""

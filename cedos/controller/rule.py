"""A user's rule, which restricts the networks of connections to some hosts."""

import re
from functools import lru_cache
from ipaddress import IPv4Network, IPv6Network, ip_address, ip_network
from typing import Annotated, Final

import msgspec
from msgspec import Meta

from cedos.model import NetworkKind

# The most addresses of a name and its subdomains. The latest answers of resolvers stay.
MOST_ADDRESSES: Final = 256
# The word for all metered networks.
METERED: Final = "metered"
# Words that stand for several networks: all metered ones, or all of a kind (`wifi`).
GROUPS: Final = (METERED, *NetworkKind)
# (With digits alone at the end it is an address that was mistyped: 192.0.2.999.)
_NAME: Final = re.compile(
    r"(?=.{1,253}\Z)(?:[a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?\.)*(?![0-9]+\Z)[a-z0-9_-]{1,63}"
)
_BROADCAST: Final = ip_address("255.255.255.255")
_Network = Annotated[str, Meta(min_length=1, max_length=64)]


def is_host_name(text: str) -> bool:
    return _NAME.fullmatch(text) is not None


def refuse_zone(destination: str) -> None:
    """Refuse an address such as fe80::1%lte0. ValueError."""
    plain, zone, rest = destination.partition("%")
    if zone:
        plain += "".join(rest.partition("/")[1:])
        raise ValueError(f"{destination} has a zone, which no packet has. {plain} would be right")


def _is_one_hosts(address: str) -> bool:
    """Return whether packets have an address, to one host: no name takes other programs' broadcasts."""
    found = ip_address(address)
    return not found.is_multicast and found != _BROADCAST and "%" not in address


# (Each answer to a look-up is held against all rules.)
@lru_cache(maxsize=256)
def _prefix(host: str) -> IPv4Network | IPv6Network | None:
    try:
        return ip_network(host, strict=False)
    except ValueError:
        return None


class RuleRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Connections to `host` use only the networks `only`, or never those of `never`.

    Both lists have names of networks and words of `GROUPS`.
    `host` is an address, a prefix or a name, which includes its subdomains. `addresses` are those
    of the name. `port` None: all ports.
    """

    host: Annotated[str, Meta(min_length=1, max_length=253)]
    port: Annotated[int, Meta(ge=1, le=65535)] | None = None
    only: tuple[_Network, ...] = ()
    never: tuple[_Network, ...] = ()
    addresses: Annotated[tuple[str, ...], Meta(max_length=MOST_ADDRESSES)] = ()

    def __post_init__(self) -> None:
        if bool(self.only) == bool(self.never):
            raise ValueError("a rule needs either `only` or `never`, with a network")
        refuse_zone(self.host)
        prefix = self.prefix
        if isinstance(prefix, IPv6Network) and prefix.network_address.ipv4_mapped is not None:
            raise ValueError(
                f"{self.host}: programs reach it by IPv4. Its IPv4 form would be right"
            )
        if prefix is None and not is_host_name(self.host):
            raise ValueError(
                f'host must be a name, an address or a prefix such as 198.51.100.0/24, not "{self.host}"'
            )
        own = tuple(each for each in self.addresses if _is_one_hosts(each))
        if own != self.addresses:
            msgspec.structs.force_setattr(self, "addresses", own)

    @property
    def prefix(self) -> IPv4Network | IPv6Network | None:
        """Return the address or prefix; None: the host is a name."""
        return _prefix(self.host)

    def allows(self, network: str, kind: NetworkKind, *, metered: bool) -> bool:
        """Return whether connections may use a network, given by its name and kind."""
        named = {network, kind.value, *((METERED,) if metered else ())}
        return bool(self.only) == (not named.isdisjoint(self.only or self.never))

    @property
    def words(self) -> str:
        """Return `never lte0` or `only wlan0`."""
        which = self.only or self.never
        return f"{'only' if self.only else 'never'} {' or '.join(which)}"

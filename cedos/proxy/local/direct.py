"""Destinations that go direct: hosts nearby, names of /etc/hosts, and a user's rules (`cedos rule`)."""

from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from ipaddress import IPv4Network, IPv6Network, ip_address, ip_network
from pathlib import Path
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
    """Tell whether a host is nearby, so that the gateway would not find it, or would find another one."""
    try:
        address = ip_address(host.partition("%")[0])
    except ValueError:
        name = host.rstrip(".").lower()
        return "." not in name or name.endswith(_LOCAL_NAMES)
    return any(address.version == each.version and address in each for each in NEAR)


# Returns the addresses of a host for a port, by this host's own resolver, for a user; empty: it finds
# none.
LookUp = Callable[[str, int, int], Awaitable[Sequence[str]]]


class RuleBook:
    """A user's rules: connections and datagrams under a rule go direct. This book has none."""

    @property
    def stands(self) -> bool:
        """Tell whether there are rules."""
        return False

    async def find(self, _host: str, _port: int, _user: int, _look_up: LookUp) -> bool:
        """Tell whether a rule is about this host and port; may wait for a name and for the daemon."""
        return False

    def names(self, _name: str) -> bool:
        """Tell whether a rule is about this name, or about a domain above it."""
        return False

    def learn(self, _name: str, _leads_to: Sequence[Address | str], _user: int) -> None:
        """Note the answer that a user's program got: the rule is about these addresses and names, too."""


_HOSTS: Final = Path("/etc/hosts")
_MOST_BYTES: Final = 32 << 20  # lists of refused names are long


class LocalNames:
    """Names of /etc/hosts, which a gateway does not find, or finds as another host.

    The file is read again when it has changed.
    """

    def __init__(self, hosts: Path = _HOSTS) -> None:
        self._hosts = hosts
        self._stamp: tuple[int, int, int] | None = None
        self._known: dict[str, list[str]] = {}

    def find(self, name: str) -> list[str]:
        """Return the addresses of a name; none: it is not there."""
        self._read()
        return self._known.get(_plain(name), [])

    def _read(self) -> None:
        try:
            status = self._hosts.stat()
            stamp = status.st_ino, status.st_mtime_ns, status.st_size
        except OSError:
            stamp = (0, 0, 0)
        if stamp == self._stamp:
            return
        self._stamp, self._known, text = stamp, {}, ""
        with suppress(OSError), self._hosts.open(encoding="utf-8", errors="replace") as opened:
            text = opened.read(_MOST_BYTES)
        for line in text.splitlines():
            address, *names = line.partition("#")[0].split() or [""]
            with suppress(ValueError):
                ip_address(address.partition("%")[0])
                for name in names:
                    self._known.setdefault(_plain(name), []).append(address)


def _plain(name: str) -> str:
    return name.rstrip(".").lower()

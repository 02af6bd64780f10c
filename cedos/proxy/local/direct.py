"""Destinations that go direct: hosts nearby, names of /etc/hosts, and a user's rules (`cedos rule`).

What the users' programs learn of destinations is kept in tables in which each user has a share.
"""

from collections.abc import Awaitable, Callable, Hashable, Sequence
from contextlib import suppress
from ipaddress import IPv4Network, IPv6Network, ip_address, ip_network
from pathlib import Path
from typing import Final, Generic, TypeVar

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


Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")


class UsersTable(Generic[Key, Value]):
    """A table that this host's users fill: beyond `most` entries the user who has most loses the oldest.

    What several have put lasts as long as one of them keeps it; the newest value counts.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._of_user: dict[int, dict[Key, None]] = {}  # the oldest first
        self._holders: dict[Key, dict[int, Value]] = {}  # the newest last

    def __contains__(self, key: Key) -> bool:
        return key in self._holders

    def __len__(self) -> int:
        return sum(map(len, self._of_user.values()))

    def get(self, key: Key) -> Value | None:
        holders = self._holders.get(key)
        return None if holders is None else next(reversed(holders.values()))

    def put(self, key: Key, value: Value, user: int) -> None:
        """Add or renew an entry for a user."""
        self._pop(key, user)
        self._of_user.setdefault(user, {})[key] = None
        self._holders.setdefault(key, {})[user] = value
        if len(self) > self._most:
            most, held = max(self._of_user.items(), key=lambda each: len(each[1]))
            self._pop(next(iter(held)), most)

    def pop(self, key: Key) -> None:
        """Remove what all users have put there, if anything."""
        for user in list(self._holders.get(key, ())):
            self._pop(key, user)

    def _pop(self, key: Key, user: int) -> None:
        if user not in self._holders.get(key, ()):
            return
        del self._holders[key][user], self._of_user[user][key]
        if not self._holders[key]:
            del self._holders[key]
        if not self._of_user[user]:
            del self._of_user[user]


# Returns the addresses of a host for a port, by this host's own resolver, for a user; empty: it finds
# none.
LookUp = Callable[[str, int, int], Awaitable[Sequence[str]]]


class RuleBook:
    """A user's rules: connections and datagrams under a rule go direct. This book has none."""

    async def find(self, _host: str, _port: int, _user: int, _look_up: LookUp) -> bool:
        """Tell whether a rule is about this host and port; may wait for a name, which a user asks for."""
        return False

    def covers(self, _host: str, _port: int, _user: int, _look_up: LookUp) -> bool:
        """Tell the same at once, by what is known now."""
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

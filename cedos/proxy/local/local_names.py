"""Names of /etc/hosts, which a gateway does not know, or knows as another host."""

from contextlib import suppress
from ipaddress import ip_address
from pathlib import Path
from typing import Final

_HOSTS: Final = Path("/etc/hosts")
_MOST_BYTES: Final = 32 << 20  # lists of refused names are long


class LocalNames:
    """The names in a file of hosts, which is read again when it has changed."""

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

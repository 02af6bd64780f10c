"""Names that this host knows without DNS: /etc/hosts, its own, and what nsswitch.conf(5) asks first.

Programs that look names up themselves find these there; a gateway would find another host, or none.
"""

import asyncio
import re
import socket
import time
from collections import OrderedDict
from contextlib import suppress
from ipaddress import ip_address
from pathlib import Path
from typing import Final

_HOSTS: Final = Path("/etc/hosts")
_SWITCH: Final = Path("/etc/nsswitch.conf")
_MOST_BYTES: Final = 32 << 20  # lists of refused names are long
_DNS: Final = frozenset({"dns", "resolve"})
# What these know is read here, has no dot, or ends with .local, which goes direct anyway.
_NOT_ASKED: Final = frozenset({"files", "mdns_minimal", "mdns4_minimal", "mdns6_minimal"})
_OWN: Final = "myhostname"
_ASK_S: Final = 1.0
_KEPT_S: Final = 30.0
_MOST_KEPT: Final = 1_024
_AT_ONCE: Final = 4
_NAME: Final = re.compile(r"[a-z0-9_][a-z0-9_.-]{0,252}")


class LocalNames:
    """The look-up of such names."""

    def __init__(self, hosts: Path = _HOSTS, switch: Path = _SWITCH) -> None:
        self._hosts, self._switch = hosts, switch
        self._stamp: tuple[int, int, int] | None = None
        self._known: dict[str, list[str]] = {}
        self._sources: list[str] = []
        self._kept: OrderedDict[str, tuple[float, list[str]]] = OrderedDict()
        self._asking = asyncio.Semaphore(_AT_ONCE)

    def known(self, name: str) -> list[str]:
        """Return the addresses of a name in /etc/hosts; none: it is not there."""
        self._read()
        return self._known.get(_plain(name), [])

    async def find(self, name: str) -> list[str]:
        """Return the addresses of a name by all sources that are asked before DNS."""
        if found := self.known(name):
            return found
        name = _plain(name)
        sources = [each for each in self._sources if each != _OWN or name == _own_name()]
        if not sources or not _NAME.fullmatch(name) or _is_address(name):
            return []
        kept = self._kept.get(name)
        if kept is None or kept[0] < time.monotonic():
            async with self._asking:
                kept = time.monotonic() + _KEPT_S, await _asked(sources, name)
            self._kept[name] = kept
            while len(self._kept) > _MOST_KEPT:
                self._kept.popitem(last=False)
        return kept[1]

    def _read(self) -> None:
        """Read the files again, if /etc/hosts has changed."""
        try:
            status = self._hosts.stat()
            stamp = status.st_ino, status.st_mtime_ns, status.st_size
        except OSError:
            stamp = (0, 0, 0)
        if stamp == self._stamp:
            return
        self._stamp, self._known = stamp, {}
        for line in _lines(self._hosts):
            address, *names = line.partition("#")[0].split() or [""]
            if _is_address(address):
                for name in names:
                    self._known.setdefault(_plain(name), []).append(address)
        self._sources = _before_dns(self._switch)


def _before_dns(switch: Path) -> list[str]:
    """Return the sources of hosts that have to be asked before DNS."""
    for line in _lines(switch):
        database, colon, sources = line.partition("#")[0].partition(":")
        if colon and database.strip() == "hosts":
            found: list[str] = []
            for each in re.sub(r"\[[^\]]*\]", " ", sources).split():
                if each in _DNS:
                    break
                if each not in _NOT_ASKED:
                    found.append(each)
            return found
    return []


async def _asked(sources: list[str], name: str) -> list[str]:
    """Return what getent(1) finds in these sources; none also if it takes long."""
    command = ("getent", "-s", f"hosts:{' '.join(sources)}")
    found: list[str] = []
    with suppress(OSError, TimeoutError):
        process = await asyncio.create_subprocess_exec(
            *command, "ahosts", name,
            stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL,
        )  # fmt: skip
        try:
            async with asyncio.timeout(_ASK_S):
                answer, _ = await process.communicate()
        except BaseException:
            with suppress(ProcessLookupError):
                process.kill()
            await process.wait()
            raise
        for line in answer.decode(errors="replace").splitlines():
            address = line.partition(" ")[0]
            if _is_address(address) and address not in found:
                found.append(address)
    return found


def _lines(file: Path) -> list[str]:
    try:
        with file.open(encoding="utf-8", errors="replace") as opened:
            return opened.read(_MOST_BYTES).splitlines()
    except OSError:
        return []


def _is_address(text: str) -> bool:
    with suppress(ValueError):
        ip_address(text.partition("%")[0])
        return True
    return False


def _plain(name: str) -> str:
    return name.rstrip(".").lower()


def _own_name() -> str:
    return _plain(socket.gethostname())

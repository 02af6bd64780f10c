"""Which DNS servers belong to which network: systemd-resolved where it runs, else resolv.conf."""

import asyncio
import contextlib
import ctypes
import os
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from ipaddress import ip_address
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol

from cedos.host.monitor.bus import BusError, SystemBus
from cedos.model import Address, Interface, address

RESOLV_CONF: Final = Path("/etc/resolv.conf")
_SERVICE = "org.freedesktop.resolve1"
_PATH = "/org/freedesktop/resolve1"
_MANAGER = "org.freedesktop.resolve1.Manager"
_PROPERTIES = "org.freedesktop.DBus.Properties"

# The search domains that were named so far, those that were named last at the end.
_MOST_DOMAINS: Final = 4096
_named: Final = OrderedDict[str, None]()

_IN_CLOSE_WRITE, _IN_MOVED_TO, _IN_CREATE = 0x08, 0x80, 0x100


@dataclass(frozen=True, slots=True)
class Resolvers:
    """DNS servers as the host knows them: per interface index, and those that name no interface."""

    by_index: Mapping[int, tuple[Address, ...]] = field(default_factory=dict)
    unassigned: tuple[Address, ...] = ()

    def of(
        self, index: int, addresses: Iterable[Interface], *, genuine: bool
    ) -> tuple[Address, ...]:
        """Return an interface's resolvers: by index if it is the host's own, else those on its link."""
        if genuine and index in self.by_index:
            return self.by_index[index]
        networks = [each.network for each in addresses]
        return tuple(
            server
            for server in self.unassigned
            if any(server in network for network in networks if network.version == server.version)
        )


class ResolverSource(Protocol):
    async def start(self, changed: Callable[[], None]) -> None: ...

    async def read(self) -> Resolvers:
        """Return the resolvers now; never raises."""

    async def close(self) -> None: ...


class ResolvConf(NamedTuple):
    """A file like /etc/resolv.conf: its servers as they are written, their addresses, the domains."""

    servers: tuple[str, ...] = ()
    addresses: tuple[Address, ...] = ()
    domains: frozenset[str] = frozenset()


def parse_resolv_conf(content: str) -> ResolvConf:
    servers: dict[str, Address] = {}
    domains: set[str] = set()
    for words in map(str.split, content.splitlines()):
        match words:
            case ["nameserver", server, *_]:
                with contextlib.suppress(ValueError):
                    servers[server] = address(ip_address(server).packed)
            case ["search" | "domain", *named]:
                domains |= {each.strip(".").lower() for each in named}
    addresses = tuple(dict.fromkeys(servers.values()))
    return ResolvConf(tuple(servers), addresses, frozenset(domains - {""}))


def resolv_conf(file: Path = RESOLV_CONF) -> ResolvConf:
    """Return what the file says, read anew if it has changed; nothing where it cannot be read."""
    try:
        now = file.stat()
        return _read(file, (now.st_ino, now.st_ctime_ns, now.st_size))
    except OSError:
        return ResolvConf()


@lru_cache(maxsize=4)
def _read(file: Path, version: tuple[int, int, int]) -> ResolvConf:
    return parse_resolv_conf(file.read_text(encoding="utf-8", errors="replace"))


def search_domains(file: Path = RESOLV_CONF) -> frozenset[str]:
    """Return the domains in which nearby resolvers, or a VPN's, have names of their own."""
    return resolv_conf(file).domains


def spellings(name: str) -> tuple[str, ...]:
    """Return a name, and what stands of it before a search domain, present or earlier.

    A resolver that denies the name which was asked for has programs ask for it in the domains that its
    network names. Some programs read these once, and a network may name others before it answers.
    """
    _remember(search_domains())
    dots = (at for at, letter in enumerate(name) if letter == "." and name[at + 1 :] in _named)
    return (name, *(name[:at] for at in dots))


def searched_below(name: str) -> bool:
    """Return whether a search domain, present or earlier, is a name or below it."""
    _remember(search_domains())
    return any(each == name or each.endswith(f".{name}") for each in _named)


def _remember(domains: Iterable[str]) -> None:
    for domain in domains:
        _named[domain] = None
        _named.move_to_end(domain)
    while len(_named) > _MOST_DOMAINS:
        _named.popitem(last=False)


def parse_hosts(content: str) -> dict[str, tuple[Address, ...]]:
    """Return the addresses of each name in a file like /etc/hosts."""
    found: dict[str, tuple[Address, ...]] = {}
    for line in content.splitlines():
        words = line.partition("#")[0].split()
        with contextlib.suppress(ValueError):
            where = address(ip_address(words[0].partition("%")[0] if words else "").packed)
            for name in (word.rstrip(".").lower() for word in words[1:]):
                found[name] = (*found.get(name, ()), where)
    return found


def parse_resolved(dns: Any) -> dict[int, tuple[Address, ...]]:
    """Return the resolvers in resolved's property `DNS`, which has (index, family, bytes) of each.

    Index 0, the whole host, is left out.
    """
    servers: dict[int, tuple[Address, ...]] = {}
    for entry in dns if isinstance(dns, list) else ():
        if not isinstance(entry, list | tuple) or len(entry) != 3:
            continue
        index, _, octets = entry
        # (`bytes` of a number is that many zeros, and `ip_address` takes numbers.)
        if not isinstance(index, int) or index <= 0 or not isinstance(octets, bytes):
            continue
        with contextlib.suppress(ValueError):
            servers[index] = (*servers.get(index, ()), ip_address(octets))
    return servers


class HostResolvers:
    """The host's resolvers: resolved's signals (None: without them), and inotify on resolv.conf."""

    def __init__(self, bus: SystemBus | None, resolv_conf: Path = RESOLV_CONF) -> None:
        self._bus = bus
        self._file = resolv_conf
        self._watch: FileWatch | None = None

    async def start(self, changed: Callable[[], None]) -> None:
        def rewritten() -> None:
            _remember(resolv_conf(self._file).domains)
            changed()

        _remember(resolv_conf(self._file).domains)
        self._watch = FileWatch(self._file, rewritten)
        if self._bus is not None:
            # Without a bus resolv.conf it is, until a bus appears.
            with contextlib.suppress(BusError):
                await self._bus.watch(_SERVICE, _PATH, _MANAGER, lambda _: changed())

    async def read(self) -> Resolvers:
        by_index: dict[int, tuple[Address, ...]] = {}
        if self._bus is not None:
            with contextlib.suppress(BusError):
                body = await self._bus.call(
                    _SERVICE, _PATH, _PROPERTIES, "Get", "ss", [_MANAGER, "DNS"]
                )
                by_index = parse_resolved(body[0] if body else None)
        # Loopback ones belong to no network.
        named = resolv_conf(self._file).addresses
        return Resolvers(by_index, tuple(each for each in named if not each.is_loopback))

    async def close(self) -> None:
        if self._watch is not None:
            self._watch.close()


class FileWatch:
    """Calls `changed` when a file may have been rewritten or replaced (inotify on its folder)."""

    def __init__(self, file: Path, changed: Callable[[], None]) -> None:
        self._changed = changed
        self._loop = asyncio.get_running_loop()
        libc = ctypes.CDLL(None, use_errno=True)
        self._fd: int = libc.inotify_init1(os.O_CLOEXEC | os.O_NONBLOCK)
        if self._fd < 0:
            return  # no instance left for us: changes show with the next network event
        # A link is followed, as resolv.conf often is one into the folder that is really written to.
        for folder in {file.parent, file.resolve().parent}:
            libc.inotify_add_watch(
                self._fd, os.fsencode(folder), _IN_CLOSE_WRITE | _IN_MOVED_TO | _IN_CREATE
            )
        self._names = {file.name, file.resolve().name}
        self._loop.add_reader(self._fd, self._readable)

    def _readable(self) -> None:
        try:
            events = os.read(self._fd, 1 << 16)
        except BlockingIOError:
            return
        if any(name.encode() in events for name in self._names):
            self._changed()

    def close(self) -> None:
        if self._fd >= 0:
            self._loop.remove_reader(self._fd)
            os.close(self._fd)
            self._fd = -1

"""Which of this host's networks lead to a server, as the daemon knows them where there is one."""

import asyncio
import socket
import time
from collections.abc import Callable
from dataclasses import replace
from ipaddress import ip_address
from typing import Final

from cedos.errors import HostError
from cedos.session.io.advice import Chooser
from cedos.session.io.links import Egress, EgressReader

_NAMES_S: Final = 60.0
_UNKNOWN_S: Final = 5.0
_LOOK_UP_S: Final = 1.0
"""Nobody waits longer for a name: others are looked for meanwhile."""

_FAR: Final = ("192.0.2.1", "2001:db8::1")


class LeadingNetworks:
    """Asked again and again, by name.

    Args:
        only: which interfaces may be used.
        chooser: who knows this host's networks.
    """

    def __init__(
        self,
        only: Callable[[str], bool] = lambda _interface: True,
        chooser: Chooser | None = None,
    ) -> None:
        self._only, self._chooser = only, chooser
        self._reader = EgressReader()
        self._addresses: dict[str, tuple[tuple[str, ...], float]] = {}
        self._asking: dict[str, asyncio.Task[None]] = {}

    def close(self) -> None:
        self._reader.close()

    async def to(self, host: str) -> list[Egress]:
        """Those that lead to a host; while its name is unknown, those that lead far away."""
        addresses, until_s = self._addresses.get(host, ((), 0.0))
        if time.monotonic() >= until_s:
            if host not in self._asking:
                self._asking[host] = asyncio.get_running_loop().create_task(self._look_up(host))
            await asyncio.wait({self._asking[host]}, timeout=_LOOK_UP_S)
            addresses, _ = self._addresses.get(host, ((), 0.0))
        if self._chooser is not None:
            await self._chooser.learn()
        found: dict[str, Egress] = {}
        try:
            # The attempt itself finds out that there is no such name, and can say so.
            for address in addresses or _FAR:
                for each in self._reader.egresses(ip_address(address)):
                    found.setdefault(each.interface, self._as_known(each))
        except (ValueError, HostError):
            return []
        return [each for each in found.values() if self._only(each.interface)]

    async def _look_up(self, host: str) -> None:
        loop = asyncio.get_running_loop()
        try:
            infos = await loop.getaddrinfo(host, 0, type=socket.SOCK_STREAM)
            addresses = tuple({str(info[4][0]).partition("%")[0] for info in infos})
            self._addresses[host] = (addresses, time.monotonic() + _NAMES_S)
        except (OSError, ValueError):  # what was known last will do
            known, _ = self._addresses.get(host, ((), 0.0))
            self._addresses[host] = (known, time.monotonic() + _UNKNOWN_S)
        finally:
            del self._asking[host]

    def _as_known(self, egress: Egress) -> Egress:
        known = self._chooser.network(egress.interface) if self._chooser is not None else None
        return egress if known is None else replace(egress, kind=known.kind, metered=known.metered)

"""Find out which networks the system calls metered.

By NetworkManager; else by ModemManager, the DHCP server, or the access point.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

from cedos.errors import HostError
from cedos.host.monitor.bus import BusError, SystemBus
from cedos.host.monitor.providers import access_points, cellular
from cedos.host.monitor.providers.access_points import ScanList
from cedos.host.monitor.providers.networkmanager import DEVICE, PATH, SERVICE
from cedos.kernel.interface_kind import MeteredWord, announced_metered

_MOST_DEVICES: Final = 64
_OBJECTS: Final = "org.freedesktop.DBus.ObjectManager"
_LEASE_S: Final = 3.0
# NMMetered. NetworkManager's guess "not metered" is worth no more than our own.
_WORDS: Final = {1: MeteredWord.YES, 2: MeteredWord.NO, 3: MeteredWord.GUESSED_YES}


def parse_device(properties: Mapping[str, Any]) -> tuple[str, MeteredWord | None]:
    """Return the interface that carries a device's packets, and its property `Metered`."""
    names = (properties.get("IpInterface"), properties.get("Interface"))
    name = next((each for each in names if isinstance(each, str) and each), "")
    metered = properties.get("Metered")
    return name, _WORDS.get(metered) if isinstance(metered, int) else None


class HostMetered:
    """NetworkManager's word (`bus` None: without it), else what modems, leases and access points tell.

    `scanned`: what the radio behind an interface has heard (`access_points.read`, or a test's).
    """

    def __init__(
        self,
        bus: SystemBus | None,
        scanned: Callable[[int], Awaitable[ScanList]] = access_points.read,
    ) -> None:
        self._bus = bus
        self._scanned = scanned
        self._changed: Callable[[], None] = lambda: None
        self._watched: set[str] = set()
        self._seen: set[tuple[str, int]] = set()

    async def start(self, changed: Callable[[], None]) -> None:
        self._changed = changed

    async def read(self, interfaces: Mapping[str, int]) -> Mapping[str, MeteredWord]:
        words = await self._managed()
        seen, self._seen = self._seen, set(interfaces.items())
        if self._seen - seen:
            # A lease may be written a moment after its address is there.
            asyncio.get_running_loop().call_later(_LEASE_S, self._changed)
        modems = await self._modems()
        for name, index in interfaces.items():
            if name in words:
                continue
            if (
                name in modems
                or await asyncio.to_thread(announced_metered, name, index)
                or await self._says(index)
            ):
                words[name] = MeteredWord.GUESSED_YES
        return words

    async def _says(self, index: int) -> bool:
        """Return whether the interface is at an access point that says it is metered."""
        try:
            return (await self._scanned(index)).metered
        except (OSError, LookupError, HostError):  # no radio of nl80211's
            return False

    async def _modems(self) -> frozenset[str]:
        """Return the interfaces that ModemManager has modems behind, whatever they are called."""
        if self._bus is None:
            return frozenset()
        try:
            body = await self._bus.call(
                cellular.SERVICE, cellular.ROOT, _OBJECTS, "GetManagedObjects"
            )
        except BusError:
            return frozenset()
        return frozenset(cellular.parse_modems(body[0] if body else None).by_interface)

    async def _managed(self) -> dict[str, MeteredWord]:
        words: dict[str, MeteredWord] = {}
        if self._bus is None:
            return words
        with contextlib.suppress(BusError):
            manager = await self._bus.properties(SERVICE, PATH, SERVICE)
            devices = manager.get("Devices")
            for path in (devices if isinstance(devices, list) else [])[:_MOST_DEVICES]:
                if not isinstance(path, str):
                    continue
                name, word = parse_device(await self._bus.properties(SERVICE, path, DEVICE))
                if name and word is not None:
                    words[name] = word
                if path not in self._watched:
                    self._watched.add(path)
                    await self._bus.watch(SERVICE, path, DEVICE, self._changed)
        return words

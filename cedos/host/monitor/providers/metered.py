"""Find out which networks the system calls metered.

By NetworkManager; else by ModemManager, the DHCP server, or the access point.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import Any, Final, TypeVar

from cedos.errors import HostError
from cedos.host.monitor.bus import BusError, SystemBus
from cedos.host.monitor.providers import access_points, cellular
from cedos.host.monitor.providers.access_points import ScanList
from cedos.host.monitor.providers.networkmanager import DEVICE, DEVICES, PATH, SERVICE
from cedos.kernel.interface_kind import MeteredWord, announced_metered
from cedos.kernel.process_limits import OUT_OF_FILES

_MOST_DEVICES: Final = 64
_OBJECTS: Final = "org.freedesktop.DBus.ObjectManager"
_LEASE_S: Final = 3.0
_AGAIN_S: Final = 10.0
# NMMetered; 0, of a device that is not connected, is no word.
_WORDS: Final = {
    1: MeteredWord.YES,
    2: MeteredWord.NO,
    3: MeteredWord.GUESSED_YES,
    4: MeteredWord.GUESSED_NO,
}
_T = TypeVar("_T")
# An interface: its name and its index, which a later one of that name does not have.
_Interface = tuple[str, int]


def parse_device(properties: Mapping[str, Any]) -> tuple[str, MeteredWord | None]:
    """Return the interface that carries a device's packets, and its property `Metered`."""
    names = (properties.get("IpInterface"), properties.get("Interface"))
    name = next((each for each in names if isinstance(each, str) and each), "")
    metered = properties.get("Metered")
    return name, _WORDS.get(metered) if isinstance(metered, int) else None


class HostMetered:
    """NetworkManager's word (`bus` None: without it), else what modems, leases and access points tell.

    NetworkManager's last word holds while the interface is there: a service that is busy, or starts
    again, opens no wall. So does ModemManager's, that a modem is behind an interface. That a network is
    not metered is said of this network alone: it ends where NetworkManager says nothing of the interface,
    and while it does not answer, the others count. While one of both is silent, an interface that comes
    counts as metered; not at the first reading.

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
        self._seen: set[_Interface] = set()
        self._words: dict[_Interface, MeteredWord] = {}
        self._modems: set[_Interface] = set()
        # Of what was asked about (`_judged`), those that leases and access points tell.
        self._told: set[_Interface] = set()
        self._judged: set[_Interface] = set()
        self._silent = False
        self._again: asyncio.TimerHandle | None = None

    async def start(self, changed: Callable[[], None]) -> None:
        self._changed = changed
        if self._bus is not None:
            with contextlib.suppress(BusError):
                await self._bus.watch(SERVICE, DEVICES, DEVICE, lambda _: changed())

    async def read(self, interfaces: Mapping[str, int]) -> Mapping[str, MeteredWord]:
        """Return what is said of each interface.

        Where no descriptor is left to find it out, all is as it was, and a new one counts as metered.
        """
        seen, self._seen = self._seen, set(interfaces.items())
        if self._seen - seen:
            # A lease may be written a moment after its address is there.
            asyncio.get_running_loop().call_later(_LEASE_S, self._changed)
        answered: Collection[_Interface] = ()
        self._silent = False
        if self._bus is not None:
            answered, _ = await asyncio.gather(
                self._ask_manager(self._bus), self._ask_modems(self._bus)
            )
        # NetworkManager's guess "not metered" is worth no more than our own.
        self._words = {
            each: word
            for each, word in self._words.items()
            if each in self._seen and word is not MeteredWord.GUESSED_NO
        }
        self._modems &= self._seen
        certain = {
            each: word
            for each, word in self._words.items()
            if word is not MeteredWord.NO or each in answered
        }
        unknown = self._seen - self._judged if self._silent and self._judged else set()
        told = self._modems.copy()
        for each in self._seen - told - certain.keys():
            if each in unknown or await self._is_told(each):
                told.add(each)
        self._told, self._judged = told, self._seen - unknown
        words = {**self._words, **dict.fromkeys(told, MeteredWord.GUESSED_YES), **certain}
        return {name: word for (name, _), word in words.items()}

    async def _is_told(self, interface: _Interface) -> bool:
        """Return whether a lease or an access point tells that an interface is metered."""
        try:
            if await asyncio.to_thread(announced_metered, *interface):
                return True
            return (await self._scanned(interface[1])).metered
        except (OSError, LookupError, HostError) as error:
            cause = error.__cause__ if isinstance(error, HostError) else error
            if isinstance(cause, OSError) and cause.errno in OUT_OF_FILES:
                self._ask_later()
                return interface in self._told or interface not in self._judged
            return False  # no radio of nl80211's

    async def _ask_modems(self, bus: SystemBus) -> None:
        """Note the interfaces that ModemManager has modems behind, whatever they are called."""
        asked = bus.call(cellular.SERVICE, cellular.ROOT, _OBJECTS, "GetManagedObjects")
        if body := await self._unless_silent(asked):
            modems = cellular.parse_modems(body[0]).by_interface
            self._modems |= {each for each in self._seen if each[0] in modems}

    async def _ask_manager(self, bus: SystemBus) -> Collection[_Interface]:
        """Note NetworkManager's words; return of which interfaces it spoke."""
        manager = await self._unless_silent(bus.properties(SERVICE, PATH, SERVICE))
        devices = manager.get("Devices") if manager else None
        found = devices if isinstance(devices, list) else []
        paths = [each for each in found if isinstance(each, str)][:_MOST_DEVICES]
        # All at once: each takes its time, and a network may just have been lost.
        asked = (self._unless_silent(bus.properties(SERVICE, path, DEVICE)) for path in paths)
        answers = await asyncio.gather(*asked)
        indices = dict(self._seen)
        answered = set()
        for name, word in map(parse_device, filter(None, answers)):
            if name not in indices:
                continue
            answered.add(interface := (name, indices[name]))
            if word is not None:
                self._words[interface] = word
            elif self._words.get(interface) is MeteredWord.NO:
                del self._words[interface]
        return answered

    async def _unless_silent(self, asked: Awaitable[_T]) -> _T | None:
        """Return an answer, None where there is none. Ask a service once more that takes too long."""
        try:
            return await asked
        except BusError as error:
            if isinstance(error.__cause__, TimeoutError):
                self._silent = True
                self._ask_later()
            return None

    def _ask_later(self) -> None:
        if self._again is None:
            self._again = asyncio.get_running_loop().call_later(_AGAIN_S, self._ask_again)

    def _ask_again(self) -> None:
        self._again = None
        self._changed()

"""Ask NetworkManager over D-Bus about captive networks, and have it look for access points."""

import math
import time
from collections.abc import Callable, Mapping
from typing import Any

from cedos.host.monitor.bus import BusError, SystemBus
from cedos.model import Network

SERVICE = "org.freedesktop.NetworkManager"
PATH = "/org/freedesktop/NetworkManager"
DEVICE = f"{SERVICE}.Device"
DEVICES = f"{PATH}/Devices"
_WIRELESS = f"{SERVICE}.Device.Wireless"
_NONE = "/"

_SEARCH_EVERY_S = 10.0
_TYPE_WIFI = 2  # NMDeviceType

# NMConnectivityState
_PORTAL, _LIMITED, _FULL = 2, 3, 4


def parse_connectivity(properties: Mapping[str, Any]) -> bool | None:
    """Return whether a network is captive, None: not known. One IP version that works is enough."""
    states = [properties.get(f"Ip{version}Connectivity") for version in (4, 6)]
    if _FULL in states:
        return False
    return True if _PORTAL in states or _LIMITED in states else None


class NetworkManager:
    """The source of NetworkManager's verdict on a network."""

    def __init__(self, bus: SystemBus) -> None:
        self._bus = bus
        self._devices: dict[str, str] = {}
        self._searched_at_s: dict[str, float] = {}
        self._watches = False
        self._callbacks: list[Callable[[], None]] = []

    async def captive(self, network: Network) -> bool | None:
        try:
            manager = await self._bus.properties(SERVICE, PATH, SERVICE)
            if manager.get("ConnectivityCheckEnabled") is not True:
                return None
            path = await self._device(network.interface, time.monotonic())
            if path is None:
                return None
            if not self._watches:
                self._watches = True
                await self._bus.watch(SERVICE, DEVICES, DEVICE, self._tell)
            return parse_connectivity(await self._bus.properties(SERVICE, path, DEVICE))
        except BusError:
            self._devices.pop(network.interface, None)
            return None

    def on_change(self, callback: Callable[[], None]) -> None:
        """Have `callback` called when a verdict that was once asked for may have changed."""
        self._callbacks.append(callback)

    def _tell(self, path: str) -> None:
        if path in self._devices.values():
            for callback in self._callbacks:
                callback()

    async def _device(self, interface: str, now_s: float) -> str | None:
        searched_at_s = self._searched_at_s.get(interface, -math.inf)
        if interface not in self._devices and now_s - searched_at_s >= _SEARCH_EVERY_S:
            self._searched_at_s[interface] = now_s
            body = await self._bus.call(
                SERVICE, PATH, SERVICE, "GetDeviceByIpIface", "s", [interface]
            )
            if body and isinstance(body[0], str) and body[0] != _NONE:
                self._devices[interface] = body[0]
        return self._devices.get(interface)


async def scan(bus: SystemBus) -> int:
    """Have NetworkManager scan; return how many radios do: one that has just done so refuses for 10 s."""
    looking = 0
    try:
        found = await bus.call(SERVICE, PATH, SERVICE, "GetDevices")
    except BusError:
        return 0
    for path in found[0] if found and isinstance(found[0], list) else ():
        try:
            known = await bus.properties(SERVICE, path, DEVICE)
            if known.get("DeviceType") != _TYPE_WIFI:
                continue
            await bus.call(SERVICE, path, _WIRELESS, "RequestScan", "a{sv}", [{}])
        except BusError:
            continue
        looking += 1
    return looking

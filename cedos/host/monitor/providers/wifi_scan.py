"""Has NetworkManager look for access points now; which one is used then is its own decision."""

from typing import Final

from cedos.host.monitor.bus import BusError, SystemBus
from cedos.host.monitor.providers import networkmanager

_WIRELESS: Final = f"{networkmanager.DEVICE}.Wireless"
_TYPE_WIFI: Final = 2  # NMDeviceType


async def scan(bus: SystemBus) -> int:
    """Return how many radios scan now; one that has just done so refuses for 10 s."""
    looking = 0
    try:
        found = await bus.call(
            networkmanager.SERVICE, networkmanager.PATH, networkmanager.SERVICE, "GetDevices"
        )
    except BusError:
        return 0
    for path in found[0] if found and isinstance(found[0], list) else ():
        try:
            known = await bus.properties(networkmanager.SERVICE, path, networkmanager.DEVICE)
            if known.get("DeviceType") != _TYPE_WIFI:
                continue
            await bus.call(networkmanager.SERVICE, path, _WIRELESS, "RequestScan", "a{sv}", [{}])
        except BusError:
            continue
        looking += 1
    return looking

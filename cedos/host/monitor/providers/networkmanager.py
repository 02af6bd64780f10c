"""NetworkManager's names on D-Bus, and how to have it look for access points."""

from cedos.host.monitor.bus import BusError, SystemBus

SERVICE = "org.freedesktop.NetworkManager"
PATH = "/org/freedesktop/NetworkManager"
DEVICE = f"{SERVICE}.Device"
DEVICES = f"{PATH}/Devices"
_WIRELESS = f"{SERVICE}.Device.Wireless"
_TYPE_WIFI = 2  # NMDeviceType


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

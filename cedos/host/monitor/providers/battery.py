"""The battery's state from UPower over D-Bus."""

from collections.abc import Mapping
from typing import Any

from cedos.controller.events import BatteryRead
from cedos.host.monitor.bus import BusError, SystemBus

_SERVICE = "org.freedesktop.UPower"
_DEVICE = "/org/freedesktop/UPower/devices/DisplayDevice"
_INTERFACE = f"{_SERVICE}.Device"
_CHARGING, _DISCHARGING, _EMPTY, _FULL, _PENDING_CHARGE, _PENDING_DISCHARGE = range(1, 7)
_BATTERY = 2


def parse_battery(properties: Mapping[str, Any]) -> BatteryRead:
    """Return the battery's charge by UPower's properties."""
    percentage, state = properties.get("Percentage"), properties.get("State")
    if (
        properties.get("Type") != _BATTERY
        or properties.get("IsPresent") is not True
        or not isinstance(percentage, int | float)
        or not 0 <= percentage <= 100
    ):
        return BatteryRead()
    watt_hours = properties.get("Energy")
    energy_j = (
        3600.0 * watt_hours
        if isinstance(watt_hours, int | float) and 0 < watt_hours < 1e6
        else None
    )
    return BatteryRead(
        level=percentage / 100,
        discharging=state in (_DISCHARGING, _EMPTY, _PENDING_DISCHARGE),
        energy_j=energy_j,
    )


class BatteryReader:
    def __init__(self, bus: SystemBus) -> None:
        self._bus = bus

    async def read(self) -> BatteryRead:
        """Return the battery's charge; UPower may not answer."""
        try:
            return parse_battery(await self._bus.properties(_SERVICE, _DEVICE, _INTERFACE))
        except BusError:
            return BatteryRead()

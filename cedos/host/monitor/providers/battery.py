"""The battery's state from UPower over D-Bus."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from cedos.host.monitor.bus import BusError, SystemBus

_SERVICE = "org.freedesktop.UPower"
_DEVICE = "/org/freedesktop/UPower/devices/DisplayDevice"
_INTERFACE = f"{_SERVICE}.Device"
_CHARGING, _DISCHARGING, _EMPTY, _FULL, _PENDING_CHARGE, _PENDING_DISCHARGE = range(1, 7)
_BATTERY = 2


@dataclass(frozen=True, slots=True)
class Battery:
    """Unknown values are None; `power_w` is what the whole host draws (or is charged with)."""

    level: float
    discharging: bool
    energy_j: float | None
    power_w: float | None


def parse_battery(properties: Mapping[str, Any]) -> Battery | None:
    percentage, state = properties.get("Percentage"), properties.get("State")
    if (
        properties.get("Type") != _BATTERY
        or properties.get("IsPresent") is not True
        or not isinstance(percentage, int | float)
        or not 0 <= percentage <= 100
    ):
        return None
    return Battery(
        level=percentage / 100,
        discharging=state in (_DISCHARGING, _EMPTY, _PENDING_DISCHARGE),
        energy_j=_positive(properties.get("Energy"), 3600.0),
        power_w=_positive(properties.get("EnergyRate"), 1.0),
    )


def _positive(value: object, factor: float) -> float | None:
    return value * factor if isinstance(value, int | float) and 0 < value < 1e6 else None


class BatteryReader:
    """`answered`: whether the last question was, so that without a battery there is none."""

    def __init__(self, bus: SystemBus) -> None:
        self._bus = bus
        self.answered = False

    async def read(self) -> Battery | None:
        try:
            properties = await self._bus.properties(_SERVICE, _DEVICE, _INTERFACE)
        except BusError:
            self.answered = False
            return None
        self.answered = True
        return parse_battery(properties)

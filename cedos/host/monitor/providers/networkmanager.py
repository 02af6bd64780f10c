"""Ask NetworkManager over D-Bus for Wi-Fi's access points and for captive networks."""

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from cedos.host.monitor.bus import BusError, SystemBus
from cedos.host.monitor.providers.provider import AccessPoint
from cedos.model import Indicator, Network, NetworkKind

SERVICE = "org.freedesktop.NetworkManager"
PATH = "/org/freedesktop/NetworkManager"
DEVICE = f"{SERVICE}.Device"
_WIRELESS = f"{SERVICE}.Device.Wireless"
_POINT = f"{SERVICE}.AccessPoint"
_NONE = "/"

_SEARCH_EVERY_S = 10.0
# NetworkManager asks the radio for its rate every few seconds and does not say when it last did.
_BITRATE_AGE_S = 6.0

# NMConnectivityState
_PORTAL, _LIMITED, _FULL = 2, 3, 4


@dataclass(frozen=True, slots=True)
class WirelessProperties:
    """Paths of access points; `scanned_boot_s` is by CLOCK_BOOTTIME, None where it never scanned."""

    active: str | None
    points: int
    bitrate_bps: float | None
    scanned_boot_s: float | None


@dataclass(frozen=True, slots=True)
class PointProperties:
    """An access point: `level_dbm` comes from a percentage, so it is as coarse as that."""

    point: AccessPoint
    level_dbm: float | None
    seen_boot_s: float | None


def parse_wireless(properties: Mapping[str, Any]) -> WirelessProperties:
    active, points = properties.get("ActiveAccessPoint"), properties.get("AccessPoints")
    bitrate, scanned = _positive(properties.get("Bitrate")), _positive(properties.get("LastScan"))
    return WirelessProperties(
        active if isinstance(active, str) and active != _NONE else None,
        len(points) if isinstance(points, list) else 0,
        None if bitrate is None else bitrate * 1e3,
        None if scanned is None else scanned / 1e3,
    )


def parse_point(properties: Mapping[str, Any]) -> PointProperties | None:
    """Return the access point's facts, None without its address. 0 to 100 % are -100 to -40 dBm."""
    address, ssid = properties.get("HwAddress"), properties.get("Ssid")
    strength = _positive(properties.get("Strength"))
    if not isinstance(address, str) or not address:
        return None
    name = bytes(ssid).decode("utf-8", "replace") if isinstance(ssid, bytes | bytearray) else ""
    return PointProperties(
        AccessPoint(address.lower(), name),
        None if strength is None or strength > 100 else -100.0 + 0.6 * strength,
        _positive(properties.get("LastSeen")),
    )


def parse_connectivity(properties: Mapping[str, Any]) -> bool | None:
    """Return whether a network is captive, None: not known. One IP version that works is enough."""
    states = [properties.get(f"Ip{version}Connectivity") for version in (4, 6)]
    if _FULL in states:
        return False
    return True if _PORTAL in states or _LIMITED in states else None


def _positive(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if math.isfinite(value) and value > 0 else None


class NetworkManager:
    """A provider of Wi-Fi indicators, and the source of NetworkManager's verdict on a network."""

    name = "NetworkManager"

    def __init__(self, bus: SystemBus) -> None:
        self._bus = bus
        self._devices: dict[str, str] = {}
        self._searched_at_s: dict[str, float] = {}
        self._points: dict[str, AccessPoint | None] = {}
        self._watched: set[str] = set()
        self._callbacks: list[Callable[[], None]] = []

    async def read(self, network: Network, now_s: float) -> Mapping[str, Indicator]:
        if network.kind is not NetworkKind.WIFI:
            return {}
        try:
            path = await self._device(network.interface, now_s)
            if path is None:
                return {}
            device = parse_wireless(await self._bus.properties(SERVICE, path, _WIRELESS))
            point = None
            if device.active is not None:
                point = parse_point(await self._bus.properties(SERVICE, device.active, _POINT))
        except BusError:
            self._devices.pop(network.interface, None)
            self._points.pop(network.interface, None)
            return {}
        self._points[network.interface] = point.point if point else None
        return _indicators(device, point, now_s)

    def access_point(self, network: Network) -> AccessPoint | None:
        return self._points.get(network.interface)

    async def captive(self, network: Network) -> bool | None:
        try:
            manager = await self._bus.properties(SERVICE, PATH, SERVICE)
            if manager.get("ConnectivityCheckEnabled") is not True:
                return None
            path = await self._device(network.interface, time.monotonic())
            if path is None:
                return None
            if path not in self._watched:
                self._watched.add(path)
                await self._bus.watch(SERVICE, path, DEVICE, self._tell)
            return parse_connectivity(await self._bus.properties(SERVICE, path, DEVICE))
        except BusError:
            self._devices.pop(network.interface, None)
            return None

    def on_change(self, callback: Callable[[], None]) -> None:
        """Have `callback` called when a verdict that was once asked for may have changed."""
        self._callbacks.append(callback)

    def _tell(self) -> None:
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

    async def close(self) -> None: ...


def _indicators(
    device: WirelessProperties, point: PointProperties | None, now_s: float
) -> dict[str, Indicator]:
    ahead_s = time.clock_gettime(time.CLOCK_BOOTTIME) - time.monotonic()
    known: dict[str, Indicator] = {}
    if device.scanned_boot_s is not None:
        known["ap_count"] = Indicator(float(device.points), device.scanned_boot_s - ahead_s)
    if point is None:
        return known
    if device.bitrate_bps is not None:
        known["link_bps"] = Indicator(device.bitrate_bps, now_s - _BITRATE_AGE_S)
    if point.level_dbm is not None and point.seen_boot_s is not None:
        known["rssi_dbm"] = Indicator(point.level_dbm, point.seen_boot_s - ahead_s)
    return known

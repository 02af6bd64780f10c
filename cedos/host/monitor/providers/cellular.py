"""Cellular indicators from ModemManager over D-Bus: RSRP, RSRQ, SINR, RSSI of LTE and 5G."""

import contextlib
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cedos.host.monitor.bus import BusError, SystemBus
from cedos.model import Indicator, Network, NetworkKind

SERVICE = "org.freedesktop.ModemManager1"
ROOT = "/org/freedesktop/ModemManager1"
_MODEM = f"{SERVICE}.Modem"
_SIGNAL = f"{SERVICE}.Modem.Signal"
_OBJECTS = "org.freedesktop.DBus.ObjectManager"
_NET_PORT = 2
SYSFS = Path("/sys/class/net")

# ModemManager measures only if asked to, this often.
_REFRESH_S = 2
_SEARCH_EVERY_S = 10.0

# Property of the Signal interface -> its values' names here. The newest technology comes first. `dbm`
# is the level that a phone would show for it.
_TECHNOLOGIES: Mapping[str, Mapping[str, str]] = {
    "Nr5g": {"rsrp": "rsrp_dbm", "rsrq": "rsrq_db", "snr": "sinr_db"},
    "Lte": {"rsrp": "rsrp_dbm", "rsrq": "rsrq_db", "snr": "sinr_db", "rssi": "rssi_dbm"},
    "Umts": {"rscp": "dbm", "rssi": "rssi_dbm"},
    "Gsm": {"rssi": "dbm"},
}


@dataclass(frozen=True, slots=True)
class Modems:
    """ModemManager's modems by what joins them to a network: their interfaces, and where they sit."""

    by_interface: Mapping[str, str]
    by_device: Mapping[str, str]

    def of(self, network: Network, sysfs: Path) -> str | None:
        """Return the path of the network's modem; None where it has none.

        Some modems (those that look like a network card by USB) do not list their interface: then it
        is the one on the same physical device.
        """
        if (path := self.by_interface.get(network.interface)) is not None:
            return path
        device = _device(network, sysfs)
        if device is None:
            return None
        return next(
            (path for where, path in self.by_device.items() if device.is_relative_to(where)), None
        )


def _device(network: Network, root: Path) -> Path | None:
    """Return the real path of the device behind a network's interface, None where it has none.

    A process that was moved into another network namespace still sees the /sys that it came from; an
    entry counts only if its index is the interface's.
    """
    entry = root / network.interface
    try:
        if int((entry / "ifindex").read_text()) != network.index:
            return None
        return (entry / "device").resolve(strict=True)
    except (OSError, ValueError):
        return None


def parse_modems(objects: Any) -> Modems:
    interfaces: dict[str, str] = {}
    devices: dict[str, str] = {}
    for path, described in objects.items() if isinstance(objects, dict) else ():
        modem = described.get(_MODEM) if isinstance(described, dict) else None
        if not isinstance(modem, dict):
            continue
        ports, device = modem.get("Ports"), modem.get("Device")
        for port in ports if isinstance(ports, list) else ():
            # A port is (name, type).
            if isinstance(port, list | tuple) and len(port) == 2 and port[1] == _NET_PORT:
                interfaces[str(port[0])] = str(path)
        # A modem that is no real device has a name of its own here.
        if isinstance(device, str) and device.startswith("/sys/"):
            devices[device] = str(path)
    return Modems(interfaces, devices)


def parse_signal(properties: Mapping[str, Any]) -> dict[str, float]:
    """Return the signal of the newest technology that has one; large negative numbers are unknown."""
    for technology, names in _TECHNOLOGIES.items():
        measured = properties.get(technology)
        if not isinstance(measured, dict):
            continue
        values = {
            ours: float(measured[theirs])
            for theirs, ours in names.items()
            if isinstance(measured.get(theirs), int | float)
            and not isinstance(measured[theirs], bool)
            and math.isfinite(measured[theirs])
            and measured[theirs] > -1000
        }
        if values:
            return {"dbm": values["rsrp_dbm"], **values} if "rsrp_dbm" in values else values
    return {}


class CellularProvider:
    """A provider for the host's modems, by ModemManager. Tethered phones are no modems to it."""

    name = "ModemManager"

    def __init__(self, bus: SystemBus, sysfs: Path = SYSFS) -> None:
        self._bus = bus
        self._sysfs = sysfs
        self._modems: dict[int, str] = {}
        self._searched_at_s: dict[int, float] = {}
        self._ours: set[str] = set()

    async def read(self, network: Network, now_s: float) -> Mapping[str, Indicator]:
        if network.kind is not NetworkKind.CELLULAR:
            return {}
        try:
            path = await self._modem(network, now_s)
            if path is None:
                return {}
            properties = await self._bus.properties(SERVICE, path, _SIGNAL)
            await self._refresh(path, properties)
        except BusError:
            # The modem was unplugged, or ModemManager ended: nothing that we set is there any more.
            self._ours.discard(self._modems.pop(network.index, ""))
            return {}
        return {name: Indicator(v, now_s) for name, v in parse_signal(properties).items()}

    async def _modem(self, network: Network, now_s: float) -> str | None:
        searched_at_s = self._searched_at_s.get(network.index, -math.inf)
        if network.index not in self._modems and now_s - searched_at_s >= _SEARCH_EVERY_S:
            self._searched_at_s[network.index] = now_s
            body = await self._bus.call(SERVICE, ROOT, _OBJECTS, "GetManagedObjects")
            path = parse_modems(body[0] if body else None).of(network, self._sysfs)
            if path is not None:
                self._modems[network.index] = path
        return self._modems.get(network.index)

    async def _refresh(self, path: str, properties: Mapping[str, Any]) -> None:
        """Ask for measurements if no program has; leave a rate alone that another program set."""
        if properties.get("Rate") == 0:
            self._ours.add(path)
            await self._bus.call(SERVICE, path, _SIGNAL, "Setup", "u", [_REFRESH_S])

    async def close(self) -> None:
        for path in self._ours:
            with contextlib.suppress(BusError):
                await self._bus.call(SERVICE, path, _SIGNAL, "Setup", "u", [0])
        self._ours.clear()

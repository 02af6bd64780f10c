"""Cellular indicators from ModemManager over D-Bus: RSRP, RSRQ, SINR, RSSI of LTE and 5G."""

import contextlib
import math
from collections.abc import Mapping
from typing import Any

from cedos.model import Indicator, Network, NetworkKind
from cedos.monitor.bus import BusError, SystemBus

_SERVICE = "org.freedesktop.ModemManager1"
_ROOT = "/org/freedesktop/ModemManager1"
_MODEM = f"{_SERVICE}.Modem"
_SIGNAL = f"{_SERVICE}.Modem.Signal"
_OBJECTS = "org.freedesktop.DBus.ObjectManager"

# ModemManager measures only if asked to, this often.
_REFRESH_S = 2
_SEARCH_EVERY_S = 10.0

# Property of the Signal interface -> its values' names here. The newest technology comes first.
_TECHNOLOGIES = ("Nr5g", "Lte")
_VALUES = {"rsrp": "rsrp_dbm", "rsrq": "rsrq_db", "snr": "sinr_db", "rssi": "rssi_dbm"}


def parse_modems(objects: Any) -> dict[str, str]:
    """Interface -> path of its modem, from ModemManager's managed objects."""
    modems: dict[str, str] = {}
    for path, interfaces in objects.items() if isinstance(objects, dict) else ():
        modem = interfaces.get(_MODEM) if isinstance(interfaces, dict) else None
        ports = modem.get("Ports") if isinstance(modem, dict) else None
        for port in ports if isinstance(ports, list) else ():
            # A port is (name, type); a network interface has type 2.
            if isinstance(port, list | tuple) and len(port) == 2 and port[1] == 2:
                modems[str(port[0])] = str(path)
    return modems


def parse_signal(properties: Mapping[str, Any]) -> dict[str, float]:
    """The indicators of the newest technology that has a signal, from the Signal interface.

    ModemManager marks unknown values by very large negative numbers, which are left out.
    """
    for technology in _TECHNOLOGIES:
        measured = properties.get(technology)
        if not isinstance(measured, dict):
            continue
        values = {
            ours: float(measured[theirs])
            for theirs, ours in _VALUES.items()
            if isinstance(measured.get(theirs), int | float)
            and math.isfinite(measured[theirs])
            and measured[theirs] > -1000
        }
        if values:
            return values
    return {}


class CellularProvider:
    """What ModemManager knows of the host's modems. Tethered phones are no modems to it."""

    def __init__(self, bus: SystemBus) -> None:
        self._bus = bus
        self._modems: dict[str, str] = {}
        self._searched_at_s = -math.inf
        self._rates: dict[str, int] = {}

    async def read(self, network: Network, now_s: float) -> Mapping[str, Indicator]:
        """The signal of a cellular network's modem; empty where ModemManager does not know it."""
        if network.kind is not NetworkKind.CELLULAR:
            return {}
        try:
            path = await self._modem(network.interface, now_s)
            if path is None:
                return {}
            properties = await self._bus.properties(_SERVICE, path, _SIGNAL)
            await self._refresh(path, properties)
        except BusError:
            self._modems.clear()
            return {}
        return {name: Indicator(v, now_s) for name, v in parse_signal(properties).items()}

    async def _modem(self, interface: str, now_s: float) -> str | None:
        if interface not in self._modems and now_s - self._searched_at_s >= _SEARCH_EVERY_S:
            self._searched_at_s = now_s
            body = await self._bus.call(_SERVICE, _ROOT, _OBJECTS, "GetManagedObjects")
            self._modems = parse_modems(body[0] if body else None)
        return self._modems.get(interface)

    async def _refresh(self, path: str, properties: Mapping[str, Any]) -> None:
        """Asks for measurements where nobody has yet."""
        if path not in self._rates:
            rate = properties.get("Rate")
            self._rates[path] = rate if isinstance(rate, int) else 0
            if not rate:
                await self._bus.call(_SERVICE, path, _SIGNAL, "Setup", "u", [_REFRESH_S])

    async def close(self) -> None:
        """Ends the measurements that we asked for; the bus is its maker's to close."""
        for path, rate in self._rates.items():
            if not rate:
                with contextlib.suppress(BusError):
                    await self._bus.call(_SERVICE, path, _SIGNAL, "Setup", "u", [0])
        self._rates.clear()

"""Wi-Fi indicators by nl80211: signal, link speed, channel utilization, access points heard."""

import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from cedos.errors import HostError
from cedos.host.monitor.providers import access_points
from cedos.host.monitor.providers.provider import AccessPoint
from cedos.kernel import generic_netlink
from cedos.kernel.netlink import attribute, attributes, read_unsigned
from cedos.model import Indicator, Network, NetworkKind

# linux/nl80211.h
_GET_STATION, _GET_SURVEY = 17, 50
_ATTR_IFINDEX, _ATTR_MAC, _ATTR_STA_INFO, _ATTR_SURVEY_INFO = 3, 6, 21, 84
_STA_SIGNAL, _STA_TX_BITRATE, _STA_SIGNAL_AVG, _STA_RX_BITRATE = 7, 8, 13, 14
_RATE_BITRATE, _RATE_BITRATE32 = 1, 5
_SURVEY_IN_USE, _SURVEY_TIME, _SURVEY_TIME_BUSY = 3, 4, 5
_RATE_UNIT_BPS = 100_000.0

_SURVEY_EVERY_S = 5.0
_POINTS_EVERY_S = 5.0


@dataclass(frozen=True, slots=True)
class Survey:
    """The time that the used channel was observed and busy, in ms since some start."""

    observed_ms: int
    busy_ms: int


def parse_stations(answers: Iterable[bytes]) -> dict[str, float]:
    """Return `rssi_dbm` and `link_bps` of the access point, from a dump of the stations.

    A client has one station, its access point. With several the interface is one itself, and
    nothing is told. The speed is that of sending, which adapts to the channel's state; that of
    receiving is often a beacon's.
    """
    stations = [
        attributes(info)
        for answer in answers
        if (info := attributes(answer).get(_ATTR_STA_INFO)) is not None
    ]
    if len(stations) != 1:
        return {}
    (station,) = stations
    values: dict[str, float] = {}
    signal = station.get(_STA_SIGNAL_AVG) or station.get(_STA_SIGNAL)
    if signal:
        values["rssi_dbm"] = float(int.from_bytes(signal[:1], signed=True))
    rate = _rate(station.get(_STA_TX_BITRATE)) or _rate(station.get(_STA_RX_BITRATE))
    if rate:
        values["link_bps"] = rate
    return values


def parse_bssid(answers: Iterable[bytes]) -> str | None:
    """Return the only access point's hardware address in a dump of the stations, else None."""
    found = [attributes(answer).get(_ATTR_MAC) for answer in answers]
    return found[0].hex(":") if len(found) == 1 and found[0] else None


def _rate(info: bytes | None) -> float:
    found = attributes(info or b"")
    return _RATE_UNIT_BPS * (
        read_unsigned(found.get(_RATE_BITRATE32)) or read_unsigned(found.get(_RATE_BITRATE)) or 0
    )


def parse_survey(answers: Iterable[bytes]) -> Survey | None:
    """Return the survey of the channel in use, None where the driver keeps none."""
    for answer in answers:
        info = attributes(attributes(answer).get(_ATTR_SURVEY_INFO, b""))
        observed, busy = (
            read_unsigned(info.get(_SURVEY_TIME)),
            read_unsigned(info.get(_SURVEY_TIME_BUSY)),
        )
        if _SURVEY_IN_USE in info and observed is not None and busy is not None:
            return Survey(observed, busy)
    return None


def utilization(before: Survey, after: Survey) -> float | None:
    """Return the share of time the channel was busy between two surveys, None if they do not compare."""
    observed_ms = after.observed_ms - before.observed_ms
    busy_ms = after.busy_ms - before.busy_ms
    return busy_ms / observed_ms if observed_ms > 0 and 0 <= busy_ms <= observed_ms else None


class WifiProvider:
    name = "Wi-Fi (nl80211)"

    def __init__(self) -> None:
        self._surveys: dict[int, tuple[float, Survey]] = {}
        self._busy: dict[int, Indicator] = {}
        self._listed_at_s: dict[int, float] = {}
        self._points: dict[int, AccessPoint | None] = {}
        self._counts: dict[int, Indicator] = {}

    async def read(self, network: Network, now_s: float) -> Mapping[str, Indicator]:
        if network.kind is not NetworkKind.WIFI:
            return {}
        try:
            answers = await _dump(_GET_STATION, network.index)
            await self._survey(network.index, now_s)
            await self._list(network.index, parse_bssid(answers), now_s)
        # Not an interface of nl80211's (a tethered phone named wifi), or no nl80211 at all.
        except (OSError, LookupError, HostError):
            return {}
        stations = parse_stations(answers)
        known = {name: Indicator(value, now_s) for name, value in stations.items()}
        if stations and network.index in self._busy:
            known["chan_util"] = self._busy[network.index]
        if network.index in self._counts:
            known["ap_count"] = self._counts[network.index]
        return known

    def access_point(self, network: Network) -> AccessPoint | None:
        return self._points.get(network.index)

    async def _list(self, index: int, bssid: str | None, now_s: float) -> None:
        known = self._points.get(index)
        moved = bssid != (known.bssid if known else None)
        if not moved and now_s - self._listed_at_s.get(index, float("-inf")) < _POINTS_EVERY_S:
            return
        self._listed_at_s[index] = now_s
        found = await access_points.read(index)
        named = found.own is not None and found.own.bssid == bssid
        self._points[index] = found.own if named else AccessPoint(bssid, "") if bssid else None
        if found.count is not None:
            self._counts[index] = Indicator(float(found.count), now_s - found.age_s)

    async def _survey(self, index: int, now_s: float) -> None:
        before = self._surveys.get(index)
        if before is not None and now_s - before[0] < _SURVEY_EVERY_S:
            return
        survey = parse_survey(await _dump(_GET_SURVEY, index))
        if survey is None:
            return
        self._surveys[index] = (now_s, survey)
        share = None if before is None else utilization(before[1], survey)
        if share is not None:
            self._busy[index] = Indicator(share, now_s)

    async def close(self) -> None:
        """Do nothing: no file stays open."""


async def _dump(command: int, index: int) -> list[bytes]:
    """Return what nl80211 tells of an interface; errors as of `generic_netlink.dump`."""
    wanted = attribute(_ATTR_IFINDEX, struct.pack("=I", index))
    return await generic_netlink.dump("nl80211", command, wanted)

"""Wi-Fi indicators by nl80211: signal, link speed, channel utilization, access points heard."""

from collections.abc import AsyncIterator, Iterable, Mapping
from dataclasses import dataclass
from functools import partial

from pyroute2.iwutil import AsyncIW
from pyroute2.netlink.nl80211 import NL80211_NAMES, nl80211cmd

from cedos.kernel.netlink_client import Client
from cedos.model import Indicator, Network, NetworkKind
from cedos.monitor.providers import access_points
from cedos.monitor.providers.provider import AccessPoint

_STATION = NL80211_NAMES["NL80211_CMD_NEW_STATION"]
_SURVEY = NL80211_NAMES["NL80211_CMD_NEW_SURVEY_RESULTS"]
_RATE_UNIT_BPS = 100_000.0

_SURVEY_EVERY_S = 5.0
_POINTS_EVERY_S = 5.0
# Without nl80211 the module may still be loaded later; this often it is looked for again.
_RETRY_S = 60.0


@dataclass(frozen=True, slots=True)
class Survey:
    """How long the used channel was observed and busy, in milliseconds since some start."""

    observed_ms: int
    busy_ms: int


def parse_stations(answers: Iterable[nl80211cmd]) -> dict[str, float]:
    """`rssi_dbm` and `link_bps` of the access point, from a dump of the stations.

    A client has one station, its access point. With several the interface is one itself, and
    nothing is said. The speed is that of sending, which adapts to the channel's state; that of
    receiving is often a beacon's.
    """
    stations = [
        station
        for answer in answers
        if answer["cmd"] == _STATION
        and (station := answer.get_attr("NL80211_ATTR_STA_INFO")) is not None
    ]
    if len(stations) != 1:
        return {}
    (station,) = stations
    values: dict[str, float] = {}
    signal = station.get_attr("NL80211_STA_INFO_SIGNAL_AVG")
    if signal is None:
        signal = station.get_attr("NL80211_STA_INFO_SIGNAL")
    if signal is not None:
        values["rssi_dbm"] = float(signal)
    rate = _rate(station, "TX") or _rate(station, "RX")
    if rate:
        values["link_bps"] = rate
    return values


def parse_bssid(answers: Iterable[nl80211cmd]) -> str | None:
    """The access point's hardware address, from a dump of the stations; None without exactly one."""
    found = [answer.get_attr("NL80211_ATTR_MAC") for answer in answers if answer["cmd"] == _STATION]
    return str(found[0]).lower() if len(found) == 1 and found[0] else None


def _rate(station: nl80211cmd, way: str) -> float:
    rate = station.get_attr(f"NL80211_STA_INFO_{way}_BITRATE")
    if rate is None:
        return 0.0
    wide = rate.get_attr("NL80211_RATE_INFO_BITRATE32")
    return (wide or rate.get_attr("NL80211_RATE_INFO_BITRATE") or 0) * _RATE_UNIT_BPS


def parse_survey(answers: Iterable[nl80211cmd]) -> Survey | None:
    """The survey of the channel in use, None where the driver keeps none."""
    for answer in answers:
        info = answer.get_attr("NL80211_ATTR_SURVEY_INFO")
        if answer["cmd"] != _SURVEY or info is None:
            continue
        observed = info.get_attr("NL80211_SURVEY_INFO_TIME")
        busy = info.get_attr("NL80211_SURVEY_INFO_TIME_BUSY")
        used = info.get_attr("NL80211_SURVEY_INFO_IN_USE")
        if used and observed is not None and busy is not None:
            return Survey(observed, busy)
    return None


def utilization(before: Survey, after: Survey) -> float | None:
    """The share of time the channel was busy between two surveys, None if they do not compare."""
    observed_ms = after.observed_ms - before.observed_ms
    busy_ms = after.busy_ms - before.busy_ms
    return busy_ms / observed_ms if observed_ms > 0 and 0 <= busy_ms <= observed_ms else None


class WifiProvider:
    name = "Wi-Fi (nl80211)"

    def __init__(self) -> None:
        self._client = Client(_socket)
        self._known = False
        self._retry_at_s = float("-inf")
        self._surveys: dict[int, tuple[float, Survey]] = {}
        self._busy: dict[int, Indicator] = {}
        self._listed_at_s: dict[int, float] = {}
        self._points: dict[int, AccessPoint | None] = {}
        self._counts: dict[int, Indicator] = {}

    async def read(self, network: Network, now_s: float) -> Mapping[str, Indicator]:
        if network.kind is not NetworkKind.WIFI or not await self._ready(now_s):
            return {}
        try:
            answers = await self._client.ask(partial(_stations, network.index))
            await self._survey(network.index, now_s)
            await self._list(network.index, parse_bssid(answers), now_s)
        except (
            OSError,
            LookupError,
        ):  # not an interface of nl80211's (a tethered phone named wifi)
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
        survey = parse_survey(await self._client.ask(partial(_survey, index)))
        if survey is None:
            return
        self._surveys[index] = (now_s, survey)
        share = None if before is None else utilization(before[1], survey)
        if share is not None:
            self._busy[index] = Indicator(share, now_s)

    async def _ready(self, now_s: float) -> bool:
        if not self._known and now_s >= self._retry_at_s:
            self._retry_at_s = now_s + _RETRY_S
            try:
                await self._client.ask(_setup)
            except OSError:
                return False
            self._known = True
        return self._known

    async def close(self) -> None:
        self._client.close()


def _socket() -> AsyncIW:
    made = AsyncIW()
    # A host without Wi-Fi is no error, which it would be called in the log.
    made.module_err_level = "debug"
    return made


# A new socket first asks for nl80211's number, which no call but this one does by itself.
async def _setup(kernel: AsyncIW) -> list[nl80211cmd]:
    await kernel.setup_endpoint()
    return []


async def _stations(index: int, kernel: AsyncIW) -> AsyncIterator[nl80211cmd]:
    await kernel.setup_endpoint()
    found: AsyncIterator[nl80211cmd] = await kernel.get_stations(index)
    return found


async def _survey(index: int, kernel: AsyncIW) -> AsyncIterator[nl80211cmd]:
    await kernel.setup_endpoint()
    found: AsyncIterator[nl80211cmd] = await kernel.survey(index)
    return found

"""The interface of providers of indicators, and a guard that no provider can break through."""

import asyncio
import math
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, Protocol, runtime_checkable

from cedos.model import Indicator, Network


class IndicatorProvider(Protocol):
    async def read(self, network: Network, now_s: float) -> Mapping[str, Indicator]:
        """Return what is known of the network now: empty for a network that is not this provider's."""

    async def close(self) -> None: ...


class AccessPoint(NamedTuple):
    """A Wi-Fi access point: its BSSID and the SSID that it announces, empty where hidden."""

    bssid: str
    ssid: str


@runtime_checkable
class AccessPointSource(Protocol):
    def access_point(self, network: Network) -> AccessPoint | None:
        """Return the network's access point at the last read; None if unknown."""


# The physically possible range of each indicator, with a margin. A value outside is a placeholder
# or a driver's mistake.
PLAUSIBLE: Mapping[str, tuple[float, float]] = {
    "rssi_dbm": (-120.0, 0.0),
    "dbm": (-160.0, 0.0),
    "link_bps": (1.0, 1e12),
    "ap_count": (0.0, 10_000.0),
    "chan_util": (0.0, 1.0),
    "rsrp_dbm": (-156.0, -31.0),
    "rsrq_db": (-43.0, 20.0),
    "sinr_db": (-30.0, 60.0),
    "cqi": (0.0, 15.0),
    "speed_mps": (0.0, 400.0),
    "rtt_s": (0.0, 600.0),
    "rtt_min_s": (0.0, 600.0),
    "dns_s": (0.0, 600.0),
    "ping_loss": (0.0, 1.0),
    "loss": (0.0, 1.0),
    "captive": (0.0, 1.0),
    "available": (0.0, 1.0),
    "past1_bps": (0.0, 1e12),
    "past5_bps": (0.0, 1e12),
    "past10_bps": (0.0, 1e12),
}
_CLOCK_SLACK_S = 1.0


def implausible(name: str, indicator: Indicator, now_s: float) -> str:
    """Return why an indicator cannot be true; empty where it can."""
    if not math.isfinite(indicator.measured_at_s):
        return f"{name} was measured at no time ({indicator.measured_at_s:g})"
    low, high = PLAUSIBLE.get(name, (-math.inf, math.inf))
    if not math.isfinite(indicator.value) or not low <= indicator.value <= high:
        return f"{name} = {indicator.value:g}; {low:g} to {high:g} would be right"
    if indicator.measured_at_s > now_s + _CLOCK_SLACK_S:
        return f"{name} was measured {indicator.measured_at_s - now_s:.1f} s in the future"
    return ""


class GuardedProvider:
    """A provider whose `read` never raises, takes no longer than the limit, and never lies wildly.

    `report` is told of each kind of trouble once.
    """

    def __init__(
        self, provider: IndicatorProvider, report: Callable[[str], None], timeout_s: float = 1.0
    ) -> None:
        self._provider = provider
        self._name = str(getattr(provider, "name", type(provider).__name__))
        self._report = report
        self._timeout_s = timeout_s
        self._reported: set[str] = set()

    async def read(self, network: Network, now_s: float) -> Mapping[str, Indicator]:
        """Return the plausible ones of the provider's indicators; empty in case of trouble."""
        try:
            async with asyncio.timeout(self._timeout_s):
                found = await self._provider.read(network, now_s)
        except TimeoutError:
            self._log_once("hang", f"no answer within {self._timeout_s:g} s")
            return {}
        except Exception as error:  # whatever it is, other providers and counters are read
            self._log_once(type(error).__name__, f"{type(error).__name__}: {error}")
            return {}
        good = {}
        for name, indicator in found.items():
            if why := implausible(name, indicator, now_s):
                self._log_once(f"nonsense {name}", why)
            else:
                good[name] = indicator
        return good

    def access_point(self, network: Network) -> AccessPoint | None:
        source = self._provider
        return source.access_point(network) if isinstance(source, AccessPointSource) else None

    def _log_once(self, kind: str, sentence: str) -> None:
        if kind not in self._reported:
            self._reported.add(kind)
            self._report(f"{self._name}: {sentence} (reported once)")

    async def close(self) -> None:
        try:
            async with asyncio.timeout(self._timeout_s):
                await self._provider.close()
        except Exception as error:  # a provider that cannot close must not keep the daemon up
            self._log_once("close", f"while closing: {type(error).__name__}: {error}")


async def read_each(
    providers: Sequence[IndicatorProvider],
    network: Network,
    now_s: float,
    take: Callable[[Mapping[str, Indicator]], None],
) -> None:
    """Ask all providers about a network at once; what each says is taken as soon as it says it."""

    async def read(provider: IndicatorProvider) -> None:
        if found := await provider.read(network, now_s):
            take(found)

    await asyncio.gather(*map(read, providers))

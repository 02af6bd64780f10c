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


def implausible(name: str, indicator: object, now_s: float) -> str:
    """Return why an indicator cannot be true; empty where it can."""
    if not isinstance(indicator, Indicator) or not isinstance(indicator.value, int | float):
        return f"{name} is {indicator!r}, which is no number with its time"
    if not math.isfinite(indicator.measured_at_s):
        return f"{name} was measured at no time ({indicator.measured_at_s:g})"
    low, high = PLAUSIBLE.get(name, (-math.inf, math.inf))
    if not math.isfinite(indicator.value) or not low <= indicator.value <= high:
        return f"{name} = {indicator.value:g}; {low:g} to {high:g} would be right"
    if indicator.measured_at_s > now_s + _CLOCK_SLACK_S:
        return f"{name} was measured {indicator.measured_at_s - now_s:.1f} s in the future"
    return ""


class GuardedProvider:
    """A provider whose `read` never raises, never takes longer than the limit, and never lies wildly.

    `report` is told of trouble once a kind; it stands in `problems` as long as it lasts. A provider
    that raised or hung is asked again after the first of `retry_s`, then each time twice as late, up
    to the second. A read that hangs is left behind; until it ends, the provider is not asked about
    that network.
    """

    def __init__(
        self,
        provider: IndicatorProvider,
        report: Callable[[str], None],
        timeout_s: float = 1.0,
        retry_s: tuple[float, float] = (1.0, 60.0),
    ) -> None:
        self._provider = provider
        self._name = str(getattr(provider, "name", type(provider).__name__))
        self._report = report
        self._timeout_s = timeout_s
        self._retry_s = retry_s
        self._reported: set[str] = set()
        self._hanging: dict[str, asyncio.Task[Mapping[str, Indicator]]] = {}
        self._failures = 0
        self._not_before_s = -math.inf
        self._trouble = ""
        self._nonsense: dict[str, str] = {}

    @property
    def problems(self) -> list[str]:
        trouble = [self._trouble] if self._trouble else []
        return [f"{self._name}: {sentence}" for sentence in (*trouble, *self._nonsense.values())]

    async def read(self, network: Network, now_s: float) -> Mapping[str, Indicator]:
        """Return the plausible ones of the provider's indicators; empty in case of trouble."""
        hanging = self._hanging.get(network.name)
        if now_s < self._not_before_s or (hanging is not None and not hanging.done()):
            return {}
        # A task of its own: one that swallows its cancellation must not hold us.
        task = asyncio.ensure_future(self._provider.read(network, now_s))
        task.add_done_callback(_retrieve)
        self._hanging[network.name] = task
        try:
            await asyncio.wait({task}, timeout=self._timeout_s)
        finally:
            if not task.done():
                task.cancel()
        if not task.done():
            self._failed("hang", f"no answer within {self._timeout_s:g} s", now_s)
            return {}
        if task.cancelled():
            return {}
        if (error := task.exception()) is not None:
            self._failed(type(error).__name__, f"{type(error).__name__}: {error}", now_s)
            return {}
        self._failures, self._trouble = 0, ""
        return self._plausible(task.result(), now_s)

    def access_point(self, network: Network) -> AccessPoint | None:
        if not isinstance(self._provider, AccessPointSource):
            return None
        try:
            return self._provider.access_point(network)
        except Exception as error:  # as in `read`: nothing of it breaks through
            self._once("access point", f"access point: {type(error).__name__}: {error}")
            return None

    def _failed(self, kind: str, sentence: str, now_s: float) -> None:
        first_s, longest_s = self._retry_s
        pause_s = min(first_s * 2.0 ** min(self._failures, 30), longest_s)
        self._failures += 1
        self._not_before_s = now_s + pause_s
        self._trouble = f"{sentence}; asked again in {pause_s:g} s"
        self._once(kind, sentence)

    def _plausible(self, indicators: object, now_s: float) -> dict[str, Indicator]:
        if not isinstance(indicators, Mapping):
            self._nonsense["answer"] = f"it says {indicators!r}, which are no indicators"
            self._once("nonsense", self._nonsense["answer"])
            return {}
        self._nonsense.pop("answer", None)
        good = {}
        for name, indicator in indicators.items():
            if why := implausible(name, indicator, now_s):
                self._nonsense[name] = why
                self._once(f"nonsense {name}", why)
            else:
                self._nonsense.pop(name, None)
                good[name] = indicator
        return good

    def _once(self, kind: str, sentence: str) -> None:
        if kind not in self._reported:
            self._reported.add(kind)
            self._report(f"{self._name}: {sentence} (reported once)")

    async def close(self) -> None:
        """Close the provider and abandons reads that still hang."""
        for task in self._hanging.values():
            task.cancel()
        try:
            async with asyncio.timeout(self._timeout_s):
                await self._provider.close()
        except Exception as error:  # a provider that cannot close must not keep the daemon up
            self._once("close", f"while closing: {type(error).__name__}: {error}")


def _retrieve(task: "asyncio.Task[Mapping[str, Indicator]]") -> None:
    """Take a late exception, or asyncio would complain that it was never retrieved."""
    if not task.cancelled():
        task.exception()


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

"""Rules of active probing: the interface, Delphi's rule, and a fixed rate as the baseline.

A probe costs bytes, joules and a woken radio (Delphi, Table 3), so networks are probed only if the
answer is likely to be news. Delphi (section 5.2) takes a change of the passive indicators as the
sign of news, and lets a host that no person uses probe only when it has something to send. Our own
rule (`value`) is behind the same interface.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import inf
from typing import Protocol

from cedos.model import Evaluation, Indicator
from cedos.selector.budgets.prices import FREE, Prices

# The range of each passive indicator before its own extremes are known.
TYPICAL_RANGES: Mapping[str, tuple[float, float]] = {
    "rssi_dbm": (-85.0, -45.0),
    "link_bps": (6e6, 300e6),
    "chan_util": (0.0, 1.0),
    "ap_count": (0.0, 20.0),
    "rsrp_dbm": (-115.0, -80.0),
    "rsrq_db": (-18.0, -6.0),
    "sinr_db": (-5.0, 25.0),
    "cqi": (1.0, 15.0),
    "speed_mps": (0.0, 15.0),
}


@dataclass(frozen=True, slots=True)
class Moment:
    """The facts that a rule may look at."""

    now_s: float
    attended: bool  # whether a person is at the host (Delphi: the screen is on)
    pending: bool  # whether a transfer waits to be started
    # Network name -> its known indicators, passive and active, with ages.
    indicators: Mapping[str, Mapping[str, Indicator]]
    # The strategies of the next transfer, judged by the present knowledge.
    evaluations: tuple[Evaluation, ...] = ()
    transfers_per_s: float = 0.0  # how many transfers began per second lately
    prices: Prices = FREE
    # Network name -> when anything last came back from beyond its router.
    heard_at_s: Mapping[str, float] = field(default_factory=dict)


class ProbeRule(Protocol):
    """Decides when a network is probed, and keeps a record of the probes."""

    def weigh(self, network: str, moment: Moment) -> bool:
        """Return whether the network is to be probed now."""

    def probed(self, network: str, moment: Moment) -> None:
        """Record that a probe of the network was sent at this moment."""


class FixedRate:
    """Probes every network every `interval_s`, the baseline of adaptive probing."""

    def __init__(self, interval_s: float) -> None:
        self._interval_s = interval_s
        self._probed_at_s: dict[str, float] = {}

    def weigh(self, network: str, moment: Moment) -> bool:
        last_s = self._probed_at_s.get(network, -inf)
        return moment.now_s - last_s >= self._interval_s

    def probed(self, network: str, moment: Moment) -> None:
        self._probed_at_s[network] = moment.now_s


class PassiveChange:
    """Delphi's adaptive probing: only after the passive indicators have changed (equation 1).

    `change` is the sum over the network's passive indicators of |now - at the last probe| over the
    range of that indicator. Attended, a change above the threshold is enough; else a transfer must
    be waiting as well. An indicator that came or went counts as changed by its whole range.

    Args:
        threshold: Delphi's Th, in ranges.
        longest_s: the longest time between two probes; infinite is the paper's rule, under which a
            network without passive indicators is probed once and never again.
    """

    def __init__(self, threshold: float, longest_s: float = inf) -> None:
        self._threshold = threshold
        self._longest_s = longest_s
        self._then: dict[str, Mapping[str, float]] = {}
        self._probed_at_s: dict[str, float] = {}
        self._ranges: dict[tuple[str, str], tuple[float, float]] = {}

    def change(self, network: str, moment: Moment) -> float:
        """Return equation 1, between the last probe and now; infinite before the first probe."""
        now = passive(moment.indicators.get(network, {}))
        # Each indicator's range is the typical one, widened by the values seen here.
        for name, value in now.items():
            low, high = self._ranges.get((network, name)) or TYPICAL_RANGES.get(
                name, (value, value)
            )
            self._ranges[network, name] = min(low, value), max(high, value)
        then = self._then.get(network)
        if then is None:
            return inf
        total = 0.0
        for name in now.keys() | then.keys():
            if name not in now or name not in then:
                total += 1.0
                continue
            low, high = self._ranges[network, name]
            if high > low:
                total += abs(now[name] - then[name]) / (high - low)
        return total

    def weigh(self, network: str, moment: Moment) -> bool:
        change = self.change(network, moment)
        last_s = self._probed_at_s.get(network)
        if last_s is None:
            return True
        # A change of the passive indicators is the sign of news, or a probe older than `longest_s`.
        news = change > self._threshold or moment.now_s - last_s >= self._longest_s
        # An unattended host probes only for a transfer that waits (Delphi, 5.2).
        return news and (moment.attended or moment.pending)

    def probed(self, network: str, moment: Moment) -> None:
        self._then[network] = passive(moment.indicators.get(network, {}))
        self._probed_at_s[network] = moment.now_s


def passive(indicators: Mapping[str, Indicator]) -> dict[str, float]:
    """Return the values that the radio reports by itself: those of `TYPICAL_RANGES`."""
    return {name: indicators[name].value for name in TYPICAL_RANGES if name in indicators}

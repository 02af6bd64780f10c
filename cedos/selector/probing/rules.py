"""Delphi's rule of active probing, and what a rule may look at.

A probe costs bytes, joules and a woken radio (Delphi, Table 3), so networks are probed only if the
answer is likely to be news. Delphi (section 5.2) takes a change of the passive indicators as the
sign of news. Our own rule (`value`) weighs that change among others.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import inf

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
    pending: bool  # whether a transfer waits to be started
    # Network name -> its known indicators, passive and active, with ages.
    indicators: Mapping[str, Mapping[str, Indicator]]
    # The strategies of the next transfer, judged by the present knowledge.
    evaluations: tuple[Evaluation, ...] = ()
    transfers_per_s: float = 0.0  # how many transfers began per second lately
    prices: Prices = FREE
    # Network name -> when anything last came back from beyond its router.
    heard_at_s: Mapping[str, float] = field(default_factory=dict)


class PassiveChange:
    """Delphi's adaptive probing: only after the passive indicators have changed (equation 1).

    `change` is the sum over the network's passive indicators of |now - at the last probe| over the
    range of that indicator. An indicator that came or went counts as changed by its whole range. A
    network without passive indicators is probed once and never again. (The paper's host that no person
    uses probes only when it has something to send.)

    Args:
        threshold: Delphi's Th, in ranges.
    """

    def __init__(self, threshold: float) -> None:
        self._threshold = threshold
        self._then: dict[str, Mapping[str, float]] = {}
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
        return self.change(network, moment) > self._threshold

    def probed(self, network: str, moment: Moment) -> None:
        self._then[network] = passive(moment.indicators.get(network, {}))


def passive(indicators: Mapping[str, Indicator]) -> dict[str, float]:
    """Return the values that the radio reports by itself: those of `TYPICAL_RANGES`."""
    return {name: indicators[name].value for name in TYPICAL_RANGES if name in indicators}

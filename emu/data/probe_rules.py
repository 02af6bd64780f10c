"""Rules of active probing: a fixed rate, Delphi's rule, and the value of an answer.

A probe costs bytes, joules and a woken radio (Delphi, Table 3), so networks are probed only if the
answer is likely to be news. Delphi (section 5.2) takes a change of the passive indicators as the
sign of news.

By its value a probe is sent if its answer saves more than it costs. An answer may change the choice of
the next transfers. Let `b` be the least cost of a strategy that starts on the network and `r` that of
the best one that does not. With age the knowledge of `b` gets vague: relative drift of standard
deviation sigma(age). A fresh measurement removes that part, and if it reverses the order of `b` and
`r`, the difference is saved. For a normal drift the expected saving has a closed form (the expected
value of information for two alternatives).

Two rarer events count apart, since they are no drift: a network in use died, or a network that is
worse or dead recovered to what it was at an earlier probe. Without the second, a network met in a
bad second would be believed bad for ever.

Results of scheduled pings are in the evaluations, and trigger nothing here: a probe after each
change of loss or round trip cost more bytes and chose no better.
"""

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from math import erf, exp, expm1, hypot, inf, pi, sqrt
from typing import Protocol

from cedos.model import Evaluation, Indicator

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
    # Network name -> its known indicators, passive and active, with ages.
    indicators: Mapping[str, Mapping[str, Indicator]]
    # The strategies of the next transfer, judged by the present knowledge.
    evaluations: tuple[Evaluation, ...] = ()
    transfers_per_s: float = 0.0  # how many transfers began per second lately


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


# An age that stands for "never probed".
_NEVER_S = 1e9
# A change of this many ranges is entirely new.
_WHOLE = 3.0
# The number of remembered best costs of each network, as expected when it was probed.
_REMEMBERED = 20
# How long its answer is of use; transfers that begin within it share the cost.
_LIFETIME_S = 5.0


# The rates at which knowledge of a network goes stale, from how real networks change: the standard
# deviation of the log completion time that one second of age adds, the power of the age with which it
# grows, and its most.
_SIGMA_1S, _GROWTH, _SIGMA_MOST = 0.25, 0.35, 0.9
# How often a network that works stops carrying anything, per second, and how often one that is dead, or
# worse than the others, is what it was before.
_DEATH_PER_S, _REVIVAL_PER_S = 0.01, 0.2
# Seconds lost by a transfer that starts on a network that has just died.
_DEATH_COST_S = 0.5
# Standard deviation that a change of the passive indicators by their whole range adds (Delphi's equation
# 1: a sign of news counts in the same currency as age), and how often such a change is a network's end,
# or its return.
_SIGMA_CHANGE, _DEATH_PER_CHANGE = 0.6, 0.1


def _sigma(age_s: float, change: float) -> float:
    """Return the standard deviation after `age_s` and a passive change, in logarithms of time."""
    grown: float = _SIGMA_1S * max(age_s, 0.0) ** _GROWTH
    return min(hypot(grown, _SIGMA_CHANGE * change), _SIGMA_MOST)


def _died(age_s: float, change: float) -> float:
    """Return the probability that a network which worked carries nothing any more."""
    return -expm1(-_DEATH_PER_S * age_s - _DEATH_PER_CHANGE * change)


def _returned(age_s: float, change: float) -> float:
    """Return the probability that a bad network is what it was before."""
    return -expm1(-_REVIVAL_PER_S * age_s - _DEATH_PER_CHANGE * change)


class ProbeValue:
    """Probes where the expected saving exceeds the price of one probe, in seconds."""

    def __init__(self, price_s: float) -> None:
        self._price_s = price_s
        self._probed_at_s: dict[str, float] = {}
        self._before: dict[str, deque[float]] = {}
        self._passive = PassiveChange(0.0)

    def worth(self, network: str, moment: Moment) -> float:
        """Return the expected saving of all transfers that an answer would serve, in units of cost."""
        best, rival = _best(network, moment)
        if rival is None:
            return 0.0  # nothing to choose from
        age_s = moment.now_s - self._probed_at_s.get(network, -_NEVER_S)
        change = min(self._passive.change(network, moment), _WHOLE)
        each = 0.0
        # The saving if the answer reverses the order of the two best strategies.
        if best is not None:
            each = expected_saving(abs(rival - best), best * _sigma(age_s, change))
        # The saving if the network died: transfers would not begin on it.
        if best is not None and best <= rival:
            each += _died(age_s, change) * max(_DEATH_COST_S - (rival - best), 0.0)
        else:
            # The saving if a worse or dead network recovered to one of its earlier costs. Without any,
            # its best is assumed to be half of the rival's cost.
            before = self._before.get(network) or (0.5 * rival,)
            saved = sum([max(rival - cost, 0.0) for cost in before]) / len(before)
            each += _returned(age_s, change) * saved
        return each * moment.transfers_per_s * _LIFETIME_S

    def weigh(self, network: str, moment: Moment) -> bool:
        # A network without any knowledge is probed once.
        return network not in self._probed_at_s or self.worth(network, moment) > self._price_s

    def probed(self, network: str, moment: Moment) -> None:
        self._probed_at_s[network] = moment.now_s
        self._passive.probed(network, moment)
        best, _ = _best(network, moment)
        if best is not None:
            self._before.setdefault(network, deque(maxlen=_REMEMBERED)).append(best)


def _best(network: str, moment: Moment) -> tuple[float | None, float | None]:
    """Return the least cost of a strategy that starts on the network, and of one that does not."""
    mine: list[float] = []
    others: list[float] = []
    for each in moment.evaluations:
        (mine if each.strategy.networks[:1] == (network,) else others).append(each.cost)
    return min(mine, default=None), min(others, default=None)


def expected_saving(gap: float, sigma: float) -> float:
    """Return E[max(0, X - gap)] for a normal X of mean 0: the average saving of a reversed order."""
    if sigma <= 0.0:
        return 0.0
    z = gap / sigma
    # The closed form sigma * (phi(z) - z * (1 - Phi(z))) of a normal distribution's partial expectation.
    density = exp(-0.5 * z * z) / sqrt(2.0 * pi)
    above = 0.5 * (1.0 - erf(z / sqrt(2.0)))
    return sigma * (density - z * above)

"""Naive rules as predictors: the textbook's time at a rate that is guessed from the past.

What people use without learning anything: the rate of the last second, the last round trip alone, and
the two averages known from video players, exponentially weighted and harmonic. A data set holds mean
rates over windows of 1, 5 and 10 s, from which the rates of the newest second, the four before it and
the five before those follow; the averages run over these, by their seconds.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import exp, isnan, log
from typing import Any

from predictors.inputs import INPUTS, STRATEGIES
from predictors.naive import SLOWEST_BPS, naive_time_s

EWMA_PER_S = 0.4
"""The weight of a second's rate against all before it."""

_LARGEST = 25.0
# The windows: seconds before the start, and how many seconds each holds of its own.
_SECONDS = (1, 4, 5)
_AT = {
    network: tuple(
        INPUTS.index(f"{network}_{name}")
        for name in ("log_rtt", "log_past1", "log_past5", "log_past10", "log_naive")
    )
    for network in ("wifi", "cellular")
}


def ewma_bps(rates_bps: Sequence[float]) -> float:
    """Exponentially weighted mean of the windows' own rates, newest first; NaN ones do not count."""
    keep = 1.0 - EWMA_PER_S
    total = weights = 0.0
    before = 1.0
    for rate_bps, seconds in zip(rates_bps, _SECONDS, strict=True):
        after = before * keep**seconds
        if not isnan(rate_bps):
            total += (before - after) * rate_bps
            weights += before - after
        before = after
    return total / weights if weights else float("nan")


def harmonic_bps(rates_bps: Sequence[float]) -> float:
    """Harmonic mean over the seconds of the windows' own rates; one dead second pulls it down."""
    total = seconds_known = 0.0
    for rate_bps, seconds in zip(rates_bps, _SECONDS, strict=True):
        if not isnan(rate_bps):
            total += seconds / max(rate_bps, SLOWEST_BPS)
            seconds_known += seconds
    return seconds_known / total if total else float("nan")


def _last_bps(rates_bps: Sequence[float]) -> float:
    return rates_bps[0]


def _no_limit_bps(rates_bps: Sequence[float]) -> float:
    """The last round trip alone: as if every network were fast enough."""
    return 1e9


RULES: Mapping[str, Callable[[Sequence[float]], float]] = {
    "last-rate": _last_bps,
    "ewma": ewma_bps,
    "harmonic": harmonic_bps,
    "last-rtt": _no_limit_bps,
}


@dataclass(frozen=True, slots=True)
class Rule:
    """A naive rule for some strategies; MPTCP is taken for its primary alone.

    Attributes:
        name: one of `RULES`.
        strategies: whose times it gives, in order.
    """

    name: str
    strategies: tuple[str, ...]

    def walk(self, both: Sequence[float]) -> list[float]:
        """The logarithm of the rule's time over the naive one; 0 where the rule knows no rate."""
        by_network = {
            network: self._off(both[0], [both[2 * k] for k in at]) for network, at in _AT.items()
        }
        return [by_network[name.removeprefix("mptcp_")] for name in self.strategies]

    def _off(self, log_size: float, known: Sequence[float]) -> float:
        log_rtt, log_past1, log_past5, log_past10, log_naive = known
        past1, past5, past10 = exp(log_past1), exp(log_past5), exp(log_past10)
        own = (past1, max(5.0 * past5 - past1, 0.0) / 4.0, max(2.0 * past10 - past5, 0.0))
        rate_bps = RULES[self.name](own)
        if isnan(log_rtt) or isnan(rate_bps) or isnan(log_naive):
            return 0.0
        off = log(naive_time_s(exp(log_size), exp(log_rtt), rate_bps)) - log_naive
        return min(max(off, -_LARGEST), _LARGEST)

    def to_dict(self) -> dict[str, Any]:
        return {"rule": self.name, "of": list(self.strategies)}

    @classmethod
    def over(cls, data: Mapping[str, Any], inputs: Sequence[str], outputs: int) -> "Rule":
        """Rebuilds a rule; ValueError if it is none for that many strategies."""
        try:
            rule, strategies = str(data["rule"]), tuple(str(name) for name in data["of"])
        except (KeyError, TypeError) as error:
            raise ValueError(f"not a rule: {error!r}") from error
        if (
            rule not in RULES
            or len(strategies) != outputs
            or not set(strategies) <= set(STRATEGIES)
        ):
            raise ValueError(f"not a rule known here: {rule}")
        return cls(rule, strategies)

"""How much a network will have carried by an instant, as a quantile (bits).

A network that comes and goes is an alternating renewal process: what is left of the stretch under way is
known from its age, what comes after it by the share of time that the network is there, whose spread
shrinks with the horizon (variance per second (mu^2 s'^2 + mu'^2 s^2) / (mu + mu')^3 for stays mu, s and
absences mu', s'). Both are quantiles; the better one of the two bounds counts.
"""

from math import gamma, inf
from typing import Final, Protocol

from cedos.selector.deadlines.sustained_rate import SustainedRate, deviations
from cedos.selector.prefetch.stretches import Stretch
from predictors.weibull import Weibull

_LONG_S: Final = 1e7


class Supply(Protocol):
    """What one network can carry from now on."""

    def bits(self, within_s: float, q: float, wait_s: float = 0.0, /) -> float:
        """It will have carried less than this within so long with probability `q`; grows with both.

        `wait_s`: for so long it carries nothing first.
        """


class ForecastSupply:
    """By what is known of a network at `now_s`.

    Args:
        stretch: the stay or absence under way; None: it stays as it is.
        up: whether it is there.
    """

    def __init__(
        self, rate: SustainedRate, now_s: float, *, up: bool = True, stretch: Stretch | None = None
    ) -> None:
        self._rate, self._now_s, self._up, self._stretch = rate, now_s, up, stretch
        self._share, self._spread = (1.0, 0.0) if stretch is None else _renewal(stretch)
        # Asked at the same few quantiles for one deadline after the other.
        self._at: dict[float, tuple[float, float, float]] = {}

    def bits(self, within_s: float, q: float, wait_s: float = 0.0) -> float:
        """The product of the quantiles of the time that it is there, and of its rate over that."""
        there_s = self.there_s(within_s - wait_s, q)
        if there_s <= 0.0:
            return 0.0
        return there_s * self._rate.quantile_bps(there_s, q, self._now_s)

    def there_s(self, within_s: float, q: float) -> float:
        """Of the next `within_s` it is there for less than this with probability `q`."""
        if within_s <= 0.0:
            return 0.0
        if self._stretch is None:
            return within_s if self._up else 0.0
        found = self._at.get(q)
        if found is None:
            found = self._at[q] = self._stays_at(self._stretch, q)
        away_s, this_stay_s, deviating = found
        within_s -= away_s
        if within_s <= 0.0:
            return 0.0
        renewed_s: float = self._share * within_s + deviating * (self._spread * within_s) ** 0.5
        return min(max(this_stay_s, renewed_s, 0.0), within_s)

    def _stays_at(self, stretch: Stretch, q: float) -> tuple[float, float, float]:
        """Seconds until it is there, and of its stay from then on; the deviations of `q`."""
        away_s = 0.0 if self._up else stretch.away.remaining_s(stretch.age_s, 1.0 - q)
        age_s = stretch.age_s if self._up else 0.0
        return away_s, stretch.stay.remaining_s(age_s, q), deviations(q)


def _renewal(stretch: Stretch) -> tuple[float, float]:
    """Share of the time that a network is there, and the variance of it per second."""
    stay_s, stay_2 = _moments(stretch.stay)
    away_s, away_2 = _moments(stretch.away)
    cycle_s = stay_s + away_s
    if stay_s >= _LONG_S:
        return 1.0, 0.0
    if not 0.0 < cycle_s < inf:
        return 0.0, 0.0
    return stay_s / cycle_s, (stay_s**2 * away_2 + away_s**2 * stay_2) / cycle_s**3


def _moments(of: Weibull) -> tuple[float, float]:
    """Mean and variance."""
    mean = of.scale_s * gamma(1.0 + 1.0 / of.shape)
    return mean, max(of.scale_s**2 * gamma(1.0 + 2.0 / of.shape) - mean * mean, 0.0)

"""What an old measurement is still worth: rates drift back to what is usual, and become uncertain.

The best guess of an old rate lies between what was measured and the mean of all places, and the part of
the variance that the measurement no longer explains widens the prediction. So a network that was bad and
is not used any more becomes an average one of which little is known: it is tried again (dissertation,
6.4.3). What was measured at another access point counts as measured long ago. How fast
rates drift was measured: `docs/decisions/old-rates.md`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from math import exp, inf, log, sqrt

from cedos.model import Context, Direction, Indicator
from cedos.selector.decision.features import DELIVERY, RATES, indicator_of
from cedos.selector.decision.roles import ROLES, ROLES_OF, Roles
from predictors.base import Distribution
from predictors.error import spread

FRESH_S = 1.5
"""Younger than this is as new as measurements get: flows are looked at once a second at least."""

_UNKNOWN_RTT_S = 0.05
# The bounds of a 90 % interval are this many standard deviations apart.
_SIGMAS = 3.29
_LEAST_SIGMA = 0.02
_COLUMN = {(role, name): f"{role}_{name}" for role in ROLES for name in RATES}


@dataclass(frozen=True, slots=True)
class RateDrift:
    """How the logarithm of a kind of network's rate wanders.

    Attributes:
        usual_bps: geometric mean over all places.
        sigma: standard deviation of the natural logarithm over all places and seconds.
        lasting: the part of an old deviation that stays, because places differ.
        fading_s: time constant with which the rest fades.
    """

    usual_bps: float
    sigma: float
    lasting: float
    fading_s: float

    def share_left(self, age_s: float) -> float:
        """The share of a measured deviation from the usual that is still expected; 1: all."""
        return self.lasting + (1.0 - self.lasting) * exp(-max(age_s, 0.0) / self.fading_s)

    def now_bps(self, measured_bps: float, age_s: float) -> float:
        """The expected rate now (its logarithm's mean) of one that was measured `age_s` ago."""
        return float(
            self.usual_bps * (max(measured_bps, 1.0) / self.usual_bps) ** self.share_left(age_s)
        )

    def raised_bps(self, expected_bps: float, least_bps: float, age_s: float) -> float:
        """An expected rate, where a network did at least so much `age_s` ago."""
        more = max(least_bps / max(expected_bps, 1.0), 1.0)
        return float(expected_bps * more ** self.share_left(age_s))

    def lost_variance(self, age_s: float) -> float:
        """Variance of the logarithm that the measurement no longer explains."""
        share_left = self.share_left(age_s)
        return self.sigma * self.sigma * (1.0 - share_left * share_left)


DRIFTS = {
    "wifi": RateDrift(usual_bps=8.3e6, sigma=1.94, lasting=0.17, fading_s=9.0),
    "cellular": RateDrift(usual_bps=10.4e6, sigma=1.44, lasting=0.55, fading_s=10.0),
}


def aged(
    columns: Mapping[str, float], context: Context, roles: Roles, direction: Direction
) -> tuple[Mapping[str, float], dict[str, float]]:
    """The predictors' columns as they are to be expected now, and what is uncertain about them.

    Args:
        columns: as `features` made them of the same context.
        context: the indicators with their instants, and since when networks have been attached.
        roles: who plays which part.
        direction: the transfer's, as there are rates of both.

    Returns:
        The columns, old rates moved towards the usual; and by role the variance that age adds to
        the logarithm of a transfer's time. Roles whose rates are fresh or unknown are missing.
    """
    found: dict[str, float] | None = None
    added: dict[str, float] = {}
    for role, network in roles.players():
        indicators = context.networks.get(network.name)
        if not indicators:
            continue
        attached = context.attachments.get(network.name)
        known = _Known(
            indicators,
            direction,
            DRIFTS[role],
            context.at_s,
            attached.since_s if attached else -inf,
        )
        measured = [name for name in RATES if _COLUMN[role, name] in columns]
        for name in measured or RATES:
            expected = known.expected(name if measured else None)
            if expected is None:
                continue
            rate_bps, age_s = expected
            found = dict(columns) if found is None else found
            found[_COLUMN[role, name]] = rate_bps
            if role not in added:
                share = _share_of_rate(found, role, rate_bps)
                added[role] = share * share * known.drift.lost_variance(age_s)
    return (columns if found is None else found), added


@dataclass(frozen=True, slots=True)
class _Known:
    """What is known of a network's rates in one direction, and what is to be expected of it now."""

    indicators: Mapping[str, Indicator]
    direction: Direction
    drift: RateDrift
    at_s: float
    attached_at_s: float

    def expected(self, name: str | None) -> tuple[float, float] | None:
        """The rate, bit/s, and the age, s, of what it is known from.

        None where the measurement is fresh, and where models know better what to do without any;
        `name`: None where no rate was measured, or they look at none.
        """
        known_at_s = -inf
        if (
            name is None
            or (measured := indicator_of(self.indicators, name, self.direction)) is None
        ):
            age_s, rate_bps = inf, self.drift.usual_bps
        else:
            age_s = self._age_s(measured)
            if age_s <= FRESH_S:
                return None
            rate_bps, known_at_s = self.drift.now_bps(measured.value, age_s), measured.measured_at_s
            down = self.indicators.get(name)
            if down is not None and down.measured_at_s > known_at_s:
                down_bps = self._now_bps(down)
                if down_bps < rate_bps:
                    rate_bps, known_at_s = down_bps, down.measured_at_s
        least = self.indicators.get(DELIVERY[self.direction])
        # (A network that fades did more before than it was measured to do since.)
        if least is not None and least.measured_at_s >= max(self.attached_at_s, known_at_s):
            least_age_s = self.at_s - least.measured_at_s
            raised_bps = self.drift.raised_bps(rate_bps, least.value, least_age_s)
            if raised_bps > rate_bps:
                rate_bps, age_s = raised_bps, min(age_s, least_age_s)
        # (Of what was measured something is known, if only that it was long ago.)
        return None if known_at_s == -inf and age_s == inf else (rate_bps, age_s)

    def _age_s(self, measured: Indicator) -> float:
        # What was measured at another access point was measured long ago.
        return (
            inf
            if measured.measured_at_s < self.attached_at_s
            else self.at_s - measured.measured_at_s
        )

    def _now_bps(self, measured: Indicator) -> float:
        age_s = self._age_s(measured)
        return measured.value if age_s <= FRESH_S else self.drift.now_bps(measured.value, age_s)


def widened(strategy: str, time: Distribution, added: Mapping[str, float]) -> Distribution:
    """A strategy's completion time with the uncertainty that the age of its networks' rates adds.

    `added`: by role, from `aged`. MPTCP has the mean of its networks: each carries a part.
    """
    roles = ROLES_OF[strategy]
    variance = 0.0
    for role in roles:
        variance += added.get(role, 0.0)
    samples = time.samples
    if variance <= 0.0 or len(samples) < 2 or samples[0] <= 0.0:
        return time
    sigma = max(log(samples[-1] / samples[0]) / _SIGMAS, _LEAST_SIGMA)
    return Distribution(spread(samples, sqrt(1.0 + variance / (len(roles) * sigma * sigma))))


def _share_of_rate(columns: Mapping[str, float], role: str, rate_bps: float) -> float:
    """How much of a transfer's time is the rate's doing, 0 to 1; the rest is round trips."""
    rate_s = 8.0 * columns["size_bytes"] / max(rate_bps, 1.0)
    return rate_s / (rate_s + 2.0 * columns.get(f"{role}_rtt_s", _UNKNOWN_RTT_S))

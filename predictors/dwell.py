"""How long this host stays in range of the access point that it is attached to.

Dwell times follow a Weibull distribution whose hazard falls with time: an access point that was met
a moment ago is soon gone, one that has been there for a while stays (dissertation, 4.4.2). Every
access point has a distribution of its own as soon as there are sessions to tell it; until then, and
beside it, stands what all the others showed, and before the first session a generic prior.
"""

from collections import OrderedDict, deque
from collections.abc import Mapping, Sequence
from math import inf, isfinite, log

from predictors.base import Distribution
from predictors.weibull import Weibull, fit

GENERIC = Weibull(shape=0.77, scale_s=66.0)
"""Median 41 s, and one session of 25 longer than 5 min: the walk of the dissertation's Table 4.2."""

REMAINING = "remaining_s"
SLICES = 20

_GENERIC_WORTH = 4.0
"""How many sessions the generic prior is worth beside those of all access points."""

_OTHERS_WORTH = 1.0
"""How many sessions those of all others are worth beside an access point's own."""

_SESSIONS = 50
_ALL_SESSIONS = 200
_POINTS = 256
_LEAST_S, _LONGEST_S = 0.1, 1e8


class DwellPredictor:
    """Sessions at access points in, the rest of the present one out; itself a `Predictor`."""

    features: Sequence[str] = ("age_s",)

    def __init__(self, generic: Weibull = GENERIC) -> None:
        self._generic = generic
        self._at: OrderedDict[str, deque[tuple[float, bool]]] = OrderedDict()
        self._all: deque[tuple[float, bool]] = deque(maxlen=_ALL_SESSIONS)
        self._since_s: dict[str, float] = {}
        self._fitted: dict[str | None, Weibull] = {}

    def attached(self, point: str, at_s: float) -> None:
        """The host is attached to an access point since `at_s` (any clock's seconds)."""
        self._since_s.setdefault(point, at_s)

    def left(self, point: str, at_s: float) -> None:
        """The access point is out of range; nothing is learned of one that was never attached to."""
        since_s = self._since_s.pop(point, None)
        if since_s is not None:
            self.observe(point, at_s - since_s)

    def age_s(self, point: str, now_s: float) -> float:
        """How long the present session has lasted; 0 where there is none."""
        return max(now_s - self._since_s.get(point, now_s), 0.0)

    def observe(self, point: str, dwell_s: float, censored: bool = False) -> None:
        """Takes a session.

        `dwell_s`: how long it lasted; what is not positive and finite is no session.
        `censored`: whether it was ended from here (switched off, suspended), not by the network.
        """
        if not 0.0 < dwell_s < inf:
            return
        session = (min(max(dwell_s, _LEAST_S), _LONGEST_S), censored)
        if point not in self._at and len(self._at) >= _POINTS:
            self._at.popitem(last=False)
        self._at.setdefault(point, deque(maxlen=_SESSIONS)).append(session)
        self._at.move_to_end(point)
        self._all.append(session)
        self._fitted.clear()

    def weibull(self, point: str | None = None) -> Weibull:
        """The distribution of an access point's sessions; None: of one about which nothing is known."""
        found = self._fitted.get(point)
        if found is None:
            sessions = self._at.get(point) if point is not None else self._all
            if point is not None and not sessions:
                return self.weibull()
            prior, worth = (
                (self._generic, _GENERIC_WORTH)
                if point is None
                else (self.weibull(), _OTHERS_WORTH)
            )
            found = self._fitted[point] = _fitted(sessions or (), prior, worth)
        return found

    def remaining(self, point: str | None, age_s: float) -> Distribution:
        of = self.weibull(point)
        return Distribution(
            tuple([of.remaining_s(age_s, (k + 0.5) / SLICES) for k in range(SLICES)])
        )

    def survival(self, point: str | None, age_s: float, more_s: float) -> float:
        """The probability that a session that has lasted `age_s` lasts for `more_s` more."""
        return self.weibull(point).survival_after(age_s, more_s)

    def mean_residual_s(self, point: str | None, age_s: float) -> float:
        return self.weibull(point).mean_residual_s(age_s)

    def predict(self, features: Mapping[str, float], /) -> dict[str, Distribution]:
        age_s = features.get("age_s", 0.0)
        left = self.remaining(None, age_s if isfinite(age_s) else 0.0)
        return {REMAINING: Distribution(tuple([max(each, 1e-3) for each in left.samples]))}

    def update(self, features: Mapping[str, float], name: str, actual: float, /) -> None:
        """Learns that a session somewhere, `age_s` old then, lasted for `actual` seconds more.

        Raises:
            KeyError: for another name than `remaining_s`.
        """
        if name != REMAINING:
            raise KeyError(name)
        age_s = features.get("age_s", 0.0)
        self.observe("", (age_s if isfinite(age_s) else 0.0) + actual)


def _fitted(sessions: Sequence[tuple[float, bool]], prior: Weibull, worth: float) -> Weibull:
    """The fit to sessions and to as many more as the prior is worth, spread as it says."""
    parts = 9
    believed = [
        prior.scale_s * (-log(1.0 - (k + 0.5) / parts)) ** (1.0 / prior.shape) for k in range(parts)
    ]
    return (
        fit(
            [*(time_s for time_s, _ in sessions), *believed],
            [*(censored for _, censored in sessions), *[False] * parts],
            [*[1.0] * len(sessions), *[worth / parts] * parts],
            near=prior.shape,
        )
        or prior
    )

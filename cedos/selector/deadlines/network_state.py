"""Networks for deadline planning: sustained rates, presence, and the bytes they will carry.

**Sustained rate.** Means over longer windows vary less, and a long transfer needs only those. So
means of four lengths are kept, each with the error of the next window of its length. For an unknown
network the errors are those of real cellular traces (mean of the next seconds over that of the last
ten, in logarithms): the hundredth worst second had a hundredth of its rate, the hundredth worst
minute a fifth.

**Supply.** The bytes carried by an instant, as a quantile. A network that comes and goes is an
alternating renewal process. The rest of the present stretch follows from its age; the time after it
from the share of time that the network is present, whose spread shrinks with the horizon (variance
per second (mu^2 s'^2 + mu'^2 s^2) / (mu + mu')^3 for stays mu, s and absences mu', s'). Both are
quantiles; the better one of the two bounds counts.

**Network state.** `HostNetworks` learns both from use and by watching, and gives the schedulers a
`NetworkState` for each network.
"""

from collections.abc import Iterable, Mapping, Sequence
from math import exp, gamma, inf, isfinite, log, log10
from statistics import NormalDist
from typing import Any, Final, NamedTuple, Protocol

from cedos.model import Direction
from cedos.selector.budgets.controller import PROHIBITIVE
from cedos.selector.prefetch.outlook import Stretch, Stretches
from predictors.dwell import Weibull

WINDOWS_S: Final = (1.0, 10.0, 100.0, 1000.0)
# Typical errors of an expected rate, as the standard deviation of its logarithm, one for each
# window of `WINDOWS_S`.
TYPICAL_ERRORS: Final = (1.3, 0.65, 0.6, 0.5)

# The number of windows that the typical errors are worth beside a network's own.
_WORTH: Final = (8.0, 3.0, 1.5, 1.0)

# The number of windows that an error estimate remembers.
_MEMORY: Final = 60.0

# A window with a smaller share of the expected rate is an outage and counts as this share. One
# faster by the inverse factor is limited likewise.
_SLOWEST: Final = 0.02

# The further error (of the logarithm) of a rate that was not observed for very long: it is then as
# uncertain as that of another place. After `_AGES_S`, 1 - 1/e of its square is reached.
_AGED: Final = 0.5
_AGES_S: Final = 900.0

# The time of use after which an old rate is certain again.
_SEEN_AGAIN_S: Final = 30.0

_CERTAIN: Final = 1e-6
_NORMAL: Final = NormalDist()
_Z: Final[dict[float, float]] = {}

# Two windows by number, the shorter one first, and the position between them (0 to 1).
_Between = tuple[int, int, float]


def deviations(q: float) -> float:
    """Return the distance of quantile `q` from the mean, in standard deviations."""
    found = _Z.get(q)
    if found is None:
        found = _NORMAL.inv_cdf(min(max(q, 1e-9), 1.0 - 1e-9))
        if len(_Z) < 1000:
            _Z[q] = found
    return found


class _Window:
    """The windows of one length: the one being filled, their mean and their squared error."""

    __slots__ = ("bits", "filled_s", "mean_bps", "square", "weight")

    def __init__(self) -> None:
        self.bits = self.filled_s = 0.0
        self.mean_bps = self.weight = self.square = 0.0


class SustainedRate:
    """The sustained rate of one network in one direction; only a busy second shows it."""

    def __init__(self) -> None:
        self._windows = [_Window() for _ in WINDOWS_S]
        self._at_s: float | None = None
        self._stale = 0.0
        self._settle()

    def _settle(self) -> None:
        """Compute the means and errors of all windows, which are read often between two observations."""
        count = len(WINDOWS_S)
        self._means = [self._mean(index) for index in range(count)]
        self._errors = [self._error(index) for index in range(count)]

    @property
    def known(self) -> bool:
        return self._at_s is not None

    def observe(self, rate_bps: float, lasted_s: float, at_s: float) -> None:
        """Record a rate over `lasted_s` seconds until `at_s`; impossible values are ignored."""
        if not (isfinite(rate_bps) and rate_bps >= 0.0 and 0.0 < lasted_s < 1e6):
            return
        # What was stale becomes certain again while the network is seen.
        self._stale = self._lost_share(at_s - lasted_s) * exp(-lasted_s / _SEEN_AGAIN_S)
        self._at_s = at_s
        for window, length_s in zip(self._windows, WINDOWS_S, strict=True):
            window.bits += rate_bps * lasted_s
            window.filled_s += lasted_s
            # A full window of 1, 10, 100, ... seconds updates the mean and error of its length.
            if window.filled_s >= 0.999 * length_s:
                self._on_full_window(window)
        self._settle()

    def _on_full_window(self, window: _Window) -> None:
        mean_bps = window.bits / window.filled_s
        window.bits = window.filled_s = 0.0
        if window.weight and window.mean_bps > 0.0:
            # The error of the prediction that this window's mean was for the next one.
            error = log(min(max(mean_bps / window.mean_bps, _SLOWEST), 1.0 / _SLOWEST))
            window.square += (error * error - window.square) / min(window.weight, _MEMORY)
        window.weight += 1.0
        window.mean_bps += (mean_bps - window.mean_bps) / min(window.weight, _MEMORY)

    def mean_bps(self, over_s: float) -> float:
        """Return the expected mean rate over this time; 0: unknown."""
        return _on_line(self._means, _evidence_between(over_s))

    def _mean(self, index: int) -> float:
        # The longest window that was ever full, up to this length.
        for window in reversed(self._windows[: index + 1]):
            if window.weight:
                return window.mean_bps
        first = self._windows[0]
        return first.bits / first.filled_s if first.filled_s else 0.0

    def error(self, over_s: float, now_s: float) -> float:
        """Return the standard deviation of the logarithm of the mean rate over this time."""
        return self._aged_error(_evidence_between(over_s), now_s)

    def _aged_error(self, between: _Between, now_s: float) -> float:
        found = _on_line(self._errors, between)
        if aged := self._lost_share(now_s):
            found = (found * found + _AGED * _AGED * aged) ** 0.5
        return found

    def _lost_share(self, now_s: float) -> float:
        """Return the share of the knowledge that is lost by its age (0 to 1)."""
        if self._at_s is None or now_s <= self._at_s + 1.0:
            return self._stale
        return 1.0 - (1.0 - self._stale) * exp((self._at_s + 1.0 - now_s) / _AGES_S)

    def _error(self, index: int) -> float:
        """Return the window's own error beside the typical one.

        If shorter windows vary less than typical ones, so will this one: the typical error is scaled.
        """
        scale = found = 1.0
        for window, typical, worth in zip(
            self._windows[: index + 1], TYPICAL_ERRORS, _WORTH, strict=False
        ):
            assumed = typical * scale
            # Few own observations: the typical error of this length weighs more.
            own = max(window.weight - 1.0, 0.0)
            square = (own * window.square + worth * assumed * assumed) / (own + worth)
            found = square**0.5
            scale = min((found / typical) ** 0.75, 1.0)
        return found

    def quantile_bps(self, over_s: float, q: float, now_s: float) -> float:
        """Return the rate below which the mean over this time stays with probability `q`."""
        between = _evidence_between(over_s)
        error = self._aged_error(between, now_s)
        mean_bps = _on_line(self._means, between)
        return mean_bps if error < _CERTAIN else mean_bps * exp(deviations(q) * error)

    def to_state(self) -> dict[str, list[float]]:
        """Return the state to keep for the next start."""
        return {
            f"{length_s:g}": [window.mean_bps, window.weight, window.square]
            for window, length_s in zip(self._windows, WINDOWS_S, strict=True)
        }

    def restore(self, state: Mapping[str, Sequence[float]], at_s: float) -> None:
        """Restore a kept state as known at `at_s`; senseless numbers are left out."""
        for window, length_s in zip(self._windows, WINDOWS_S, strict=True):
            numbers = state.get(f"{length_s:g}", ())
            if len(numbers) == 3 and all(
                isinstance(each, float | int) and 0.0 <= each < 1e15 for each in numbers
            ):
                window.mean_bps, window.weight, window.square = map(float, numbers)
                if window.weight:
                    self._at_s = at_s
        self._settle()


def _on_line(by_window: Sequence[float], between: _Between) -> float:
    shorter, longer, share = between
    low = by_window[shorter]
    return low + share * (by_window[longer] - low)


# Windows are powers of ten, so the logarithm is the position between two of them.
def _evidence_between(over_s: float) -> _Between:
    if over_s <= 1.0:
        return 0, 0, 0.0
    at = log10(over_s)
    shorter = int(at)
    if shorter >= len(WINDOWS_S) - 1:
        return len(WINDOWS_S) - 1, len(WINDOWS_S) - 1, 0.0
    return shorter, shorter + 1, at - shorter


_LONG_S: Final = 1e7


class Supply(Protocol):
    """The bytes that one network can carry from now on."""

    def bits(self, within_s: float, q: float, wait_s: float = 0.0, /) -> float:
        """Return the bits that it carries less than with probability `q`; grows with time and `q`.

        `wait_s`: the time at the beginning in which it carries nothing.
        """


class ForecastSupply:
    """The supply of a network by what is known of it at `now_s`.

    Args:
        stretch: the present stay or absence; None: it stays as it is.
        up: whether it is present.
    """

    def __init__(
        self, rate: SustainedRate, now_s: float, *, up: bool = True, stretch: Stretch | None = None
    ) -> None:
        self._rate, self._now_s, self._up, self._stretch = rate, now_s, up, stretch
        self._share, self._spread = (1.0, 0.0) if stretch is None else _renewal(stretch)
        # Schedulers ask at the same few quantiles for many deadlines.
        self._at: dict[float, tuple[float, float, float]] = {}

    def bits(self, within_s: float, q: float, wait_s: float = 0.0) -> float:
        """Return the product of the quantiles of the time of presence and of the rate over that time."""
        there_s = self.there_s(within_s - wait_s, q)
        if there_s <= 0.0:
            return 0.0
        return there_s * self._rate.quantile_bps(there_s, q, self._now_s)

    def there_s(self, within_s: float, q: float) -> float:
        """Return the seconds below which its presence in `within_s` stays with probability `q`."""
        if within_s <= 0.0:
            return 0.0
        if self._stretch is None:
            return within_s if self._up else 0.0
        found = self._at.get(q)
        if found is None:
            found = self._at[q] = self._stays_at(self._stretch, q)
        # The absence under way comes first, then this stay or the long-run share of the time.
        away_s, this_stay_s, deviating = found
        within_s -= away_s
        if within_s <= 0.0:
            return 0.0
        renewed_s: float = self._share * within_s + deviating * (self._spread * within_s) ** 0.5
        return min(max(this_stay_s, renewed_s, 0.0), within_s)

    def _stays_at(self, stretch: Stretch, q: float) -> tuple[float, float, float]:
        """Return the seconds until it is present, and of its stay from then on; the deviations of `q`."""
        away_s = 0.0 if self._up else stretch.away.remaining_s(stretch.age_s, 1.0 - q)
        age_s = stretch.age_s if self._up else 0.0
        return away_s, stretch.stay.remaining_s(age_s, q), deviations(q)


def _renewal(stretch: Stretch) -> tuple[float, float]:
    """Return the share of the time that a network is present, and its variance per second."""
    stay_s, stay_2 = _moments(stretch.stay)
    away_s, away_2 = _moments(stretch.away)
    cycle_s = stay_s + away_s
    if stay_s >= _LONG_S:
        return 1.0, 0.0
    if not 0.0 < cycle_s < inf:
        return 0.0, 0.0
    return stay_s / cycle_s, (stay_s**2 * away_2 + away_s**2 * stay_2) / cycle_s**3


def _moments(of: Weibull) -> tuple[float, float]:
    """Return the mean and the variance of a Weibull distribution."""
    mean = of.scale_s * gamma(1.0 + 1.0 / of.shape)
    return mean, max(of.scale_s**2 * gamma(1.0 + 2.0 / of.shape) - mean * mean, 0.0)


class NetworkState(NamedTuple):
    """The state of one network now."""

    name: str
    up: bool  # whether it can carry anything now
    # Seconds that a byte over it is worth (prices of budgets, `seconds_per_metered_mb`); 0: it costs
    # nothing, inf: nothing may be carried over it.
    price_s: float
    rate_bps: float  # what it carries at this instant, expected (D2Sched's r)
    supply: Supply  # what it will have carried
    fresh: bool = False  # it has been there for less than an epoch, which D2Sched measures in
    unmeasured: bool = False  # its rate is a guess, and it is being used to learn it

    @property
    def free(self) -> bool:
        return self.price_s <= 0.0

    @property
    def usable(self) -> bool:
        return self.price_s < inf


# The assumed rate of a network without any use or observation. It is deliberately low.
_TYPICAL_BPS: Final = 1e6

# A network that was never used carries alone for this time, to show its rate.
_MEASURING_S: Final = 3.0

# The assumed mean stay of a network.
STAY_S: Final = 600.0
# The prior of a network's absence. Most last a few seconds (nine on average at the real places),
# but one that lasted ten minutes lasts nine more with a probability of 5 %.
ABSENCE: Final = Weibull(shape=0.5, scale_s=10.0)

_MOST_NETWORKS: Final = 64
# The price of a metered byte, in seconds, where no objective sets one.
METERED_S: Final = 0.2 / 1e6


class SeenNetwork(NamedTuple):
    """A network of this instant, with the rates that others saw of it lately; None: none."""

    name: str
    up: bool
    price_s: float
    seen_bps: float | None = None
    seen_up_bps: float | None = None


class HostNetworks:
    """The rates and the presence of a host's networks, by name; their number is bounded."""

    def __init__(self) -> None:
        self._rates: dict[tuple[str, Direction], SustainedRate] = {}
        self._stretches: dict[str, Stretches] = {}
        self._since_s: dict[str, float] = {}
        self._up: set[str] = set()
        self._watched_s: float | None = None
        self._first_used_s: dict[tuple[str, Direction], float] = {}

    def on_measured(
        self, name: str, direction: Direction, rate_bps: float, lasted_s: float, now: float
    ) -> None:
        """Record the rate of a transfer that took all it could get."""
        if (name, direction) in self._rates or len(self._rates) < 2 * _MOST_NETWORKS:
            self._rate(name, direction).observe(rate_bps, lasted_s, now)

    def watch(self, networks: Iterable[SeenNetwork], now: float) -> None:
        """Record which networks are up; to be called about every second, and on each change."""
        passed_s = 0.0 if self._watched_s is None else now - self._watched_s
        self._watched_s = now
        up = {each.name for each in networks if each.up}
        # Learn stays and absences of each network, for a bounded number of them.
        for name in up - self._stretches.keys():
            if len(self._stretches) < _MOST_NETWORKS:
                self._stretches[name] = Stretches(STAY_S, ABSENCE)
        if passed_s > 0.0:
            for name, stretches in self._stretches.items():
                stretches.record(passed_s, name in self._up)
        for name in up - self._up:
            self._since_s[name] = now
        self._up = up

    def states(
        self,
        networks: Iterable[SeenNetwork],
        direction: Direction,
        now: float,
        *,
        used: bool = False,
    ) -> list[NetworkState]:
        """Return the states for the schedulers; `used`: some transfer is waiting."""
        found = []
        for each in networks:
            rate = self._rates.get((each.name, direction))
            unmeasured = False
            seen_bps = each.seen_up_bps if direction is Direction.UP else each.seen_bps
            # Never used by a transfer: take what others saw, else a low promise, and measure it.
            if rate is None or not rate.known:
                if used and each.up and seen_bps is None and len(self._first_used_s) < 1000:
                    first_s = self._first_used_s.setdefault((each.name, direction), now)
                    unmeasured = now - first_s < _MEASURING_S
                rate = SustainedRate()
                rate.observe(seen_bps or _TYPICAL_BPS, 1.0, now)
            # A metered network is taken to be there when it is needed: radios are switched on for it.
            stretches = self._stretches.get(each.name) if each.price_s <= 0.0 else None
            stretch = stretches.stretch() if stretches is not None else None
            found.append(
                NetworkState(
                    each.name,
                    each.up,
                    each.price_s if each.price_s < PROHIBITIVE / 2 else inf,
                    rate.mean_bps(1.0),
                    ForecastSupply(rate, now, up=each.up, stretch=stretch),
                    unmeasured=unmeasured,
                )
            )
        return found

    def to_state(self) -> dict[str, Any]:
        """Return the state to keep for the next start."""
        return {
            "rates": [[name, way, rate.to_state()] for (name, way), rate in self._rates.items()],
            "stretches": {name: each.to_state() for name, each in self._stretches.items()},
        }

    def restore(self, state: Any, now: float) -> None:
        """Restore a kept state; senseless values are left out."""
        if not isinstance(state, Mapping):
            return
        rates, stretches = state.get("rates"), state.get("stretches")
        for each in rates[: 2 * _MOST_NETWORKS] if isinstance(rates, list) else ():
            match each:
                case [str(name), "down" | "up" as way, dict(known)]:
                    self._rate(name, Direction(way)).restore(known, now)
                case _:
                    pass
        for name, kept in stretches.items() if isinstance(stretches, Mapping) else ():
            if isinstance(name, str) and isinstance(kept, Mapping):
                known_ones = Stretches(STAY_S, ABSENCE)
                known_ones.restore(kept)
                self._stretches[name] = known_ones

    def _rate(self, name: str, direction: Direction) -> SustainedRate:
        return self._rates.setdefault((name, direction), SustainedRate())

"""What a host knows of its networks for deadlines: rates by use, stays and absences by watching. Pure."""

from collections.abc import Iterable, Mapping
from math import inf
from typing import Any, Final, NamedTuple

from cedos.model import Direction
from cedos.selector.budgets.supply import PROHIBITIVE
from cedos.selector.deadlines.network_state import NetworkState
from cedos.selector.deadlines.supply import ForecastSupply
from cedos.selector.deadlines.sustained_rate import SustainedRate
from cedos.selector.prefetch.stretches import Stretches
from predictors.weibull import Weibull

_TYPICAL_BPS: Final = 1e6
"""Of what was never used or seen: little is promised."""

_MEASURING_S: Final = 3.0
"""A network that was never used gets so long to show what it carries before others join it."""

STAY_S: Final = 600.0
ABSENCE: Final = Weibull(shape=0.5, scale_s=10.0)
"""Before anything is known of a network's: most absences are a few seconds (nine on average at the real
places), but one that has lasted for ten minutes lasts for nine more with a probability of 5 %."""

_MOST_NETWORKS: Final = 64


class SeenNetwork(NamedTuple):
    """A network of this instant; what others saw of it lately, down and up, None: nothing."""

    name: str
    up: bool
    price_s: float
    seen_bps: float | None = None
    seen_up_bps: float | None = None


class HostNetworks:
    """All networks, by name; bounded."""

    def __init__(self) -> None:
        self._rates: dict[tuple[str, Direction], SustainedRate] = {}
        self._stretches: dict[str, Stretches] = {}
        self._since_s: dict[str, float] = {}
        self._up: set[str] = set()
        self._watched_s: float | None = None
        self._first_used_s: dict[tuple[str, Direction], float] = {}

    def measured(
        self, name: str, direction: Direction, rate_bps: float, lasted_s: float, now: float
    ) -> None:
        """A transfer that wanted all it could get was carried at this rate."""
        if (name, direction) in self._rates or len(self._rates) < 2 * _MOST_NETWORKS:
            self._rate(name, direction).observe(rate_bps, lasted_s, now)

    def watched(self, networks: Iterable[SeenNetwork], now: float) -> None:
        """Which are there; to be told every second or so, and on every change."""
        passed_s = 0.0 if self._watched_s is None else now - self._watched_s
        self._watched_s = now
        up = {each.name for each in networks if each.up}
        for name in up - self._stretches.keys():
            if len(self._stretches) < _MOST_NETWORKS:
                self._stretches[name] = Stretches(STAY_S, ABSENCE)
        if passed_s > 0.0:
            for name, stretches in self._stretches.items():
                stretches.passed(passed_s, name in self._up)
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
        """As the schedulers see them; `used`: something is to be carried."""
        found = []
        for each in networks:
            rate = self._rates.get((each.name, direction))
            unmeasured = False
            seen_bps = each.seen_up_bps if direction is Direction.UP else each.seen_bps
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
        """What is kept for the next start."""
        return {
            "rates": [[name, way, rate.to_state()] for (name, way), rate in self._rates.items()],
            "stretches": {name: each.to_state() for name, each in self._stretches.items()},
        }

    def restore(self, state: Any, now: float) -> None:
        """Takes what was kept; what makes no sense is left out."""
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

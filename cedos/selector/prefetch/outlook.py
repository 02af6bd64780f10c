"""The outlook on networks for prefetching: stays and absences, averages, and a later fetch's cost.

**Stretches.** The time until free Wi-Fi comes back tells what waiting for it is worth; the time
that it stays tells what can still be fetched over it (dissertation, 4.4.2: hazards fall with time).

**Averages.** The time of a user's request is hard to tell, so the future is the average of the past
(3.2.2.1): how often each network is present, how fast, how late. Two values go beyond the paper.
The mean time per bit: a fetch lasts as long as the mean of 1/rate says, and on networks that swing
between 0.2 and 20 Mbit/s the mean rate promises a tenth of that. And the lengths of stays and
absences.

**Paths.** A network as a prefetch would find it (rate, averages and radio), and a later fetch's
cost.
"""

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import exp, gamma, inf, isfinite
from typing import NamedTuple

from cedos.model import Direction
from cedos.selector.budgets.prices import Prices
from cedos.selector.energy import Radio
from predictors.dwell import GENERIC, DwellPredictor, Weibull

# Any longer time counts as for ever.
_LONGEST_S = 1e8
# The number of stays and of absences that are kept for the next start.
_KEPT = 200


class Stretch(NamedTuple):
    """The stretch that is under way."""

    age_s: float  # how long it has lasted
    stay: Weibull  # how long the network stays when it is there
    away_s: float  # until it is there, on average; 0 where it is there
    away: Weibull  # how long it stays away when it is not there


class Stretches:
    """The stays and absences of one network.

    Args:
        stay_s: the assumed mean length of its stays before any is known; infinite: it stays for ever.
        absence_s: the same of its absences, or their distribution.
    """

    def __init__(self, stay_s: float, absence_s: float | Weibull) -> None:
        absence = absence_s if isinstance(absence_s, Weibull) else _of_mean(absence_s)
        self._known = {True: DwellPredictor(_of_mean(stay_s)), False: DwellPredictor(absence)}
        self._lately: dict[bool, deque[tuple[float, bool]]] = {
            present: deque(maxlen=_KEPT) for present in (True, False)
        }
        self._present: bool | None = None
        self._whole = False
        self._age_s = 0.0

    def record(self, lasted_s: float, present: bool) -> None:
        """Record that the network was present, or absent, for so long until now."""
        if present is not self._present:
            if self._present is not None and self._age_s > 0.0:
                # The first stretch had begun before the first observation: it is known only to be longer.
                self._on_passed(self._present, self._age_s, not self._whole)
                self._whole = True
            self._present, self._age_s = present, 0.0
        self._age_s += lasted_s

    def _on_passed(self, present: bool, lasted_s: float, censored: bool) -> None:
        self._known[present].observe("", lasted_s, censored=censored)
        self._lately[present].append((lasted_s, censored))

    def to_state(self) -> dict[str, list[tuple[float, bool]]]:
        """Return the last stays and absences, with whether each is known only to be longer."""
        return {"stays": list(self._lately[True]), "absences": list(self._lately[False])}

    def restore(self, state: Mapping[str, Sequence[Sequence[object]]]) -> None:
        """Restore a kept state; senseless values are left out."""
        for key, present in (("stays", True), ("absences", False)):
            for each in state.get(key, ()):
                match each:
                    case [float() | int() as lasted_s, bool() as censored] if lasted_s > 0.0:
                        self._on_passed(present, float(lasted_s), censored)
                    case _:
                        pass

    def stretch(self) -> Stretch:
        """Return the present stretch."""
        away_s = 0.0
        if self._present is False:
            away_s = self._known[False].mean_residual_s("", self._age_s)
        stay, away = (self._known[present].weibull("") for present in (True, False))
        return Stretch(self._age_s, stay, min(away_s, _LONGEST_S), away)


def _of_mean(mean_s: float) -> Weibull:
    """Return the generic distribution with this mean."""
    mean_s = min(max(mean_s, 0.1), _LONGEST_S) if mean_s < inf else _LONGEST_S
    return Weibull(GENERIC.shape, mean_s / gamma(1.0 + 1.0 / GENERIC.shape))


# A lower rate is an outage to a person, and would dominate any average of times.
_SLOWEST_BPS = 10_000.0


@dataclass(frozen=True, slots=True)
class Average:
    """The average of one network."""

    availability: float  # share of the time that it is there (0 to 1)
    s_per_bit: float  # mean of 1 / rate while it is there
    latency_s: float  # mean time before the first byte of an answer
    absence_s: float  # mean length of a stretch without it

    @property
    def stay_s(self) -> float:
        """The mean length of its stays."""
        gone = 1.0 - self.availability
        return self.absence_s * self.availability / gone if gone > 0.0 else inf

    def fetch_s(self, size_bytes: float) -> float:
        """Return T_fetch = S / BW + L."""
        return 8.0 * max(size_bytes, 0.0) * self.s_per_bit + self.latency_s


# An average for stays and absences only.
_UNKNOWN = Average(0.5, 0.0, 0.0, 60.0)


@dataclass(slots=True)
class _NetworkSums:
    """Decaying sums of one network; `present` is None before the first observation."""

    present: bool | None = None
    seconds: float = 0.0
    there_s: float = 0.0
    absences: float = 0.0
    rate_weight: float = 0.0
    s_per_bit: float = 0.0
    latency_weight: float = 0.0
    latency_s: float = 0.0


@dataclass(slots=True)
class Outlook:
    """Averages of all networks, from what is observed of them.

    Args:
        prior: the assumed average of each network, by name; it counts as `prior_s` observed seconds.
        memory_s: the time after which an observation counts for 1/e.
    """

    prior: Mapping[str, Average]
    prior_s: float = 600.0
    memory_s: float = 7 * 86_400.0
    _sums: dict[str, _NetworkSums] = field(default_factory=dict)
    _stretches: dict[str, Stretches] = field(default_factory=dict)

    def expect(self, name: str, prior: Average) -> None:
        """Set the average that a network is taken to have before any observation."""
        if name not in self.prior:
            self.prior = {**self.prior, name: prior}

    def observe(
        self,
        name: str,
        lasted_s: float,
        present: bool,
        rate_bps: float | None = None,
        latency_s: float | None = None,
    ) -> None:
        """Record that a network was present or absent for `lasted_s` until now.

        Rate and latency are given if they were measured. Impossible values (negative, not a number) are
        ignored.
        """
        if not (isfinite(lasted_s) and lasted_s > 0.0):
            return
        # Old sums fade, so that the averages follow the last days of a network.
        sums = self._sums.setdefault(name, _NetworkSums())
        if name not in self._stretches:
            known = self.of(name) or _UNKNOWN
            self._stretches[name] = Stretches(known.stay_s, known.absence_s)
        self._stretches[name].record(lasted_s, present)
        keep = exp(-lasted_s / self.memory_s)
        sums.seconds = sums.seconds * keep + lasted_s
        sums.there_s = sums.there_s * keep + (lasted_s if present else 0.0)
        # Count the beginnings of absences, for their mean length.
        sums.absences = sums.absences * keep + float(not present and sums.present is not False)
        sums.present = present
        if present and rate_bps is not None and isfinite(rate_bps) and rate_bps >= 0.0:
            sums.rate_weight = sums.rate_weight * keep + lasted_s
            per_bit = 1.0 / max(rate_bps, _SLOWEST_BPS)
            sums.s_per_bit = sums.s_per_bit * keep + lasted_s * per_bit
        if present and latency_s is not None and isfinite(latency_s) and latency_s >= 0.0:
            sums.latency_weight = sums.latency_weight * keep + lasted_s
            sums.latency_s = sums.latency_s * keep + lasted_s * latency_s

    def of(self, name: str) -> Average | None:
        """Return the average of a network; None if there is neither a prior nor an observation."""
        sums, prior = self._sums.get(name, _NetworkSums()), self.prior.get(name)
        weight = self.prior_s if prior is not None else 0.0
        if sums.seconds + weight <= 0.0 or (prior is None and sums.rate_weight <= 0.0):
            return None
        # The prior counts like `prior_s` seconds of observation.
        known = prior or Average(0.0, 0.0, 0.0, 0.0)
        seconds = sums.seconds + weight
        gone_s = seconds - sums.there_s - weight * known.availability
        # A prior's absences: as many as fill its time without the network.
        absences = weight * (1.0 - known.availability) / known.absence_s if known.absence_s else 0.0
        return Average(
            availability=min(max(1.0 - gone_s / seconds, 0.0), 1.0),
            s_per_bit=_mean(sums.s_per_bit, sums.rate_weight, known.s_per_bit, weight),
            latency_s=_mean(sums.latency_s, sums.latency_weight, known.latency_s, weight),
            absence_s=_mean(max(gone_s, 0.0), sums.absences + absences, 0.0, 0.0),
        )

    def stretch(self, name: str) -> Stretch | None:
        """Return the network's present stay or absence; None: it was never observed."""
        found = self._stretches.get(name)
        return None if found is None else found.stretch()


def _mean(total: float, weight: float, prior: float, prior_weight: float) -> float:
    seconds = weight + prior_weight
    return (total + prior * prior_weight) / seconds if seconds > 0.0 else 0.0


_SOME_BYTES = 50_000.0
_LONG_S = 1e6


class Use(NamedTuple):
    """The use of a fetch: seconds, joules, and bytes by the networks' order."""

    time_s: float
    energy_j: float
    sent: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Path:
    """A network, present or not."""

    name: str  # its name in budgets
    # The present estimate towards the host; without meaning if the network is absent.
    rate_bps: float
    latency_s: float  # until the first byte of an answer
    radio: Radio
    average: Average  # its average of the past
    mean_wake_j: float  # joules that a later fetch adds to those of carrying it (`mean_wake_j`)
    idle_s: float | None = None  # seconds since its radio was last used; None: long ago
    present: bool = True  # whether it could be used now
    # Its present stay or absence; None: it stays for ever, or stays away for the average time.
    stretch: Stretch | None = None

    def fetch_s(self, size_bytes: float) -> float:
        """Return the seconds of a fetch now; infinite where nothing can be carried."""
        if not (self.present and isfinite(self.rate_bps) and self.rate_bps > 0.0):
            return inf
        latency_s = self.latency_s if isfinite(self.latency_s) else self.average.latency_s
        return 8.0 * size_bytes / self.rate_bps + max(latency_s, 0.0)

    def in_time(self, size_bytes: float, hazard_per_s: float) -> float:
        """Return the probability that the network appears and fetches so much before the person asks."""
        usual_s, stretch = self.average.fetch_s(size_bytes), self.stretch
        if not self.present:
            # Away: it must appear and fetch before the request, whose hazard is even.
            away_s = self.average.absence_s if stretch is None else stretch.away_s
            return 1.0 / (1.0 + hazard_per_s * (away_s + usual_s))
        now_s = min(self.fetch_s(size_bytes), _LONG_S)
        # Present: it may stay long enough, or leave and come again.
        stays = 1.0 if stretch is None else stretch.stay.survival_after(stretch.age_s, now_s)
        # The mean of exp(-hazard * t) over an exponential time t: 1 / (1 + hazard * mean).
        again = 1.0 / (1.0 + hazard_per_s * (self.average.absence_s + usual_s))
        return stays / (1.0 + hazard_per_s * now_s) + (1.0 - stays) * again

    def active_j(self, seconds: float, size_bytes: float) -> float:
        """Return the joules of carrying that on a radio that is awake."""
        rate_bps = 8.0 * size_bytes / seconds if seconds > 0.0 else 0.0
        return self.radio.active_w(Direction.DOWN, rate_bps) * seconds

    def wake_j(self) -> float:
        """Return the joules that any transfer adds now: promotion, and the tail or its extension."""
        return self.radio.added_tail_j(self.idle_s)

    def later_j(self, seconds: float, size_bytes: float) -> float:
        """Return the joules of a later fetch, averaged over the radio's states."""
        return self.active_j(seconds, size_bytes) + self.mean_wake_j


def mean_wake_j(radio: Radio, shares: Mapping[str, float]) -> float:
    """Return the joules that a transfer adds to those of carrying it, averaged over the radio's states.

    `shares`: the share of time that the radio was in each state.
    """
    # What is more than a packet or two is carried in the highest state, for all sizes alike.
    expected_j = radio.expected_j(bytes_down=_SOME_BYTES, seconds=1.0, shares=shares)
    return max(expected_j - radio.active_w(Direction.DOWN, 8.0 * _SOME_BYTES), 0.0)


def on_demand(size_bytes: float, paths: Sequence[Path], prices: Prices) -> Use:
    """Return the cost of a fetch on demand some time later (T_fetch, E_fetch and D_fetch of 3.2.2).

    The network of the lowest cost is used where it is present, then the next one, each weighted by
    its average availability. The last one takes the rest, since the person waits for it.
    """
    joule_s = prices.energy_rate()
    # What a later fetch costs on each network.
    options = []
    for index, path in enumerate(paths):
        time_s = path.average.fetch_s(size_bytes)
        energy_j = path.later_j(time_s, size_bytes)
        cost = time_s + joule_s * energy_j + prices.data_rate(path.name) * size_bytes
        options.append((cost, index, path.average.availability, time_s, energy_j))
    options.sort()
    left, time_s, energy_j = 1.0, 0.0, 0.0
    sent = [0.0] * len(paths)
    for rank, (_, index, availability, its_time_s, its_energy_j) in enumerate(options):
        # Each network is used if it is present and all better ones are not.
        weight = left if rank == len(options) - 1 else left * availability
        left -= weight
        time_s += weight * its_time_s
        energy_j += weight * its_energy_j
        sent[index] = weight * size_bytes
    return Use(time_s, energy_j, tuple(sent))

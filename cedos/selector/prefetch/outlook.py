"""What networks will be like when somebody asks: averages of the past (dissertation, 3.2.2.1).

When a user will ask is hard to tell, so the future is the average: how often each network is there, how
fast, how late. Two things are kept that the paper does not keep. The mean time per bit beside the
availability: a fetch lasts as long as the mean of 1/rate says, and on networks that swing between 0.2
and 20 Mbit/s the mean rate promises a tenth of that. And how long a network stays, and stays away
(`stretches`).
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from math import exp, inf, isfinite

from cedos.selector.prefetch.stretches import Stretch, Stretches

_SLOWEST_BPS = 10_000.0
"""A rate below that is an outage to a person, and would rule any average of times."""


@dataclass(frozen=True, slots=True)
class Average:
    """What one network is like on average.

    Attributes:
        availability: share of the time that it is there (0 to 1).
        s_per_bit: mean of 1 / rate while it is there.
        latency_s: mean time before the first byte of an answer.
        absence_s: mean length of a stretch without it.
    """

    availability: float
    s_per_bit: float
    latency_s: float
    absence_s: float

    @property
    def stay_s(self) -> float:
        """Mean length of a stretch with it."""
        gone = 1.0 - self.availability
        return self.absence_s * self.availability / gone if gone > 0.0 else inf

    def fetch_s(self, size_bytes: float) -> float:
        """T_fetch = S / BW + L."""
        return 8.0 * max(size_bytes, 0.0) * self.s_per_bit + self.latency_s


_UNKNOWN = Average(0.5, 0.0, 0.0, 60.0)
"""Of which only stays and absences are used."""


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
        prior: what a network is taken for before it is known, by name; `prior_s` seconds of the past.
        memory_s: the past fades with this time constant.
    """

    prior: Mapping[str, Average]
    prior_s: float = 600.0
    memory_s: float = 7 * 86_400.0
    _sums: dict[str, _NetworkSums] = field(default_factory=dict)
    _stretches: dict[str, Stretches] = field(default_factory=dict)

    def expect(self, name: str, prior: Average) -> None:
        """What a network is taken for that nothing was said of yet."""
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
        """A network was there, or not, for `lasted_s` until now; rate and latency where known.

        What cannot be (negative or not a number) is not taken in.
        """
        if not (isfinite(lasted_s) and lasted_s > 0.0):
            return
        sums = self._sums.setdefault(name, _NetworkSums())
        if name not in self._stretches:
            known = self.of(name) or _UNKNOWN
            self._stretches[name] = Stretches(known.stay_s, known.absence_s)
        self._stretches[name].passed(lasted_s, present)
        keep = exp(-lasted_s / self.memory_s)
        sums.seconds = sums.seconds * keep + lasted_s
        sums.there_s = sums.there_s * keep + (lasted_s if present else 0.0)
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
        """The average of a network; None where neither a prior nor an observation is there."""
        sums, prior = self._sums.get(name, _NetworkSums()), self.prior.get(name)
        weight = self.prior_s if prior is not None else 0.0
        if sums.seconds + weight <= 0.0 or (prior is None and sums.rate_weight <= 0.0):
            return None
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
        """What is known of the network's present stay or absence; None: it was never observed."""
        found = self._stretches.get(name)
        return None if found is None else found.stretch()

    def to_state(self) -> dict[str, dict[str, float]]:
        """What a program keeps for its next start."""
        return {
            name: {key: float(value) for key, value in asdict(sums).items() if key != "present"}
            for name, sums in self._sums.items()
        }

    def restore(self, state: Mapping[str, Mapping[str, float]]) -> None:
        """Takes what was kept; a network whose numbers make no sense is left out."""
        for name, numbers in state.items():
            known = {key: numbers.get(key) for key in asdict(_NetworkSums()) if key != "present"}
            if all(isinstance(value, float) and 0.0 <= value < inf for value in known.values()):
                self._sums[name] = _NetworkSums(
                    None, **{key: float(known[key] or 0.0) for key in known}
                )


def _mean(total: float, weight: float, prior: float, prior_weight: float) -> float:
    seconds = weight + prior_weight
    return (total + prior * prior_weight) / seconds if seconds > 0.0 else 0.0

"""A network as a prefetch would find it: rate, averages and radio; and what a later fetch costs."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf, isfinite
from typing import NamedTuple, Protocol

from cedos.model import Direction
from cedos.selector.prefetch.outlook import Average
from cedos.selector.prefetch.stretches import Stretch

_SOME_BYTES = 50_000.0
_LONG_S = 1e6


class RadioModel(Protocol):
    """A radio's power and its tail, such as `selector.radio.Radio`."""

    def active_w(self, direction: Direction, rate_bps: float = 0.0) -> float:
        """Watts while data is carried."""

    def added_tail_j(self, idle_s: float | None) -> float:
        """Joules that any transfer adds to that, `idle_s` seconds after the last one."""

    def expected_j(
        self,
        *,
        bytes_up: float = 0.0,
        bytes_down: float = 0.0,
        seconds: float,
        shares: Mapping[str, float],
    ) -> float:
        """Joules of a transfer that meets the radio in each state as often as `shares` says."""


class PrefetchPrices(Protocol):
    """Conversion rates into seconds, such as `budgets.prices.Prices`."""

    def energy_rate(self, amount: float = 0.0, duration_s: float = 1.0) -> float:
        """Seconds that a joule is worth where `amount` of them are spent over `duration_s`."""

    def data_rate(self, network: str, amount: float = 0.0, duration_s: float = 1.0) -> float:
        """Seconds that a byte of that network is worth, likewise; 0 where it is not budgeted."""


class Use(NamedTuple):
    """What a fetch takes: seconds, joules, and bytes by the networks' order."""

    time_s: float
    energy_j: float
    sent: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Path:
    """One network, present or not.

    Attributes:
        name: what budgets know it by.
        rate_bps: towards the host, by the current estimates; of no meaning where not `present`.
        latency_s: until the first byte of an answer.
        idle_s: seconds since its radio was last used; None: long ago.
        average: what it is like on average.
        mean_wake_j: joules that a fetch some time later adds to those of carrying it (`mean_wake_j`).
        present: whether it could be used now.
        stretch: what is known of its present stay, or absence; None: it stays for ever, or away as
            long as on average.
    """

    name: str
    rate_bps: float
    latency_s: float
    radio: RadioModel
    average: Average
    mean_wake_j: float
    idle_s: float | None = None
    present: bool = True
    stretch: Stretch | None = None

    def fetch_s(self, size_bytes: float) -> float:
        """Seconds of a fetch now; infinite where nothing can be carried."""
        if not (self.present and isfinite(self.rate_bps) and self.rate_bps > 0.0):
            return inf
        latency_s = self.latency_s if isfinite(self.latency_s) else self.average.latency_s
        return 8.0 * size_bytes / self.rate_bps + max(latency_s, 0.0)

    def in_time(self, size_bytes: float, hazard_per_s: float) -> float:
        """The chance that it comes, and fetches so much, before somebody asks for it."""
        usual_s, stretch = self.average.fetch_s(size_bytes), self.stretch
        if not self.present:
            away_s = self.average.absence_s if stretch is None else stretch.away_s
            return 1.0 / (1.0 + hazard_per_s * (away_s + usual_s))
        now_s = min(self.fetch_s(size_bytes), _LONG_S)
        stays = 1.0 if stretch is None else stretch.stay.survival_after(stretch.age_s, now_s)
        again = 1.0 / (1.0 + hazard_per_s * (self.average.absence_s + usual_s))
        return stays / (1.0 + hazard_per_s * now_s) + (1.0 - stays) * again

    def active_j(self, seconds: float, size_bytes: float) -> float:
        """Joules of carrying that on a radio that is awake."""
        rate_bps = 8.0 * size_bytes / seconds if seconds > 0.0 else 0.0
        return self.radio.active_w(Direction.DOWN, rate_bps) * seconds

    def wake_j(self) -> float:
        """Joules that any transfer adds now: promotion, and the tail or its extension."""
        return self.radio.added_tail_j(self.idle_s)

    def later_j(self, seconds: float, size_bytes: float) -> float:
        """Joules of a fetch some time later, averaged over the states that the radio may be in."""
        return self.active_j(seconds, size_bytes) + self.mean_wake_j


def mean_wake_j(radio: RadioModel, shares: Mapping[str, float]) -> float:
    """Joules that a transfer adds to those of carrying it, averaged over the radio's states.

    `shares`: the share of time that the radio was in each state.
    """
    # What is more than a packet or two is carried in the highest state, for all sizes alike.
    expected_j = radio.expected_j(bytes_down=_SOME_BYTES, seconds=1.0, shares=shares)
    return max(expected_j - radio.active_w(Direction.DOWN, 8.0 * _SOME_BYTES), 0.0)


def on_demand(size_bytes: float, paths: Sequence[Path], prices: PrefetchPrices) -> Use:
    """A fetch that a person waits for some time later (T_fetch, E_fetch and D_fetch of 3.2.2).

    The network of the lowest cost is used where it is there, then the next one, each weighted by its
    average availability; the last one takes what is left, since who wants something waits for it.
    """
    joule_s = prices.energy_rate()
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
        weight = left if rank == len(options) - 1 else left * availability
        left -= weight
        time_s += weight * its_time_s
        energy_j += weight * its_energy_j
        sent[index] = weight * size_bytes
    return Use(time_s, energy_j, tuple(sent))

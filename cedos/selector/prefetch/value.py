"""The value of a prefetch in seconds, and the accuracy of hints (dissertation, 3.2.2 and 3.2.2.1).

For one item on one network, with A the probability that the person will ask for it:

    A * T_fetch - c_energy * (E_prefetch - A * E_fetch) - c_data * (D_prefetch - A * D_fetch)

where the fetch is the later one that the person would wait for. Shared costs, waking the radio and
its tail, are paid once per batch (3.2.2.5). The paper tries one item, two items, and so on. Here an
item joins the batch where it pays for itself on an awake radio, so that a large one does not stand
in the way of the others, and the batch must pay for the waking.

Two rules are ours. An item that may be asked for before its prefetch ends gains less. And it must
gain more than waiting for a better network would, times the probability that this comes first.

**Accuracy** is the share of hints that come true, per class (shadow accuracy). A hint counts
whether or not it was prefetched, or the estimate would only learn from its own choices. The paper
divides consumed hints by issued ones, so a fresh inbox of 35 hints looks like 35 misses; here a
hint counts once its fate is known: consumed, cancelled, dropped, or without a request for very
long.
"""

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from math import exp, isfinite

from cedos.selector.budgets.controller import PROHIBITIVE
from cedos.selector.budgets.prices import Prices
from cedos.selector.prefetch.outlook import Path, Use, on_demand

# The accuracy of an unknown application.
ASSUMED = 0.5

_APPLICATION_WEIGHT = 2.0
_CLASS_WEIGHT = 4.0


@dataclass(slots=True)
class Counts:
    """Hints whose fate is known, and how many of them were consumed; older ones count less."""

    resolved: float = 0.0
    consumed: float = 0.0

    def add(self, consumed: bool, keep: float) -> None:
        """Add one outcome; earlier ones keep the share `keep` of their weight."""
        self.resolved = self.resolved * keep + 1.0
        self.consumed = self.consumed * keep + consumed


@dataclass(slots=True)
class ShadowAccuracy:
    """The probability that a hint of a class is consumed.

    A class without a sample is taken for the application's average, and an application without one
    for `ASSUMED`: some imagined samples of the wider group stand before the first real ones.

    Args:
        memory: so many hints of a class are remembered, as a decaying average: habits shift.
    """

    memory: float = 200.0
    application: Counts = field(default_factory=Counts)
    classes: dict[Hashable, Counts] = field(default_factory=dict)

    def on_resolved(self, cls: Hashable, consumed: bool) -> None:
        """Record the fate of a hint, prefetched or not."""
        # Old fates fade: after `memory` hints one counts for 1/e.
        keep = 1.0 - 1.0 / max(self.memory, 1.0)
        self.application.add(consumed, keep)
        self.classes.setdefault(cls, Counts()).add(consumed, keep)

    def of(self, cls: Hashable) -> float:
        """Return the share, between 0 and 1 but never either: no habit is a law."""
        # A class with few hints is like the application, an application with few like the assumption.
        average = _shrunk(self.application, ASSUMED, _APPLICATION_WEIGHT)
        counts = self.classes.get(cls)
        return average if counts is None else _shrunk(counts, average, _CLASS_WEIGHT)


def _shrunk(counts: Counts, towards: float, weight: float) -> float:
    return (counts.consumed + weight * towards) / (counts.resolved + weight)


# Over this time, spending changes no price of a controller that goes by the spending rate.
_LONG_S = 1e6

_PROHIBITIVE = PROHIBITIVE / 2

# The bytes on the wire for a byte of an item, with headers and acknowledgements.
_HEADERS = 1.06

# The factor on expected joules that must fit into a budget, because rates may change.
_UNSURE = 1.3


@dataclass(frozen=True, slots=True)
class Candidate:
    """An item that could be prefetched: its rest, and the probability of a request.

    `hazard_per_s` is the probability of a request within the next second.
    """

    key: Hashable
    size_bytes: float
    accuracy: float
    hazard_per_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Reserve:
    """The expected use of fetches on demand: joules, and bytes by network.

    No prefetch may spend it, except what the prefetch itself makes unnecessary.
    """

    energy_j: float = 0.0
    sent: Mapping[str, float] = field(default_factory=dict)


_NOTHING = Reserve()


@dataclass(frozen=True, slots=True)
class Batch:
    """A batch of prefetches over one network, in order, and its gain in all (seconds).

    `gains_s` is what each item gains on the awake radio.
    """

    network: str
    keys: tuple[Hashable, ...]
    gains_s: tuple[float, ...]
    gain_s: float
    energy_j: float
    size_bytes: float


@dataclass(slots=True)
class _BatchSums:
    """The sums over a batch so far; its gain is linear in the prices.

    `else_j` and `else_bytes` are the expected use of its items if they are not fetched now: on demand, or
    ahead of time over a better network that comes before that.
    """

    time_s: float = 0.0
    busy_s: float = 0.0
    active_j: float = 0.0
    spared_j: float = 0.0
    size_bytes: float = 0.0
    spared_bytes: float = 0.0
    other_s: float = 0.0
    else_j: float = 0.0
    else_bytes: float = 0.0

    def plus(self, other: "_BatchSums") -> "_BatchSums":
        return _BatchSums(
            self.time_s + other.time_s,
            self.busy_s + other.busy_s,
            self.active_j + other.active_j,
            self.spared_j + other.spared_j,
            self.size_bytes + other.size_bytes,
            self.spared_bytes + other.spared_bytes,
            self.other_s + other.other_s,
            self.else_j + other.else_j,
            self.else_bytes + other.else_bytes,
        )

    def gain_s(self, wake_j: float, joule_s: float, byte_s: float) -> float:
        energy_j = self.active_j + wake_j - self.spared_j
        return (
            self.time_s
            + self.other_s
            - joule_s * energy_j
            - byte_s * (self.size_bytes - self.spared_bytes)
        )


def best_batch(
    index: int,  # of the network among `paths`
    candidates: Sequence[Candidate],  # in the order in which they would be fetched
    # All networks that are known, the absent ones too: a later fetch may meet them.
    paths: Sequence[Path],
    prices: Prices,  # conversion rates; for each size of the batch at its own spending
    # What items would gain elsewhere: they must gain more here.
    instead: Mapping[Hashable, float] | None = None,
    reserve: Reserve = _NOTHING,  # what must be left
) -> Batch | None:
    """Return the batch that gains most over one network; None: nothing is worth it now."""
    path = paths[index]
    kept_bytes = reserve.sent.get(path.name, 0.0)
    wake_j = path.wake_j()
    batch, keys, gains = _BatchSums(), list[Hashable](), list[float]()
    best: Batch | None = None
    for candidate in candidates:
        one = _add_item(index, candidate, paths, prices, batch.busy_s)
        if one is None:
            continue
        # Prices depend on the amount, so the whole batch is priced anew with each item.
        grown = batch.plus(one)
        energy_j = grown.active_j + wake_j
        joule_s = prices.energy_rate(energy_j, grown.busy_s)
        byte_s = prices.data_rate(path.name, grown.size_bytes, grown.busy_s)
        # Fetches on demand of other items must stay possible beside the batch.
        beside_j = max(reserve.energy_j - grown.else_j, 0.0)
        beside_bytes = max(kept_bytes - grown.else_bytes, 0.0)
        # A batch that takes less than leaving its items would saves budget, so only the batch itself must
        # fit: the reserve may never be asked for, or be fetched over a better network.
        needed_j = energy_j + (beside_j if energy_j > grown.else_j else 0.0)
        if (
            prices.energy_rate(_UNSURE * needed_j, _LONG_S) >= _PROHIBITIVE
            or prices.data_rate(path.name, _HEADERS * grown.size_bytes + beside_bytes, _LONG_S)
            >= _PROHIBITIVE
        ):
            continue
        gain_s = one.gain_s(0.0, joule_s, byte_s)
        # An item that gains more in its turn elsewhere is left to that.
        above_s = instead.get(candidate.key, 0.0) if instead else 0.0
        if not gain_s > above_s:
            continue  # too large, say; the next one may do
        batch = grown
        batch.other_s -= above_s
        keys.append(candidate.key)
        gains.append(gain_s)
        # Waking the radio is paid once, which the first items may not be worth: keep the best prefix.
        gain_s = batch.gain_s(wake_j, joule_s, byte_s)
        if gain_s > 0.0 and (best is None or gain_s > best.gain_s):
            best = Batch(path.name, tuple(keys), tuple(gains), gain_s, energy_j, batch.size_bytes)
    return best


def worth_it(index: int, candidate: Candidate, paths: Sequence[Path], prices: Prices) -> float:
    """Return the gain of going on with a prefetch, in seconds; below 0: stop it."""
    one = _add_item(index, candidate, paths, prices, 0.0)
    if one is None:
        return float("-inf")
    joule_s = prices.energy_rate(one.active_j, one.busy_s)
    if joule_s >= _PROHIBITIVE:
        return float("-inf")
    byte_s = prices.data_rate(paths[index].name, one.size_bytes, one.busy_s)
    return one.gain_s(0.0, joule_s, byte_s)


def _add_item(
    index: int, candidate: Candidate, paths: Sequence[Path], prices: Prices, before_s: float
) -> _BatchSums | None:
    """Return what an item adds to a batch that takes `before_s` seconds until its turn."""
    path = paths[index]
    size, accuracy = candidate.size_bytes, candidate.accuracy
    took_s = path.fetch_s(size)
    if not (isfinite(took_s) and isfinite(accuracy)):
        return None
    spared = on_demand(size, paths, prices)
    # The probability that the person asks for it, and not before it is here.
    intime = accuracy * exp(-candidate.hazard_per_s * (before_s + took_s))
    # Bytes spared on other metered networks count at those networks' own prices.
    elsewhere_s = sum(
        prices.data_rate(other.name) * sent
        for at, (other, sent) in enumerate(zip(paths, spared.sent, strict=True))
        if at != index
    )
    # Leaving it to another network may gain more: that counts against fetching it now.
    wait_s, chance, wait_j = _waiting(index, candidate, spared, paths, prices)
    return _BatchSums(
        time_s=intime * spared.time_s,
        busy_s=took_s,
        active_j=path.active_j(took_s, size),
        spared_j=intime * spared.energy_j,
        size_bytes=size,
        spared_bytes=intime * spared.sent[index],
        other_s=intime * elsewhere_s - wait_s,
        else_j=chance * wait_j + (1.0 - chance) * accuracy * spared.energy_j,
        else_bytes=(1.0 - chance) * accuracy * spared.sent[index],
    )


def _waiting(
    index: int, candidate: Candidate, spared: Use, paths: Sequence[Path], prices: Prices
) -> tuple[float, float, float]:
    """Return the gain of leaving an item to other networks.

    Returns:
        what the best network that is away would gain (s); the chance that any other one fetches it in
        time, and its joules for that.
    """
    joule_s = prices.energy_rate()
    rates = [prices.data_rate(path.name) for path in paths]
    worth_s = spared.time_s + joule_s * spared.energy_j
    worth_s += sum(rate * sent for rate, sent in zip(rates, spared.sent, strict=True))
    size, most_s, other = candidate.size_bytes, 0.0, (float("-inf"), 0.0, 0.0)
    for at, (path, byte_s) in enumerate(zip(paths, rates, strict=True)):
        if at == index or (not path.present and path.average.availability <= 0.0):
            continue
        # What this network would gain, if it fetches the item before the request.
        energy_j = path.active_j(path.average.fetch_s(size), size)
        chance = path.in_time(size, candidate.hazard_per_s)
        cost_s = joule_s * energy_j + byte_s * size
        gain_s = chance * (candidate.accuracy * worth_s - cost_s)
        other = max(other, (gain_s, chance, energy_j))
        if not path.present:
            most_s = max(most_s, gain_s)
    return most_s, other[1], other[2]

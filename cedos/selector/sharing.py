"""The choice of helpers that sell bandwidth (CBSP), and the gateway's memory of them. Pure.

**Encounter** (equation 1): the time for which two moving hosts stay in range of each other.

**Selection.** The paper ("Helper Selection") orders the offers and takes the first h whose rates add up
to rho, which the requestor wants. It prefers a lower price, then the larger A_i. Ours takes the set
whose cost is lowest: seconds for what is wanted, with money at what a second less is worth here.

**Bandwidth map**: what each helper's path carried, where, and at what time of the day. CBSP takes it
from Yao et al. (its reference 30). A place is the keyed hash of a cell of some 200 m, so that a reader
without the gateway's secret learns no place. The map is bounded, in helpers and in cells of each, so
that one helper cannot push out what is known of the others.
"""

import hmac
import math
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Final, NamedTuple

from cedos.selector.objective import S_PER_MONEY, Objective, Outcome, WeightedCost


class Relative(NamedTuple):
    """The helper's place and velocity as the requestor sees them: metres, metres a second."""

    dx: float
    dy: float
    rx: float
    ry: float


def encounter_s(of: Relative, range_m: float) -> float:
    """Return delta_i, seconds; 0: out of range now; infinite: neither moves.

    The paper's equation is the later root of |d + R t| = r. Hosts that are out of range and do not meet
    have no root, or a negative one.
    """
    if math.hypot(of.dx, of.dy) > range_m:
        return 0.0
    speed2 = of.rx**2 + of.ry**2
    if speed2 == 0.0:
        # `along` is d * R, `across` the cross product: the root's discriminant is speed^2 r^2 - across^2.
        return math.inf
    along = of.dx * of.rx + of.dy * of.ry
    across = of.dy * of.rx - of.dx * of.ry
    return (-along + math.sqrt(max(speed2 * range_m**2 - across**2, 0.0))) / speed2


class NetworkType(IntEnum):
    """The type of a helper's uplink; the numbers are those of the protocol."""

    UNKNOWN = 0
    GPRS = 1
    EDGE = 2
    UMTS = 3
    HSDPA = 4
    LTE = 5
    NR = 6
    WIFI = 7
    ETHERNET = 8


# Rates without history. The paper gives only the order HSDPA > UMTS > EDGE > GPRS.
TYPICAL_BPS: Final[Mapping[NetworkType, float]] = {
    NetworkType.UNKNOWN: 0.5e6,
    NetworkType.GPRS: 0.04e6,
    NetworkType.EDGE: 0.15e6,
    NetworkType.UMTS: 0.3e6,
    NetworkType.HSDPA: 3e6,
    NetworkType.LTE: 10e6,
    NetworkType.NR: 50e6,
    NetworkType.WIFI: 10e6,
    NetworkType.ETHERNET: 50e6,
}


@dataclass(frozen=True, slots=True)
class HelperOffer:
    """The offer of one helper."""

    helper: bytes  # the helper's public key
    price: int  # millionths of the currency for 1 GB (10^9 bytes)
    # Rate of the helper's path to the gateway, bit/s; None: there is no history.
    known_bps: float | None = None
    # Type of the helper's uplink, which stands in for a rate that is not known.
    network: NetworkType = NetworkType.UNKNOWN
    battery_s: float = math.inf  # seconds until the helper's battery is empty (beta_i of the paper)
    # Seconds until the two hosts are out of range (delta_i, equation 1).
    encounter_s: float = math.inf

    @property
    def rate_bps(self) -> float:
        """Throughput S_i of the paper."""
        return TYPICAL_BPS[self.network] if self.known_bps is None else self.known_bps

    @property
    def available_s(self) -> float:
        """Available encounter duration epsilon_i of the paper."""
        return min(self.battery_s, self.encounter_s)

    @property
    def deliverable_bits(self) -> float:
        """Data A_i of the paper that the helper can deliver before it is gone."""
        return self.rate_bps * self.available_s if self.rate_bps else 0.0


@dataclass(frozen=True, slots=True)
class HelperChoice:
    """The helpers to use, and sigma, the sum of their rates in bit/s."""

    helpers: tuple[HelperOffer, ...]

    @property
    def rate_bps(self) -> float:
        return sum(each.rate_bps for each in self.helpers)


# Chooses among offers, given the wanted rate in bit/s; takes all if they are too few.
HelperStrategy = Callable[[Sequence[HelperOffer], float], HelperChoice]


def by_price(offers: Sequence[HelperOffer], wanted_bps: float) -> HelperChoice:
    """Choose as CBSP does: the lower price first, then the most data before the helper is gone."""
    return _first_helpers(
        sorted(offers, key=lambda it: (it.price, -it.deliverable_bits, -it.rate_bps, it.helper)),
        wanted_bps,
    )


def high_bandwidth_first(offers: Sequence[HelperOffer], wanted_bps: float) -> HelperChoice:
    """Choose the highest rates, one of the paper's baselines (its reference 40)."""
    return _first_helpers(sorted(offers, key=lambda it: (-it.rate_bps, it.helper)), wanted_bps)


def long_encounter_first(offers: Sequence[HelperOffer], wanted_bps: float) -> HelperChoice:
    """Choose the longest encounters, the paper's other baseline (its reference 28)."""
    return _first_helpers(
        sorted(offers, key=lambda it: (-it.encounter_s, -it.rate_bps, it.helper)), wanted_bps
    )


def _first_helpers(ordered: Iterable[HelperOffer], wanted_bps: float) -> HelperChoice:
    taken: list[HelperOffer] = []
    sum_bps = 0.0
    for offer in ordered:
        if sum_bps >= wanted_bps:
            break
        taken.append(offer)
        sum_bps += offer.rate_bps
    return HelperChoice(tuple(taken))


_PRICE_BYTES: Final = 1e15  # a price is in millionths for 10^9 bytes


@dataclass(frozen=True, slots=True)
class LeastCost:
    """Our strategy: the set of helpers whose outcome costs least."""

    # The daemon's, whose budgets may price money.
    objective: Objective = field(default_factory=WeightedCost)
    # Seconds of waiting that one unit of the currency is worth without a budget.
    s_per_money: float = S_PER_MONEY
    # The time ahead that counts. A helper that leaves earlier counts for a part of it.
    horizon_s: float = 60.0
    pause_s: float = 0.5  # the transfer's pause when a helper leaves

    def __call__(self, offers: Sequence[HelperOffer], wanted_bps: float) -> HelperChoice:
        """Add the helper that lowers the cost most, until none does; or choose as the paper if better."""
        taken: list[HelperOffer] = []
        left = sorted((it for it in offers if it.rate_bps), key=lambda it: it.helper)
        cost = float("inf")
        while left:
            # Greedy: add the helper with which the cost is lowest. A set that pays only with two more
            # helpers is missed, so the paper's two orders are compared at the end.
            found, which = min(
                (self.cost((*taken, it), wanted_bps), i) for i, it in enumerate(left)
            )
            if found >= cost:
                break
            cost = found
            taken.append(left.pop(which))
        greedy = HelperChoice(tuple(taken))
        papers = (each(offers, wanted_bps) for each in (by_price, high_bandwidth_first))
        return min((greedy, *papers), key=lambda it: self.cost(it.helpers, wanted_bps))

    def cost(self, helpers: Sequence[HelperOffer], wanted_bps: float) -> float:
        """Return what it costs to carry `horizon_s` of the wanted rate over these helpers."""
        size_bytes = wanted_bps * self.horizon_s / 8
        shares = [it.rate_bps * min(it.available_s / self.horizon_s, 1.0) for it in helpers]
        sum_bps = sum(shares)
        if not sum_bps:
            return float("inf")
        leaving = sum(it.available_s < self.horizon_s for it in helpers)
        # A rate above the wanted one gains nothing. Data is shared out in proportion to the rates.
        time_s = size_bytes * 8 / min(sum_bps, wanted_bps) + leaving * self.pause_s
        price = sum(share * it.price for share, it in zip(shares, helpers, strict=True)) / sum_bps
        money = size_bytes * price / _PRICE_BYTES
        outcome = Outcome(time_s, 0.0, 0.0, size_bytes, money)
        return self.objective.cost(outcome) + self.s_per_money * money


# The edge of a cell: some 200 m.
_CELL_DEGREES: Final = 0.002
_PARTS_OF_DAY: Final = 4
# An older record is out of date.
_OLD_S: Final = 30 * 86_400.0
# The least weight of a new sample.
_LEAST_WEIGHT: Final = 0.2
NOWHERE: Final = b""


class MapRecord(NamedTuple):
    """The smoothed rate of a helper's path in one cell and part of the day."""

    helper: bytes
    place: bytes
    part: int
    rate_bps: float
    samples: int
    at_s: float


class BandwidthMap:
    """The records of many helpers; the least recently used ones are forgotten first."""

    def __init__(self, secret: bytes, *, helpers: int = 2048, cells: int = 64) -> None:
        self._secret, self._most_helpers, self._most_cells = secret, helpers, cells
        self._records: OrderedDict[bytes, OrderedDict[tuple[bytes, int], MapRecord]] = OrderedDict()

    def __len__(self) -> int:
        return sum(map(len, self._records.values()))

    def place(self, latitude: float, longitude: float) -> bytes:
        """Return the hash of the cell around a point, in degrees."""
        north = math.floor(latitude / _CELL_DEGREES)
        # Towards the poles a degree of longitude is shorter; cells of a row are all alike.
        across = max(math.cos(math.radians(north * _CELL_DEGREES)), 0.01)
        east = math.floor(longitude * across / _CELL_DEGREES)
        return hmac.digest(self._secret, f"{north} {east}".encode(), "sha256")[:8]

    def on_carried(self, helper: bytes, place: bytes, rate_bps: float, now_s: float) -> None:
        """Learn a rate. `place`: `NOWHERE` where it is not known."""
        cell = (place, _part(now_s))
        theirs = self._records.setdefault(helper, OrderedDict())
        before = theirs.get(cell)
        if before is None or now_s - before.at_s > _OLD_S:
            before = MapRecord(helper, *cell, rate_bps, 0, now_s)
        # A plain mean of the first samples, then an exponential one.
        samples = before.samples + 1
        weight = max(1 / samples, _LEAST_WEIGHT)
        smoothed = before.rate_bps + weight * (rate_bps - before.rate_bps)
        self._put(MapRecord(helper, *cell, smoothed, samples, now_s))

    def rate_bps(self, helper: bytes, place: bytes, now_s: float) -> float | None:
        """Return the nearest known rate: this cell at this time of day, this cell, anywhere; or None."""
        theirs = self._records.get(helper, OrderedDict())
        known = [each for each in theirs.values() if now_s - each.at_s <= _OLD_S]
        if not known:
            return None
        part = _part(now_s)

        def nearness(it: MapRecord) -> tuple[bool, bool, float]:
            here = it.place == place and place != NOWHERE
            return here, it.part == part, it.at_s

        return max(known, key=nearness).rate_bps

    def records(self) -> Iterator[MapRecord]:
        """Yield all records, the least recently used first, for the gateway's file."""
        for theirs in self._records.values():
            yield from theirs.values()

    def restore(self, record: MapRecord) -> None:
        """Take a record of `records` again."""
        self._put(record)

    def _put(self, record: MapRecord) -> None:
        theirs = self._records.setdefault(record.helper, OrderedDict())
        theirs[record.place, record.part] = record
        theirs.move_to_end((record.place, record.part))
        if len(theirs) > self._most_cells:
            theirs.popitem(last=False)
        self._records.move_to_end(record.helper)
        if len(self._records) > self._most_helpers:
            self._records.popitem(last=False)


def _part(now_s: float) -> int:
    return int(now_s % 86_400 * _PARTS_OF_DAY // 86_400)

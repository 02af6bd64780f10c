"""Worlds of transfers with deadlines: drawn days, and real places second by second. Simulated.

Days follow what Cedos published (V-B.2): Wi-Fi for 62.9 % of the time, 2.68 Mbit/s over Wi-Fi and 0.82
Mbit/s over cellular networks on average, 2.8 switches per download that switches at all, 25 MB a download
(71.2 GB in 2,834), delays of 0 to 6 hours. The lengths of stays and absences were not published: a day
alternates between long stays and short ways, as the paper's "bimodal" says. Days are drawn, and labelled
so wherever they are shown. At real places the traces are repeated; ten seconds of each network are known
before, as if a probe or a page had measured them.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import log
from random import Random
from typing import Final, NamedTuple

from emu.places.places import Place
from emu.places.stats import OUTAGE_BPS, rates_bps


class Wanted(NamedTuple):
    """A transfer: from when, how much, and until when (seconds of the world)."""

    released_s: int
    size_bytes: float
    deadline_s: float

    @property
    def delay_s(self) -> float:
        return self.deadline_s - self.released_s


@dataclass(frozen=True, slots=True)
class World:
    """Capacities in bits by second; 0: the network is not there."""

    wifi: Sequence[float]  # `wifi`, `cellular`: as long as the world
    cellular: Sequence[float]
    flows: Sequence[Wanted]
    known_wifi: Sequence[float] = ()
    known_cellular: Sequence[float] = ()


WIFI_BPS, CELLULAR_BPS = 2.68e6, 0.82e6
DAY_S: Final = 86_400
MEAN_BYTES: Final = 25.1e6

_SETTLED_S: Final = 5400.0
_ON_THE_WAY_S: Final = 1500.0
_PLACE_HAS_WIFI: Final = 0.65
_WAY_STAY_S, _WAY_ABSENCE_S = 80.0, 90.0
_SPREAD_OF_PLACES: Final = 0.6
_SPREAD_OF_MINUTES: Final = 0.35
_OUTAGES_PER_S: Final = 1.0 / 1800.0
_OUTAGE_S: Final = 8.0
_MINUTE_S: Final = 30
_A_DAY: Final = 12.0  # downloads


def draw(seed: int) -> World:
    """Draw one day whose downloads' delays are a minute to six hours; a seed draws the same day."""
    random = Random(seed)
    wifi = _wifi(random)
    cellular = _cellular(random)
    return World(wifi, cellular, _flows(random))


def delayed(world: World, delay_s: float) -> World:
    """Return the same day with another delay for each download."""
    flows = [
        Wanted(each.released_s, each.size_bytes, each.released_s + delay_s) for each in world.flows
    ]
    return World(world.wifi, world.cellular, flows)


def _lognormal(random: Random, mean: float, spread: float) -> float:
    return random.lognormvariate(log(mean) - spread * spread / 2, spread)


def _segment(random: Random, rates: list[float], long_s: int, mean_bps: float) -> None:
    """Seconds of a network at one place: half a minute at one rate."""
    while long_s > 0:
        part_s = min(_MINUTE_S, long_s)
        rates += [_lognormal(random, mean_bps, _SPREAD_OF_MINUTES)] * part_s
        long_s -= part_s


def _wifi(random: Random) -> list[float]:
    rates: list[float] = []
    while len(rates) < DAY_S:
        # Somewhere:
        stay_s = max(int(random.expovariate(1.0 / _SETTLED_S)), 60)
        if random.random() < _PLACE_HAS_WIFI:
            mean_bps = _lognormal(random, WIFI_BPS, _SPREAD_OF_PLACES)
            _segment(random, rates, stay_s, mean_bps)
        else:
            rates += [0.0] * stay_s
        # On the way to somewhere else:
        end_s = len(rates) + max(int(random.expovariate(1.0 / _ON_THE_WAY_S)), 60)
        while len(rates) < end_s:
            rates += [0.0] * max(int(random.weibullvariate(_WAY_ABSENCE_S, 0.8)), 3)
            mean_bps = _lognormal(random, WIFI_BPS, _SPREAD_OF_PLACES)
            _segment(random, rates, max(int(random.weibullvariate(_WAY_STAY_S, 0.8)), 3), mean_bps)
    return rates[:DAY_S]


def _cellular(random: Random) -> list[float]:
    rates: list[float] = []
    while len(rates) < DAY_S:
        mean_bps = _lognormal(random, CELLULAR_BPS, 0.4)
        _segment(random, rates, int(random.expovariate(1.0 / 1200.0)) + 30, mean_bps)
    at_s = 0
    while (at_s := at_s + int(random.expovariate(_OUTAGES_PER_S)) + 1) < DAY_S:
        gone_s = int(random.expovariate(1.0 / _OUTAGE_S)) + 1
        rates[at_s : at_s + gone_s] = [0.0] * len(rates[at_s : at_s + gone_s])
    return rates[:DAY_S]


def _flows(random: Random) -> list[Wanted]:
    """Episodes come one, two or three at a time."""
    flows: list[Wanted] = []
    at_s = 0.0
    together = 2.0
    while (at_s := at_s + random.expovariate(_A_DAY / together / DAY_S)) < DAY_S - 7 * 3600:
        for _ in range(1 + int(random.random() * 3)):
            size = min(max(_lognormal(random, MEAN_BYTES, 0.8), 1e6), 200e6)
            delay_s = max(random.uniform(0.0, 6 * 3600.0), 60.0)
            flows.append(Wanted(int(at_s), size, int(at_s) + delay_s))
    return flows


LONG_S: Final = 600
_KNOWN_S: Final = 10
_FLOWS: Final = 5
# The least and the greatest share of both networks' capacity that all flows take together.
_LOADS: Final = (0.1, 0.6)


def rates(place: Place, network: str) -> list[float]:
    """Bits of each second that both networks have, outages as none."""
    found = rates_bps(
        place.networks[network].down.repeated(place.common_s), place.common_s
    ).tolist()
    return [bps if bps >= OUTAGE_BPS else 0.0 for bps in found]


def worlds(place: Place, runs: int) -> Iterator[World]:
    """Yield runs at one place: five transfers each, wanted within one to ten minutes."""
    random = Random(f"1 {place.name}")
    wifi, cellular = rates(place, "wifi"), rates(place, "cellular")
    seconds = len(wifi)
    for _ in range(runs):
        begin = random.randrange(seconds)
        w, c = ([of[(begin + k) % seconds] for k in range(LONG_S)] for of in (wifi, cellular))
        load = random.uniform(*_LOADS) * (sum(w) + sum(c)) / 8.0
        shares = [random.expovariate(1.0) for _ in range(_FLOWS)]
        flows = sorted(
            Wanted(
                released_s := random.randint(0, LONG_S // 3),
                max(load * share / sum(shares), 1e4),
                random.uniform(released_s + 60.0, LONG_S - 1.0),
            )
            for share in shares
        )
        known = [
            [of[(begin - _KNOWN_S + k) % seconds] for k in range(_KNOWN_S)]
            for of in (wifi, cellular)
        ]
        yield World(w, c, flows, *known)

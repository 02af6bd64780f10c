"""Transfers with deadlines at real places: traces of both networks, second by second, repeated.

Simulated over the traces' rates, without packets. Ten seconds of each network are known before, as if a
probe or a page had measured them.
"""

from collections.abc import Iterator
from random import Random
from typing import Final

from emu.experiments.cedos.world import Wanted, World
from emu.places.places import Place
from emu.places.stats import OUTAGE_BPS, rates_bps

LONG_S: Final = 600
_KNOWN_S: Final = 10
_FLOWS: Final = 5
_LOADS: Final = (0.1, 0.6)
"""All flows together take this share of what both networks carry in that time, at least and at most."""


def rates(place: Place, network: str) -> list[float]:
    """Bits of each second that both networks have, outages as none."""
    found = rates_bps(place.networks[network].down, int(place.common_s)).tolist()
    return [bps if bps >= OUTAGE_BPS else 0.0 for bps in found]


def worlds(place: Place, runs: int, seed: int = 1) -> Iterator[World]:
    """Runs at one place: five transfers each, wanted within one to ten minutes."""
    random = Random(f"{seed} {place.name}")
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

"""Figure 10: a video through helpers who pass, whom different strategies select.

Helpers cross the requestor's radio range on straight lines, drawn anew for each trial. (The paper replays
a trace of people's mobility that is not published with it.) All ask the same price. Helpers offer 100 to
1000 kbit/s, or nearly the same each. The requestor wants 1600 kbit/s and looks for further helpers when
the sum falls below it. Equation 1 tells how long each stays. A helper who leaves says nothing:
the requestor asks it after a second of silence, and takes it for gone after another (the paper's Hello).
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any, Final

from cedos.selector.sharing import (
    HelperOffer,
    HelperStrategy,
    LeastCost,
    Relative,
    by_price,
    encounter_s,
    high_bandwidth_first,
    long_encounter_first,
)
from emu.experiments.cbsp.video import SWTC, Setting, Showing
from emu.simulator.stream import StreamPath
from emu.statistics import trials_figure

WANTED_BPS: Final = 1_600e3
STRATEGIES: Final[Mapping[str, HelperStrategy]] = {
    "cbsp": by_price,
    "high-bandwidth-first": high_bandwidth_first,
    "long-encounter-first": long_encounter_first,
    "least-cost": LeastCost(),
}
# The rates of helpers for small and large differences. Both have the same mean.
RATES_KBPS: Final = {"small": (500.0, 600.0), "large": (100.0, 1000.0)}
_RANGE_M: Final = 50.0
_SPEEDS_MPS: Final = (1.0, 10.0)
_IN_RANGE: Final = 6.0
_SILENT_S: Final = 2.0
# The duration of Invite, Join and Confirm.
_DISCOVERY_S: Final = 2.0
_PRICE: Final = 500_000


@dataclass(frozen=True, slots=True)
class Passer:
    """A helper who passes: the instants of coming and going, and the rate."""

    number: int
    comes_s: float
    goes_s: float
    rate_bps: float

    def offer(self, now_s: float) -> HelperOffer:
        key = self.number.to_bytes(32, "big")
        return HelperOffer(key, _PRICE, self.rate_bps, encounter_s=self.goes_s - now_s)


def passers(draw: Random, rates_kbps: tuple[float, float], until_s: float) -> list[Passer]:
    """Draw helpers who enter the range anywhere, six being there in the mean."""
    found: list[Passer] = []
    # A mean chord is pi / 2 times the radius, and the mean of 1 / speed is this logarithm.
    slowest, fastest = _SPEEDS_MPS
    mean_stay_s = math.pi / 2 * _RANGE_M * math.log(fastest / slowest) / (fastest - slowest)
    # Begin long before zero, so that at zero the range is as full as later.
    at_s = -300.0
    while at_s < until_s:
        at_s += draw.expovariate(_IN_RANGE / mean_stay_s)
        speed = draw.uniform(*_SPEEDS_MPS)
        # At the edge, heading inwards: by less than a right angle from the way to the centre.
        heading = math.asin(draw.uniform(-1.0, 1.0))
        way = Relative(-_RANGE_M + 1e-6, 0.0, speed * math.cos(heading), speed * math.sin(heading))
        stay_s = encounter_s(way, _RANGE_M)
        rate_bps = 1e3 * draw.uniform(*rates_kbps)
        if at_s + stay_s > 0.0:
            found.append(Passer(len(found), at_s, at_s + stay_s, rate_bps))
    return found


def watch(strategy: HelperStrategy, rates_kbps: tuple[float, float], seed: int) -> dict[str, float]:
    """Play a video once through the helpers that a strategy selects."""
    setting = Setting(video_s=80.0)
    around = passers(Random(seed), rates_kbps, 6 * setting.video_s)
    showing = Showing(setting, SWTC, Random(seed))
    clock, stream = showing.clock, showing.stream
    used: dict[int, tuple[Passer, StreamPath]] = {}
    left = 0

    def select() -> None:
        have_bps = sum(passer.rate_bps for passer, _ in used.values())
        offers = [
            each.offer(clock.now_s)
            for each in around
            if each.comes_s <= clock.now_s < each.goes_s and each.number not in used
        ]
        if have_bps < WANTED_BPS:
            for offer in strategy(offers, WANTED_BPS - have_bps).helpers:
                passer = around[int.from_bytes(offer.helper, "big")]
                network = showing.network(passer.rate_bps)
                used[passer.number] = (passer, stream.join(network))
                clock.at(passer.goes_s, network.fail)
                clock.at(passer.goes_s + _SILENT_S, leave, passer.number)
            # Too few are there: the requestor invites again.
            if sum(passer.rate_bps for passer, _ in used.values()) < WANTED_BPS:
                clock.after(_DISCOVERY_S, select)

    def leave(number: int) -> None:
        nonlocal left
        _, path = used.pop(number)
        stream.leave(path)
        left += 1
        if sum(passer.rate_bps for passer, _ in used.values()) < WANTED_BPS:
            clock.after(_DISCOVERY_S, select)

    select()
    watched = showing.play()
    return {
        "pci": watched.pci,
        "startup_s": watched.startup_s,
        "order_wait_s": watched.order_wait_s,
        "leaves_per_min": 60 * left / watched.ended_s,
    }


def figures(seeds: Sequence[int]) -> dict[str, Any]:
    """Return `{CASE: {STRATEGY: figures}}` for differences between helpers that are small and large."""
    found: dict[str, Any] = {}
    for case, rates_kbps in RATES_KBPS.items():
        found[case] = {}
        for name, strategy in STRATEGIES.items():
            trials = [watch(strategy, rates_kbps, seed) for seed in seeds]
            found[case][name] = {
                key: value
                for each in trials[0]
                for key, value in trials_figure(each, [trial[each] for trial in trials], 4).items()
            }
    return found

"""When to reevaluate: what every policy does that chooses by expected cost (dissertation, 4.4.3)."""

from collections.abc import Callable, Mapping, Sequence

from cedos.selector.uncertainty.reevaluate import AGAIN_S, tipping_point
from emu.experiments.meatballs.race import Chosen

Best = Callable[[Sequence[str], float, Mapping[str, float]], tuple[frozenset[str], float]]
"""(ways, instant, seconds of silence by way) -> the ways to use, and the expected seconds left."""


def choose_and_reevaluate(
    best: Best,
    now_s: float,
    usable: frozenset[str],
    silent: Mapping[str, float],
    *,
    reevaluates: bool,
    within_s: float,
    granularity_s: float,
) -> Chosen:
    """What costs least from now on, and when silence is to be thought about.

    `usable`: the ways that can be begun now.
    `silent`: what is under way, each with how long it has been silent.
    `reevaluates`: whether the policy reevaluates at all.
    `within_s`: a silence that has not tipped the choice by then never does.
    `granularity_s`: how exactly the tipping point is looked for.
    """
    if not usable - silent.keys() or (silent and not reevaluates):
        return Chosen(frozenset())
    names = sorted(usable | silent.keys())
    chosen, expected_s = best(names, now_s, silent)
    if not reevaluates or chosen >= usable:
        return Chosen(chosen)
    if silent:
        return Chosen(chosen, AGAIN_S)

    def later(wait_s: float) -> frozenset[str]:
        return chosen | best(names, now_s + wait_s, dict.fromkeys(chosen, wait_s))[0]

    def reevaluate_after_s() -> float:
        tips_s = tipping_point(later, granularity_s, within_s, granularity_s)
        return 2.0 * expected_s if tips_s is None else tips_s

    return Chosen(chosen, reevaluate_after_s)

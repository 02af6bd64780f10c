"""Budgets kept or not: months with shifting habits, simulated with the product's own keeper.

The habits are drawn (`emu.experiments.data_plans`), the controllers are those of the daemon,
and both get the very same months. CPU seconds are counted per month and controller, beside the
figures. Odd months are first months that are unlike most.
"""

import time
from collections.abc import Callable

from cedos.selector.budgets.pacer import Pacer
from emu.experiments.data_plans import PLANS
from emu.experiments.months import (
    CONTROLLERS,
    ODD_MONTHS,
    figures,
    live,
    months_of,
    odd_figures,
    odd_worlds,
    simulate,
)

_MONTHS = 200
_ODD_PEOPLE = 40
_SEED = 1


def run(progress: Callable[[str], None]) -> dict[str, float]:
    """Simulate 200 months of data and joules under each controller, and odd months.

    `month_s` is CPU seconds of one month of one plan under one controller. `odd_KIND_...` are the
    figures of 40 people's odd months under ours (`months.odd_figures`); the rest: `months.figures`.
    """
    begun_s = time.process_time()
    found = simulate(_SEED, _MONTHS, progress)
    taken_s = time.process_time() - begun_s
    months = len(PLANS) * len(CONTROLLERS) * months_of(found)
    return figures(found) | {"month_s": taken_s / months} | odd(progress, _ODD_PEOPLE)


def odd(progress: Callable[[str], None], people: int) -> dict[str, float]:
    """Simulate one first month of each kind for each of the people."""
    found: dict[str, float] = {}
    for name, kind in ODD_MONTHS.items():
        progress(f"{name}, {people} people")
        worlds = odd_worlds(kind, _SEED, people)
        of_kind = odd_figures([each for world in worlds for each in live([world], Pacer)])
        found |= {f"odd_{name}_{key}": value for key, value in of_kind.items()}
    return found

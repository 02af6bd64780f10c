"""Budgets kept or not: months with shifting habits, simulated with the product's own keeper.

The habits are drawn (`emu.experiments.budgets.plans`), the controllers are those of the daemon,
and both get the very same months. What takes time is counted per month and controller, beside the
figures.
"""

import time
from collections.abc import Callable

from emu.experiments.budgets.months import CONTROLLERS, figures, months_of, simulate
from emu.experiments.budgets.plans import PLANS

NAME = "budget"

_MONTHS = 200
_SEED = 1


def run(progress: Callable[[str], None]) -> dict[str, float]:
    """Simulate 200 months of data, joules and data in units under each controller.

    `month_s` is CPU seconds of one month of one plan under one controller; the rest: `budgets.figures`.
    """
    begun_s = time.process_time()
    found = simulate(_SEED, _MONTHS, progress)
    taken_s = time.process_time() - begun_s
    months = len(PLANS) * len(CONTROLLERS) * months_of(found)
    return figures(found) | {"month_s": taken_s / months}

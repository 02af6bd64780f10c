"""Budgets kept or not: months with shifting habits, simulated with the product's own keeper.

The habits are drawn (`emu.experiments.data_plans`), the controllers are those of the daemon,
and both get the very same months. Odd months are first months that are unlike most.
"""

from collections.abc import Callable

from cedos.selector.budgets.pacer import Pacer
from emu.experiments.months import (
    ODD_MONTHS,
    figures,
    live,
    odd_figures,
    odd_worlds,
    simulate,
)

_MONTHS = 200
_ODD_PEOPLE = 40
_SEED = 1


def run(progress: Callable[[str], None]) -> dict[str, float]:
    """Simulate 200 months of data and joules under each controller, and odd months.

    `odd_KIND_...` are the figures of 40 people's odd months under ours (`months.odd_figures`); the
    rest: `months.figures`.
    """
    return figures(simulate(_SEED, _MONTHS, progress)) | odd(progress, _ODD_PEOPLE)


def odd(progress: Callable[[str], None], people: int) -> dict[str, float]:
    """Simulate one first month of each kind for each of the people."""
    found: dict[str, float] = {}
    for name, kind in ODD_MONTHS.items():
        progress(f"{name}, {people} people")
        worlds = odd_worlds(kind, _SEED, people)
        of_kind = odd_figures([each for world in worlds for each in live([world], Pacer)])
        found |= {f"odd_{name}_{key}": value for key, value in of_kind.items()}
    return found

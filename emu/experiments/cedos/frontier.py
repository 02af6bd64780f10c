"""What another accepted risk would buy and cost: share over Wi-Fi against deadlines met, by target.

The risk that is accepted early varies, and that of the last two minutes stays as it is shipped; or the
latter is a tenth of the former.
"""

from pathlib import Path
from typing import Any, Final

from cedos.selector.deadlines.chance import NEAR_TARGET, ChanceScheduler
from emu.experiments.cedos import days, places
from emu.experiments.cedos.compare import figures, tally
from emu.places import places as collections

TARGETS: Final = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1)
_DAYS_OF_USER: Final = 10


def schedulers() -> list[ChanceScheduler]:
    """Named `early/near`; the shipped one is among them."""
    pairs = {(each, min(each, NEAR_TARGET)): None for each in TARGETS}
    pairs |= {(each, each / 10.0): None for each in TARGETS[1::2]}
    return [ChanceScheduler(*pair, name=f"{pair[0]:g}/{pair[1]:g}") for pair in pairs]


def on_days(count: int, seed: int) -> dict[str, Any]:
    """Drawn days; the seeds are those of no other part."""
    found = []
    for first in range(
        seed * 1_000_000 + 500_000, seed * 1_000_000 + 500_000 + count, _DAYS_OF_USER
    ):
        user = (days.draw(number) for number in range(first, first + _DAYS_OF_USER))
        found.append(tally(user, schedulers(), one_host=True))
    return figures(found)


def at_places(directory: Path, runs: int) -> dict[str, Any]:
    """The real places together; the worlds are the first of those of the part `places`."""
    return figures(
        [
            tally(places.worlds(place, runs), schedulers(), one_host=False)
            for place in collections.load(directory).values()
        ]
    )

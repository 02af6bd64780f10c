"""Figures 3.1 and 3.2: an inbox while driving and walking, with budgets. Simulated."""

from collections.abc import Mapping
from typing import Any

from emu.experiments.imp import workload
from emu.experiments.imp.grid import PlaceParameters, grid
from emu.lab.data.folds import Progress
from emu.places.places import Places

PAPER: Mapping[str, Any] = {
    "driving": {
        "budgets": {"energy_j": 300, "data_mb": 2, "both": {"energy_j": 325, "data_mb": 2}},
        "energy": {"met": "5/5", "slower_than_always_ms": 300, "times_others": [2, 8]},
        "data": {"met": "5/5", "slower_than_always_ms": 410, "times_others": [2, 7]},
        "both": {"met": "5/5", "slower_than_always_ms": 240, "times_others": [2, 8]},
    },
    "walking": {
        "budgets": {"energy_j": 150, "data_mb": 2},
        "all": {"met": "5/5", "slower_than_always_ms": [40, 150], "times_others": [4, 6]},
    },
}
"""What the text of 3.4.2.1 says of its Figures 3.1 and 3.2, which print no numbers."""


def run(
    places: Places,
    *,
    place: list[dict[str, Any]],
    scale: float = 1.0,
    trials: int = 5,
    duration_s: float = 1200.0,
    detection_s: float = 3.0,
    device: str = "nexus-one",
    seed: int = 1,
    progress: Progress = lambda share, what: None,
) -> dict[str, Any]:
    """All strategies and budgets on all places.

    `place`: `[[parameters.place]]`: see `emu.experiments.imp.grid.PlaceParameters`.
    `duration_s`: of a trial, and the budgets' period.

    Returns:
        see `emu.experiments.imp.grid.grid`, with `paper`.

    Raises:
        ConfigError: a `[[parameters.place]]` that cannot be used.
    """
    found = grid(
        places,
        PlaceParameters.read(place),
        {"": lambda number: workload.email(number, scale=scale)},
        trials=trials,
        duration_s=duration_s,
        detection_s=detection_s,
        device=device,
        seed=seed,
        progress=progress,
    )
    return {"scale": scale, "paper": PAPER, **found}

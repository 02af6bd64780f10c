"""Figures 3.4 and 3.5: a news reader while driving and walking, with and without classes. Simulated."""

from collections.abc import Mapping
from typing import Any

from emu.experiments.imp import workload
from emu.experiments.imp.grid import PlaceParameters, grid
from emu.lab.data.folds import Progress
from emu.places.places import Places

PAPER: Mapping[str, Any] = {
    "driving": {
        "budgets": {"energy_j": 450, "data_mb": 5, "both": {"energy_j": 450, "data_mb": 6}},
        "energy": {"met": "5/5", "saved_of_others": [0.29, 0.58]},
        "data": {"met": "5/5", "saved_of_others": [0.47, 0.68]},
        "both": {"met": "5/5", "saved_of_others": [0.36, 0.62]},
        "without_classes": {"met": "13/15", "classes_save": [0.42, 0.47]},
    },
    "walking": {
        "budgets": {"energy_j": 200, "data_mb": 4},
        "all": {"met": "5/5", "times_others": [2, 6]},
    },
}
"""What the text of 3.4.2.2 and 3.4.2.3 says of Figures 3.4 and 3.5, which print no numbers."""


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
    """All strategies and budgets on all places; ours with a class per feed, and with one for all.

    Arguments, result and errors are those of `emu.experiments.imp.analyses.imp_email.run`.
    """
    found = grid(
        places,
        PlaceParameters.read(place),
        {
            "": lambda number: workload.news(number, scale=scale),
            "-one-class": lambda number: workload.news(number, scale=scale, classes=False),
        },
        trials=trials,
        duration_s=duration_s,
        detection_s=detection_s,
        device=device,
        seed=seed,
        progress=progress,
    )
    return {"scale": scale, "paper": PAPER, **found}

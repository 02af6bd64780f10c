"""What the prices of a joule and of a metered megabyte buy: time against joules and cellular bytes.

The objective `balanced` chooses at every row of measured transfers, by models that never saw the place.
What MPTCP carried over cellular was not recorded: transfers up to `SMALL_BYTES` are taken to go over the
first network alone, larger ones to be divided by the rates that each network had alone at that instant.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from cedos.selector.objective import WeightedCost
from emu.experiments.delphi.analyses.prediction import whole
from emu.lab.data.choices import SMALL_BYTES, cedos_choices
from emu.lab.data.datasets import DataSet
from emu.lab.data.folds import Progress, examples_of, models_by_group
from emu.lab.data.outcomes import energies_j, policy_outcome
from emu.statistics import Bootstrap, Floats, ratio
from predictors.training.examples import USUAL

PRICES = (
    (0.0, 0.0, 0.0), (0.02, 0.001, 0.0), (0.05, 0.005, 0.0), (0.1, 0.005, 0.1), (0.2, 0.01, 0.0),
    (0.2, 0.01, 0.1), (0.5, 0.01, 0.1), (0.5, 0.03, 0.1), (1.0, 0.03, 0.1), (2.0, 0.1, 0.1),
    (5.0, 0.3, 0.1),
)  # fmt: skip
"""Seconds per metered megabyte and per joule, and what must be saved beside them; the first are free."""

_RATIOS = {"mean_s": "time_ratio", "energy_j": "energy_ratio", "cellular_mb": "cellular_ratio"}


def run(
    data: DataSet,
    prices: Sequence[Sequence[float]] = PRICES,
    progress: Progress = lambda share, what: None,
) -> dict[str, Any]:
    """Means per transfer, by price and of the fixed policies.

    Returns:
        `rows`; `frontier`, a list of `{"s_per_mb", "s_per_j", "noticeable_s", "mean_s", "energy_j",
        "cellular_mb", "time_ratio", "energy_ratio", "cellular_ratio"}`, ratios over those of the first
        price with their intervals by group; `fixed`: strategy -> `mean_s`, `energy_j`, `cellular_mb`.
    """
    data = whole(data)
    examples = examples_of(data, data.texts["group"])
    models = models_by_group(data, examples, USUAL, progress)
    rows = [examples.row(index) for index in range(len(data))]
    energy_j, bootstrap = energies_j(data), Bootstrap(data.texts["group"])
    shares = cellular_shares(data)

    def used(names: Sequence[str]) -> dict[str, Floats]:
        outcome = policy_outcome(data, names, energy_j)
        share = np.array([shares[name][row] for row, name in enumerate(names)])
        return {
            "mean_s": outcome.time_s,
            "energy_j": outcome.energy_j,
            "cellular_mb": share * data.numbers["size_bytes"] / 1e6,
        }

    def means(of: dict[str, Floats]) -> dict[str, Any]:
        return {key: float(each.mean()) for key, each in of.items()}

    frontier = []
    free: dict[str, Floats] = {}
    for s_per_mb, s_per_j, noticeable_s in prices:
        objective = WeightedCost(s_per_j, s_per_mb / 1e6, noticeable_s=noticeable_s)
        of = used(cedos_choices(rows, models, objective, data.strategies))
        free = free or of
        found = {"s_per_mb": s_per_mb, "s_per_j": s_per_j, "noticeable_s": noticeable_s}
        for key, each in of.items():
            figure = bootstrap.figure(_RATIOS[key], ratio(each, free[key]))
            found |= {key: float(each.mean()), **figure}
        frontier.append(found)
    fixed = {name: means(used([name] * len(data))) for name in data.strategies}
    return {"rows": len(data), "frontier": frontier, "fixed": fixed}


def cellular_shares(data: DataSet) -> dict[str, Floats]:
    """By strategy and row, the share of a transfer's bytes that goes over cellular."""
    wifi_s, cellular_s = data.times_s["wifi"], data.times_s["cellular"]
    small = data.numbers["size_bytes"] <= SMALL_BYTES
    divided = wifi_s / (wifi_s + cellular_s)
    zeros = np.zeros(len(data))
    return {
        "wifi": zeros,
        "cellular": zeros + 1.0,
        "mptcp_wifi": np.where(small, 0.0, divided),
        "mptcp_cellular": np.where(small, 1.0, divided),
    }

"""What a run's transfers say about its policies: the figures of `summary.json`.

The oracle of a run is, for each transfer, the fastest that any of the run's policies was on that same
transfer: all of them saw it at the same instant of the same place.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

MATCH = 1.10
"""A choice within this factor of the oracle's time agrees with it: below, ties drown in noise."""

RESAMPLES = 1000


@dataclass(frozen=True, slots=True)
class PolicyRun:
    """One policy's transfers in the plan's order, and what each repeat cost.

    All arrays of transfers have the same length and order for all policies of a run; censored
    transfers hold the time limit.
    """

    time_s: Floats
    size_bytes: Floats
    censored: NDArray[np.bool_]
    energy_j: Sequence[float]
    cellular_bytes: Sequence[float]


def summarise(runs: Mapping[str, PolicyRun], seed: int = 1) -> dict[str, Any]:
    """`{"policies": {NAME: {...}}}` with a 95 % bootstrap interval over transfers beside each figure.

    `mean_mbps` is all bytes over all transfer seconds; `energy_j` and `cellular_mb` are means over
    repeats, with an interval only where there are several.
    """
    oracle_s = np.min([run.time_s for run in runs.values()], axis=0)
    return {
        "policies": {
            name: _figures(run, oracle_s, np.random.default_rng(seed)) for name, run in runs.items()
        }
    }


def _figures(run: PolicyRun, oracle_s: Floats, draw: np.random.Generator) -> dict[str, Any]:
    figures: dict[str, Any] = {
        "n": len(run.time_s),
        "censored": int(run.censored.sum()),
    }
    measures: dict[str, Callable[[NDArray[np.intp]], float]] = {
        "median_s": lambda rows: float(np.median(run.time_s[rows])),
        "p95_s": lambda rows: float(np.quantile(run.time_s[rows], 0.95)),
        "mean_s": lambda rows: float(run.time_s[rows].mean()),
        "mean_mbps": lambda rows: float(8e-6 * run.size_bytes[rows].sum() / run.time_s[rows].sum()),
        "oracle_match": lambda rows: float((run.time_s[rows] <= MATCH * oracle_s[rows]).mean()),
        "regret_mean": lambda rows: float((run.time_s[rows] / oracle_s[rows] - 1).mean()),
    }
    everything = np.arange(len(run.time_s))
    samples = draw.integers(0, len(everything), (RESAMPLES, len(everything)))
    for key, measure in measures.items():
        figures[key] = measure(everything)
        drawn = [measure(rows) for rows in samples]
        figures[f"{key}_ci95"] = [float(q) for q in np.quantile(drawn, (0.025, 0.975))]
    for key, values in (
        ("energy_j", np.array(run.energy_j)),
        ("cellular_mb", np.array(run.cellular_bytes) / 1e6),
    ):
        figures[key] = float(values.mean())
        if len(values) > 1:
            means = values[draw.integers(0, len(values), (RESAMPLES, len(values)))].mean(axis=1)
            figures[f"{key}_ci95"] = [float(q) for q in np.quantile(means, (0.025, 0.975))]
    return figures

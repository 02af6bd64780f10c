"""Return one policy's cost over another's, trial by trial: the same requests and instants."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np

from cedos.errors import ConfigError
from emu.statistics import student_ci95, trials_figure


def at_least_one(trials: int) -> None:
    if trials < 1:
        raise ConfigError(f"trials = {trials}; at least one is needed")


def agreement(
    key: str, pairs: Sequence[Sequence[tuple[float, float]]], digits: int = 4
) -> dict[str, Any]:
    """Compare live trials with their simulation, trial by trial.

    `pairs`: of each trial, (lived, simulated) of each task.

    Returns:
        `live` and `simulated`, their `difference` (each a mean over trials with its interval), the
        medians over all tasks, and whether they `agree`: no difference within the interval.
    """
    lived = [float(np.mean([a for a, _ in trial])) for trial in pairs]
    simulated = [float(np.mean([b for _, b in trial])) for trial in pairs]
    differences = [a - b for a, b in zip(lived, simulated, strict=True)]
    every = np.array([pair for trial in pairs for pair in trial])
    low, high = student_ci95(differences)[1]
    return {
        **trials_figure(f"live_{key}", lived, digits),
        **trials_figure(f"simulated_{key}", simulated, digits),
        **trials_figure(f"difference_{key}", differences, digits),
        f"live_median_{key}": round(float(np.median(every[:, 0])), digits),
        f"simulated_median_{key}": round(float(np.median(every[:, 1])), digits),
        f"difference_median_{key}": round(float(np.median(every[:, 0] - every[:, 1])), digits),
        "agree": low <= 0.0 <= high,
    }


def beside(ours: Sequence[float], theirs: Sequence[float]) -> dict[str, float | list[float] | bool]:
    """Return one policy's cost over another's, trial by trial: the same requests and instants.

    Returns:
        `ratio` of the sums, `difference` with its interval, and whether ours is `worse` beyond it.
    """
    differences = [a - b for a, b in zip(ours, theirs, strict=True)]
    _, bounds = student_ci95(differences)
    total = sum(theirs)
    return {
        "ratio": round(sum(ours) / total, 4) if total else 1.0,
        **trials_figure("difference", differences),
        "worse": bounds[0] > 0.0,
    }


def beside_simple(
    costs: Mapping[str, Sequence[float]], simple: Collection[str], deciding: Collection[str]
) -> dict[str, Any]:
    """Compare each policy that decides with all that do not, and with the best of these.

    Args:
        costs: of every policy, trial by trial.
        simple: the policies that do not decide.
        deciding: those that do; `adaptive` is one.
    """
    best = min(simple, key=lambda name: sum(costs[name]))
    return {
        policy: {
            "best_simple": best,
            "to_best_simple": beside(costs[policy], costs[best]),
            **{f"to_{name}": beside(costs[policy], costs[name]) for name in (*simple, "adaptive")},
        }
        for policy in deciding
    }

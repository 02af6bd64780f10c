"""Figures that need more of a result file than a path: means by place, ratios over the best policy."""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from statistics import fmean
from typing import Any, Final

import numpy as np

from emu.runs.mobility import FIXED
from emu.statistics import ci95

_RESAMPLES: Final = 2000

# The `places` of a file that `emu.runs.mobility` wrote: one run each.
Runs = Sequence[Mapping[str, Any]]


def in_hindsight(runs: Runs, policy: str) -> float:
    """Return a policy's mean time over that of the best fixed policy of each run."""
    best = fmean(min(run["policies"][name]["mean_s"] for name in _fixed(runs)) for run in runs)
    return _mean_s(runs, policy) / best


def over_best(runs: Runs, policy: str) -> float:
    """Return a policy's mean time over that of the fixed policy that is best over all runs."""
    return _mean_s(runs, policy) / min(_mean_s(runs, name) for name in _fixed(runs))


def over_best_of_place(runs: Runs, policy: str, place: str) -> float:
    """Return the same of one place's runs: the best fixed policy is that of the place."""
    return over_best([run for run in runs if run["place"] == place], policy)


def over_best_of_each(runs: Runs, policy: str) -> float:
    """Return a policy's mean time over the mean of each place's best fixed policy."""
    places = dict.fromkeys(run["place"] for run in runs)
    ours = best = 0.0
    for place in places:
        here = [run for run in runs if run["place"] == place]
        ours += len(here) * _mean_s(here, policy)
        best += len(here) * min(_mean_s(here, name) for name in _fixed(here))
    return ours / best


def over_by_group(runs: Runs, policy: str, other: str) -> list[float]:
    """Return one policy's mean time over another's, and its 95 % interval.

    Runs of one group of places are no independent evidence: the bootstrap draws groups, and then
    runs of each. A group is what a place's name has before its dash.
    """
    groups: defaultdict[str, list[tuple[float, float]]] = defaultdict(list)
    for run in runs:
        times = tuple(run["policies"][name]["mean_s"] for name in (policy, other))
        groups[run["place"].partition("-")[0]].append(times)
    pairs = [np.array(each) for each in groups.values()]
    draw = np.random.default_rng(1)
    drawn = []
    for _ in range(_RESAMPLES):
        chosen = [pairs[i] for i in draw.integers(0, len(pairs), len(pairs))]
        sums = sum(each[draw.integers(0, len(each), len(each))].sum(axis=0) for each in chosen)
        drawn.append(sums[0] / sums[1])
    every = np.concatenate(pairs).sum(axis=0)
    return [float(every[0] / every[1]), *ci95(drawn)]


def run_ratios(runs: Runs, policy: str, other: str) -> list[float]:
    """Return one policy's mean time over another's, run by run."""
    return [run["policies"][policy]["mean_s"] / run["policies"][other]["mean_s"] for run in runs]


def places_over(runs: Runs, policy: str, limit: float) -> float:
    """Return at how many places a policy takes over `limit` of the place's best fixed policy."""
    places = dict.fromkeys(run["place"] for run in runs)
    return float(sum(over_best_of_place(runs, policy, place) > limit for place in places))


def gateway_over(runs: Runs, third: Runs, policy: str) -> list[float]:
    """Return the gateway's time over a fixed policy's: all together, and the least and most by place.

    `third`: the runs of another seed. A run without that policy beside it does not count.
    """
    ours: defaultdict[str, float] = defaultdict(float)
    theirs: defaultdict[str, float] = defaultdict(float)
    for each in (*runs, *third):
        beside = each["beside"].get(policy, {}).get("mean_s")
        other_s = beside or each.get("fixed_mean_s", {}).get(policy)
        if other_s is not None:
            ours[each["place"]] += each["n"] * each["mean_s"]
            theirs[each["place"]] += each["n"] * other_s
    by_place = [ours[place] / theirs[place] for place in ours]
    return [sum(ours.values()) / sum(theirs.values()), min(by_place), max(by_place)]


def transfer_mean(runs: Runs, policy: str) -> float:
    """Return a policy's mean time over all transfers of all runs."""
    every = [run["policies"][policy] for run in runs]
    return float(
        sum(each["n"] * each["mean_s"] for each in every) / sum(each["n"] for each in every)
    )


def _mean_s(runs: Runs, policy: str) -> float:
    return fmean(run["policies"][policy]["mean_s"] for run in runs)


def _fixed(runs: Runs) -> list[str]:
    return [name for name in FIXED if all(name in run["policies"] for run in runs)]


REDUCERS: Final[Mapping[str, Callable[..., Any]]] = {
    each.__name__: each
    for each in (
        in_hindsight, over_best, over_best_of_place, over_best_of_each, over_by_group, run_ratios,
        places_over, gateway_over, transfer_mean,
    )
}  # fmt: skip

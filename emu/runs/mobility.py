"""Figures of runs with the mixed load while the host moves, by place and for all places together.

    cedos-emu figures mobility RUN... --json FILE

For each run folder and policy: the mean completion time with its 95 % interval, its ratio to the best
policy that needs no controller (paired bootstrap: all policies carried the same transfers), the costs,
and the longest time without data while an MPTCP download was under way. A stall of a plain TCP
connection does not count, since no controller can move one.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from emu.runs import runs
from emu.runs.runs import Recorded
from emu.statistics import ci95, resampled

FIXED = ("wifi-first", "cellular-only", "mptcp-wifi", "mptcp-cellular")
_RESAMPLES = 2000
# Fewer bytes between two samples of the counters (less than a full packet) count as none.
_NOTHING_BYTES = 1200


def figures(recorded: Sequence[Recorded]) -> dict[str, Any]:
    """Return `places`, the figures of each run (`of_run`), and `together`, those of all.

    DataSetError: a run without transfers, or none of `FIXED` is in all runs.
    """
    runs.policies_of_all(runs.with_transfers(recorded), FIXED)
    of_places = [of_run(each) for each in recorded]
    return {"places": of_places, "together": all_places(of_places, recorded)}


def of_run(recorded: Recorded) -> dict[str, Any]:
    times = {name: runs.times_s(recorded, name) for name in recorded.policies}
    means = {name: float(each.mean()) for name, each in times.items()}
    fixed = [name for name in FIXED if name in times]
    best = min(fixed, key=means.__getitem__)
    draw = np.random.default_rng(recorded.scenario.seed)
    count = len(next(iter(times.values())))
    samples = resampled(count, draw, _RESAMPLES)
    drawn = {name: each[samples].mean(axis=1) for name, each in times.items()}
    # Choose the best fixed policy anew in each sample, since that choice is uncertain, too.
    best_drawn = np.min([drawn[name] for name in fixed], axis=0)
    summary = recorded.summary["policies"]
    policies: dict[str, Any] = {}
    for name, times_s in times.items():
        policies[name] = {
            "n": count,
            "mean_s": means[name],
            "mean_s_ci95": ci95(drawn[name]),
            "over_best_fixed": means[name] / means[best],
            "over_best_fixed_ci95": ci95(drawn[name] / best_drawn),
            "p95_s": float(np.quantile(times_s, 0.95)),
            "censored": summary[name]["censored"],
            "energy_j": summary[name]["energy_j"],
            "cellular_mb": summary[name]["cellular_mb"],
            "longest_stall_s": longest_stall_s(recorded, name),
        }
    return {
        "place": recorded.scenario.place,
        "start_s": recorded.scenario.start_s,
        "duration_s": recorded.duration_s,
        "repeats": recorded.scenario.repeats,
        "best_fixed": best,
        "policies": policies,
    }


def longest_stall_s(recorded: Recorded, policy: str) -> float:
    """Return the longest time, s, without received data while an MPTCP download was under way."""
    longest = 0.0
    for repeat in range(recorded.scenario.repeats):
        spans = [
            (row["started_s"], row["started_s"] + row["time_s"])
            for row in recorded.flows
            if row["policy"] == policy and row["repeat"] == repeat and row["mptcp"]
            and row["direction"] == "down" and not row["censored"]
        ]  # fmt: skip
        received: dict[float, int] = {}
        for row in recorded.rates:
            if row["policy"] == policy and row["repeat"] == repeat:
                received[row["at_s"]] = received.get(row["at_s"], 0) + row["received_bytes"]
        instants = sorted(received)
        begun_s: float | None = None
        for before_s, now_s in pairwise(instants):
            waiting = any(start <= before_s and now_s <= end for start, end in spans)
            if waiting and received[now_s] - received[before_s] < _NOTHING_BYTES:
                begun_s = before_s if begun_s is None else begun_s
                longest = max(longest, now_s - begun_s)
            else:
                begun_s = None
    return longest


def all_places(of_places: Sequence[dict[str, Any]], recorded: Sequence[Recorded]) -> dict[str, Any]:
    """Return all places' mean over all transfers, and the geometric mean of the places' ratios."""
    names = runs.policies_of_all(recorded, FIXED)
    times = {
        name: np.concatenate([runs.times_s(each, name) for each in recorded]) for name in names
    }
    means = {name: float(each.mean()) for name, each in times.items()}
    best = min((name for name in FIXED if name in means), key=means.__getitem__)
    return {
        "places": len(of_places),
        "best_fixed": best,
        "policies": {
            name: {
                "n": len(times[name]),
                "mean_s": means[name],
                "over_best_fixed": means[name] / means[best],
                "over_best_fixed_by_place": float(
                    np.exp(
                        np.mean([np.log(p["policies"][name]["over_best_fixed"]) for p in of_places])
                    )
                ),
                "longest_stall_s": max(p["policies"][name]["longest_stall_s"] for p in of_places),
            }
            for name in names
        },
    }


def lines(found: Mapping[str, Any]) -> Iterator[str]:
    for place in found["places"]:
        shown = ", ".join(
            f"{name} {each['mean_s']:.2f} s ({each['over_best_fixed']:.2f}, stall"
            f" {each['longest_stall_s']:.1f} s)"
            for name, each in place["policies"].items()
        )
        yield f"{place['place']}: {shown}"
    shown = ", ".join(
        f"{name} {each['over_best_fixed']:.2f}"
        for name, each in found["together"]["policies"].items()
    )
    yield f"together, over the best fixed: {shown}"

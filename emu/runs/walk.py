"""Delphi's Figure 12 from run folders: one download's throughput second by second, by policy.

    cedos-emu figures walk RUN... --json FILE

For each place and policy (`emu/experiments/delphi_walk.toml`): the rate over each network, when the
cellular network first carried most of the data, and the longest time with hardly any data.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cedos.model import NetworkKind
from emu.runs import runs
from emu.runs.runs import Recorded
from emu.testbed.access import INTERFACES

Floats = NDArray[np.float64]

_STEP_S = 0.5
_STALLED_BPS = 100e3


def figures(recorded: Sequence[Recorded]) -> dict[str, Any]:
    """Return `{"places": {PLACE: {"policies": {NAME: {...}}}}}`.

    A policy's `mbps` are of consecutive steps of `step_s`; `moved_s` is when the cellular network
    first carried more than half of a step, None where it never did; `longest_stall_s` is the longest
    time under 0.1 Mbit/s; `mean_mbps` is over the whole run. These are of the place's first repeat;
    `moved_each_s` and `longest_stall_each_s` have all.
    """
    return {
        "experiment": "delphi_walk",
        "paper": {"delphi_moved_s": 10.5, "mptcp_handover_moved_s": 41.0},
        "step_s": _STEP_S,
        "places": {run.scenario.place: _place(run) for run in runs.by_place(recorded)},
    }


def _place(run: Recorded) -> dict[str, Any]:
    return {
        "duration_s": run.duration_s,
        "policies": {policy: _policy(run, policy) for policy in run.policies},
    }


def _policy(run: Recorded, policy: str) -> dict[str, Any]:
    each = [_repeat(run, policy, number) for number in range(run.scenario.repeats)]
    return each[0] | {
        f"{key[:-2]}_each_s": [one[key] for one in each] for key in ("moved_s", "longest_stall_s")
    }


def _repeat(run: Recorded, policy: str, repeat: int) -> dict[str, Any]:
    steps = {
        kind: _steps_bps(run, policy, repeat, interface) for kind, interface in INTERFACES.items()
    }
    both = np.sum(list(steps.values()), axis=0)
    cellular = steps[NetworkKind.CELLULAR]
    led = np.flatnonzero((cellular > 0.5 * both) & (both > _STALLED_BPS))
    return {
        "mbps": {kind.value: [round(v / 1e6, 2) for v in each] for kind, each in steps.items()},
        "mean_mbps": round(float(both.mean()) / 1e6, 3),
        "moved_s": float(led[0] * _STEP_S) if len(led) else None,
        "longest_stall_s": _longest(both < _STALLED_BPS) * _STEP_S,
        "cellular_mb": round(float(cellular.sum()) * _STEP_S / 8e6, 2),
    }


def _steps_bps(run: Recorded, policy: str, repeat: int, interface: str) -> Floats:
    rows = [
        row
        for row in run.rates
        if row["policy"] == policy and row["interface"] == interface and row["repeat"] == repeat
    ]
    at_s = np.array([row["at_s"] for row in rows])
    received = np.array([row["received_bytes"] for row in rows], dtype=float)
    edges = np.arange(0.0, run.duration_s + _STEP_S / 2, _STEP_S)
    rates: Floats = 8 * np.diff(np.interp(edges, at_s, received)) / _STEP_S
    return rates


def _longest(stalled: NDArray[np.bool_]) -> int:
    longest = now = 0
    for each in stalled[2:]:  # the first second belongs to connecting
        now = now + 1 if each else 0
        longest = max(longest, now)
    return longest


def lines(found: Mapping[str, Any]) -> Iterator[str]:
    for place, each in found["places"].items():
        for policy, entry in each["policies"].items():
            moved_s = entry["moved_s"]
            moved = "did not move" if moved_s is None else f"moved at {moved_s} s"
            yield (
                f"{place} {policy}: {entry['mean_mbps']:.1f} Mbit/s, {moved},"
                f" longest stall {entry['longest_stall_s']} s"
            )

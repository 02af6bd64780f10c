"""The summary of a run's policies: the figures of `summary.json`.

The oracle of a run is, for each transfer, the fastest that any of the run's policies was on that same
transfer: all of them saw it at the same instant of the same place.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cedos.model import Direction, NetworkKind
from cedos.selector.energy import DELPHI, PowerModel
from emu.statistics import Floats, Measure, ci95, measured, resampled
from emu.testbed.counters import Sample

# A choice within this factor of the oracle's time agrees with it. A smaller factor would count
# noise.
MATCH = 1.10


def _none() -> Floats:
    return np.array([])


@dataclass(frozen=True, slots=True)
class Browsing:
    """Times that a person waited, by page visit and by video; empty if there were none.

    In seconds: `page_load_s` to the load event, `page_transfer_s` to a page's last byte,
    `video_transfer_s` for a mean segment of a video, `video_start_s` to its first picture,
    `video_stall_s` of standing still.
    """

    page_load_s: Floats = field(default_factory=_none)
    page_transfer_s: Floats = field(default_factory=_none)
    video_transfer_s: Floats = field(default_factory=_none)
    video_stall_s: Floats = field(default_factory=_none)
    video_start_s: Floats = field(default_factory=_none)
    video_mbps: Floats = field(default_factory=_none)


@dataclass(frozen=True, slots=True)
class PolicyRun:
    """The transfers of one policy in the plan's order, and the costs of each repeat.

    All arrays of transfers have the same length and order for all policies of a run. A censored transfer
    has the time limit as its time, and the bytes that it carried until then.
    """

    time_s: Floats
    size_bytes: Floats
    censored: NDArray[np.bool_]
    energy_j: Sequence[float]
    cellular_bytes: Sequence[float]
    browsing: Browsing = Browsing()


def summarise(runs: Mapping[str, PolicyRun], seed: int = 1) -> dict[str, Any]:
    """Return `{"policies": {NAME: {...}}}` with a 95 % bootstrap interval beside each.

    `mean_mbps` is all bytes over all transfer seconds; `energy_j` and `cellular_mb` are means over
    repeats, with an interval only where there are several. Without any transfer there are only these,
    `n` and `censored`.
    """
    oracle_s = np.min([run.time_s for run in runs.values()], axis=0)
    return {
        "policies": {
            name: _figures(run, oracle_s, np.random.default_rng(seed)) for name, run in runs.items()
        }
    }


def _figures(run: PolicyRun, oracle_s: Floats, draw: np.random.Generator) -> dict[str, Any]:
    figures: dict[str, Any] = {"n": len(run.time_s), "censored": int(run.censored.sum())}
    measures: dict[str, Measure] = {
        "median_s": lambda rows: float(np.median(run.time_s[rows])),
        "p95_s": lambda rows: float(np.quantile(run.time_s[rows], 0.95)),
        "mean_s": lambda rows: float(run.time_s[rows].mean()),
        "mean_mbps": lambda rows: float(8e-6 * run.size_bytes[rows].sum() / run.time_s[rows].sum()),
        "oracle_match": lambda rows: float((run.time_s[rows] <= MATCH * oracle_s[rows]).mean()),
        "regret_mean": lambda rows: float((run.time_s[rows] / oracle_s[rows] - 1).mean()),
    }
    if len(run.time_s):
        figures |= measured(measures, len(run.time_s), draw)
    figures |= _browsing(run.browsing, draw)
    for key, values in (
        ("energy_j", np.array(run.energy_j)),
        ("cellular_mb", np.array(run.cellular_bytes) / 1e6),
    ):
        figures[key] = float(values.mean())
        if len(values) > 1:
            figures[f"{key}_ci95"] = ci95(values[resampled(len(values), draw)].mean(axis=1))
    return figures


def _browsing(seen: Browsing, draw: np.random.Generator) -> dict[str, Any]:
    figures: dict[str, Any] = {}
    if count := len(seen.page_load_s):
        pages: dict[str, Measure] = {
            "page_median_s": lambda rows: float(np.median(seen.page_load_s[rows])),
            "page_p95_s": lambda rows: float(np.quantile(seen.page_load_s[rows], 0.95)),
            "page_transfer_median_s": lambda rows: float(np.median(seen.page_transfer_s[rows])),
            "page_transfer_mean_s": lambda rows: float(seen.page_transfer_s[rows].mean()),
        }
        figures |= {"pages": count, **measured(pages, count, draw)}
    if count := len(seen.video_transfer_s):
        videos: dict[str, Measure] = {
            "video_transfer_s": lambda rows: float(seen.video_transfer_s[rows].mean()),
            "video_stall_s": lambda rows: float(seen.video_stall_s[rows].mean()),
            "video_start_s": lambda rows: float(seen.video_start_s[rows].mean()),
            "video_mbps": lambda rows: float(seen.video_mbps[rows].mean()),
        }
        figures |= {"videos": count, **measured(videos, count, draw)}
    return figures


def run_energy_j(samples: Sequence[Sample], kind: NetworkKind, power: PowerModel = DELPHI) -> float:
    """Return the joules of one interface's samples, in time order.

    The power model is the selector's (Delphi, Table 4), applied to what the interface really carried,
    so that the tails of many small transfers are shared as they are on a phone.

    An interval between two samples in which bytes moved costs the power of the direction that carried
    more. A pause costs the part of the tail that fits into it. A probe wakes the radio like any other
    packet.
    """
    radio = power.radios[kind]
    tail_w = radio.tail_j / radio.tail_s if radio.tail_s else 0.0
    energy_j = 0.0
    tail_left_s = 0.0
    for before, after in pairwise(samples):
        length_s = after.at_s - before.at_s
        received = after.received_bytes - before.received_bytes
        sent = after.sent_bytes - before.sent_bytes
        if received + sent > 0:
            energy_j += length_s * radio.active_w(
                Direction.UP if sent > received else Direction.DOWN
            )
            tail_left_s = radio.tail_s
        else:
            spent_s = min(length_s, tail_left_s)
            energy_j += spent_s * tail_w
            tail_left_s -= spent_s
    return energy_j + tail_left_s * tail_w

"""Why predictions err as they do: what repeating a transfer changes, and what the next seconds change.

No model can be nearer to a measurement than another measurement of the same instant is; and none that
only knows the past can tell how far the rate moves while the transfer lasts.
"""

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from emu.experiments.delphi.analyses.floor import measured_twice
from emu.experiments.delphi.analyses.prediction import whole
from emu.lab.data import datasets
from emu.lab.data.datasets import DataSet
from emu.places import places as collections
from emu.repository import ROOT
from emu.statistics import Bootstrap, Floats, quantile
from predictors.inputs import NETWORKS

_LEAST_BPS = 1e4
"""A rate that is compared counts as this at least: of nothing there is no ratio."""


def run(data: DataSet, second: str, places: str) -> dict[str, Any]:
    """Relative differences by strategy (or network) and size in bytes, and over all sizes (`all`).

    Args:
        data: rows with the times of all strategies; others are left out.
        second: another measurement of some of the same instants, relative to the repository.
        places: the collection whose traces were replayed, likewise.

    Returns:
        `rows_twice`; `repeated`: by strategy, `median` and `p90` of |one time / the other - 1|; `floor`:
        the same of |time / what is expected of it - 1| that this leaves to a perfect model: both
        measurements are equally far off, so their difference is the root of two times that, once what
        is typical between the two programs is taken away; `wander`: by network, of |mean rate while the
        transfer lasted / mean rate of the five seconds before - 1|.

    Raises:
        PlaceError: a place is not there.
    """
    data = whole(data)
    other = whole(datasets.read(ROOT / second))
    here, there = measured_twice(data, other)
    groups, sizes = data.texts["group"], data.numbers["size_bytes"]
    found: dict[str, Any] = {
        "rows": len(data),
        "rows_twice": len(here),
        "repeated": {},
        "floor": {},
        "wander": {},
    }
    for name in [each for each in data.strategies if each in other.strategies]:
        log_ratio = np.log(data.times_s[name][here] / other.times_s[name][there])
        finished = ~(data.censored[name][here] | other.censored[name][there])
        typical = np.zeros(len(here))
        for size in np.unique(sizes[here]):
            of = sizes[here] == size
            typical[of] = np.median(log_ratio[of & finished]) if (of & finished).any() else 0.0
        off = np.where(finished, np.abs(np.expm1(log_ratio)), np.nan)
        alone = np.where(finished, np.abs(log_ratio - typical) / np.sqrt(2.0), np.nan)
        found["repeated"][name] = _by_size(off, sizes[here], groups[here])
        found["floor"][name] = _by_size(alone, sizes[here], groups[here])
    for network, moved in wander(data, ROOT / places).items():
        found["wander"][network] = _by_size(moved, sizes, groups)
    return found


def wander(data: DataSet, directory: Path) -> dict[str, Floats]:
    """By network, how far its rate moved while the transfer over it alone lasted, as a share."""
    known = collections.load(directory)
    found = {}
    for network in [name for name in NETWORKS if name in data.strategies]:
        moved = np.empty(len(data))
        for index, time_s in enumerate(data.times_s[network].tolist()):
            access = known[str(data.texts["place"][index])].networks[network]
            trace = access.up if data.numbers["direction_up"][index] else access.down
            start_s = trace.period_s + float(data.numbers["start_s"][index])
            before = trace.rate_bps(start_s - min(5.0, trace.period_s), start_s)
            during = trace.rate_bps(start_s, start_s + time_s)
            moved[index] = abs(max(during, _LEAST_BPS) / max(before, _LEAST_BPS) - 1.0)
        found[network] = moved
    return found


def _by_size(off: Floats, sizes: Floats, groups: NDArray[Any]) -> dict[str, Any]:
    found = {}
    for label, mask in [
        ("all", np.full(len(off), True)),
        *((str(int(size)), sizes == size) for size in np.unique(sizes)),
    ]:
        bootstrap = Bootstrap(groups[mask])
        found[label] = {
            "n": int(np.isfinite(off[mask]).sum()),
            **bootstrap.figure("median", quantile(off[mask], 0.5)),
            **bootstrap.figure("p90", quantile(off[mask], 0.9)),
        }
    return found

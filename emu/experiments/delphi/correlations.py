"""Figure 2: how each indicator goes with the throughput of single-path TCP (Delphi, section 5.1)."""

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cedos.errors import DataSetError
from emu.data.datasets import DataSet
from emu.statistics import Floats, ci95, resampled_groups

_LEAST_ROWS = 10
_RESAMPLES = 400


def run(
    data: DataSet, *, size_bytes: int = 3_000_000, direction: str = "down", places: int = 2
) -> dict[str, Any]:
    """Pearson's correlation of every indicator with the throughput, for each network.

    `size_bytes`: of which transfers; the throughput of small ones is their round-trip time.
    `direction`: of which transfers, `down` or `up`.
    `places`: the same for so many single places, those with most rows.

    Returns:
        `{"wifi": {"all": {indicator: {"r", "r_ci95", "n"}}, PLACE: {...}}, "cellular": {...}}`;
        intervals by bootstrap over places (over rows within one place).

    Raises:
        DataSetError: no such transfers.
    """
    mask = (data.numbers["size_bytes"] == size_bytes) & (
        data.numbers["direction_up"] == float(direction == "up")
    )
    chosen = data.take(mask)
    if not np.count_nonzero(mask):
        raise DataSetError(f"{data.source}: no {direction}loads of {size_bytes} bytes")
    found: dict[str, Any] = {"size_bytes": size_bytes, "direction": direction}
    names, counts = np.unique(chosen.texts["place"], return_counts=True)
    most = [str(name) for name in names[np.argsort(-counts, kind="stable")][:places]]
    for network in ("wifi", "cellular"):
        rate_bps = 8.0 * chosen.numbers["size_bytes"] / chosen.numbers[f"t_{network}_s"]
        indicators = {
            name.removeprefix(f"{network}_"): column
            for name, column in chosen.indicators.items()
            if name.startswith(f"{network}_") or name == "speed_mps"
        }
        found[network] = {"all": _of(indicators, rate_bps, chosen.texts["place"])}
        for place in most:
            here = chosen.texts["place"] == place
            inside = {name: column[here] for name, column in indicators.items()}
            rows = np.arange(np.count_nonzero(here)).astype(str)
            found[network][place] = _of(inside, rate_bps[here], rows)
    return found


def _of(indicators: dict[str, Floats], rate_bps: Floats, clusters: NDArray[Any]) -> dict[str, Any]:
    found: dict[str, dict[str, Any]] = {}
    for name, column in indicators.items():
        known = ~np.isnan(column) & ~np.isnan(rate_bps)
        count = int(np.count_nonzero(known))
        if count < _LEAST_ROWS or np.ptp(column[known]) == 0.0:
            continue
        r = float(np.corrcoef(column[known], rate_bps[known])[0, 1])
        low, high = _interval(column[known], rate_bps[known], clusters[known])
        found[name] = {"r": round(r, 4), "r_ci95": [round(low, 4), round(high, 4)], "n": count}
    return dict(sorted(found.items(), key=lambda item: -abs(item[1]["r"])))


def _interval(a: Floats, b: Floats, clusters: NDArray[Any]) -> list[float]:
    seen = [
        float(np.corrcoef(a[rows], b[rows])[0, 1])
        for rows in resampled_groups(clusters, np.random.default_rng(1), _RESAMPLES)
        if np.ptp(a[rows]) > 0.0 and np.ptp(b[rows]) > 0.0
    ]
    return ci95(seen) if seen else [math.nan, math.nan]

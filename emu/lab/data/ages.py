"""Rows of a transfer data set by how late is known what their networks carry."""

import numpy as np
from numpy.typing import NDArray

from emu.lab.data.datasets import DataSet
from predictors.inputs import NETWORKS

Rows = NDArray[np.bool_]

FRESH = "fresh"
"""Both rates are of this moment, as in the data sets themselves."""


def has_ages(data: DataSet) -> bool:
    return any(f"{network}_rate_age_s" in data.numbers for network in NETWORKS)


def by_age(data: DataSet) -> dict[str, Rows]:
    """Name -> rows: `fresh`; whose rate is old; and of Wi-Fi's old ones, by what is known since.

    Rows of which there are none are left out.
    """
    wifi, cellular = (_numbers(data, f"{network}_rate_age_s") > 0.0 for network in NETWORKS)
    recent = np.isfinite(data.numbers.get("wifi_recent_s", np.full(len(data), np.nan)))
    found = {
        FRESH: ~wifi & ~cellular,
        "wifi old": wifi & ~cellular,
        "wifi old, small transfer known": wifi & ~cellular & recent,
        "wifi old, no small transfer known": wifi & ~cellular & ~recent,
        "cellular old": cellular & ~wifi,
        "both old": wifi & cellular,
    }
    return {name: rows for name, rows in found.items() if rows.any()}


def singles(data: DataSet) -> DataSet:
    """The same rows with the networks alone as strategies: nothing hides a wrong belief of one."""
    return data.without({name for name in data.numbers if name.startswith("t_mptcp_")})


def _numbers(data: DataSet, column: str) -> NDArray[np.float64]:
    return np.nan_to_num(data.numbers.get(column, np.zeros(len(data))))

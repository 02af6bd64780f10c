"""Calibration of live predictions from run folders, by network and size.

    cedos-emu figures calibration RUN... --json FILE

For each finished transfer over one network, the time that was expected when it began is compared with its
actual time. Transfers that did not finish are missing, since their time is unknown.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from emu.runs.runs import Recorded
from predictors.base import Judged, calibration, size_class

Row = Mapping[str, Any]


def figures(recorded: Sequence[Recorded]) -> dict[str, Any]:
    """Return `{"policies": {NAME: {"calibration": {NETWORK: {SIZE: {...}}}}}}`."""
    rows: dict[str, list[Mapping[str, Any]]] = defaultdict(list)
    for run in recorded:
        for row in run.predictions:
            rows[row["policy"]].append(row)
    return {
        "experiment": "calibration",
        "places": [run.scenario.place for run in recorded],
        "policies": {
            policy: {"calibration": by_network_and_size(each)} for policy, each in rows.items()
        },
    }


def by_network_and_size(rows: Iterable[Row]) -> dict[str, dict[str, Any]]:
    """Return `{NETWORK: {SIZE: {...}}}` of transfers over one network alone."""
    grouped: dict[tuple[str, str], list[Row]] = defaultdict(list)
    for row in rows:
        if row["alone"]:
            grouped[row["network"], size_class(row["size_bytes"])].append(row)
    found: dict[str, dict[str, Any]] = defaultdict(dict)
    for (network, size), each in sorted(grouped.items()):
        found[network][size] = figures_of(each)
    return dict(found)


def figures_of(rows: Sequence[Row]) -> dict[str, Any]:
    """Return the calibration of some rows, rounded for files."""
    held = calibration(
        Judged(row["low_s"], row["median_s"], row["high_s"], row["mean_s"], row["took_s"])
        for row in rows
    )
    if held is None:
        return {"n": 0}
    return {name: round(value, 3) for name, value in asdict(held).items()}


def lines(found: Mapping[str, Any]) -> Iterator[str]:
    for policy, each in found["policies"].items():
        for network, sizes in each["calibration"].items():
            for size, held in sizes.items():
                yield f"{policy}, {network}, {size}: {_text(held)}"


def _text(held: Mapping[str, Any]) -> str:
    return (
        f"expected {held['expected_over_actual_median']:.2f} x (median),"
        f" {held['expected_over_actual_sum']:.2f} x (sums), {held['coverage90']:.0%} inside,"
        f" {held['n']} transfers"
    )

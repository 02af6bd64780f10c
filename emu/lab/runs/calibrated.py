"""What was expected of transfers, and what they took: rows of a run's predictions, and their figures."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from cedos.model import FlowRecord
from emu.testbed.access import INTERFACES
from predictors.base import Judged, calibration, size_class

Row = Mapping[str, Any]

_AGES_S = (0.0, 1.5, 5.0, 15.0)
UNKNOWN = "unknown"
"""In place of an age: no rate of the network had been measured."""

_KINDS = {interface: str(kind) for kind, interface in INTERFACES.items()}


def rows_of(flows: Iterable[FlowRecord], zero_unix_s: float) -> list[dict[str, Any]]:
    """Return a row for each flow whose one transfer was predicted."""
    found = []
    for flow in flows:
        known = flow.prediction
        if known is None:
            continue
        low_s, median_s, high_s, mean_s = known.expected[known.strategy]
        found.append(
            {
                "ended_s": flow.ended_unix_s - zero_unix_s,
                "strategy": known.strategy,
                "network": _KINDS.get(known.network, known.network),
                "alone": not known.strategy.startswith("mptcp"),
                "direction": str(known.direction),
                "size_bytes": known.carried_bytes,
                "rate_age_s": known.rate_age_s,
                "low_s": low_s,
                "median_s": median_s,
                "high_s": high_s,
                "mean_s": mean_s,
                "took_s": known.took_s,
                "lengthened": known.lengthened,
                "by_strategy": {name: each[1] for name, each in known.expected.items()},
                "columns": dict(known.columns),
            }
        )
    return found


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


def by_network_and_age(rows: Iterable[Row]) -> dict[str, dict[str, list[Row]]]:
    """Return `{NETWORK: {AGE: rows}}` of transfers over one network alone, the youngest first.

    AGE is the least that the network's rate had when the transfer began, s, as text; or `unknown`.
    """
    found: dict[str, dict[str, list[Row]]] = defaultdict(dict)
    alone = sorted((row for row in rows if row["alone"]), key=lambda row: float(row["rate_age_s"]))
    for row in sorted(alone, key=_has_no_rate):
        least_s = max(each for each in _AGES_S if row["rate_age_s"] >= each)
        age = UNKNOWN if _has_no_rate(row) else f"{least_s:g}"
        found[row["network"]].setdefault(age, []).append(row)
    return dict(sorted(found.items()))


def _has_no_rate(row: Row) -> bool:
    columns = dict(row["columns"] or ())  # a file's are pairs
    return bool(columns) and f"{row['strategy']}_past1_bps" not in columns


def figures_of(rows: Sequence[Row]) -> dict[str, Any]:
    """Return the calibration of some rows, rounded for files."""
    held = calibration(
        Judged(row["low_s"], row["median_s"], row["high_s"], row["mean_s"], row["took_s"])
        for row in rows
    )
    if held is None:
        return {"n": 0}
    return {name: round(value, 3) for name, value in asdict(held).items()}

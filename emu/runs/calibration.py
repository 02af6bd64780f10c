"""Calibration of live predictions from run folders, by network, size and age of the known rates.

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

_AGES_S = (0.0, 1.5, 5.0, 15.0)
# The key that stands in place of an age if no rate of the network was measured.
UNKNOWN = "unknown"


def figures(recorded: Sequence[Recorded]) -> dict[str, Any]:
    """Return `{"policies": {NAME: {"calibration": {NETWORK: {SIZE: ...}}, "by_age": {NETWORK: ..}}}}`."""
    rows: dict[str, list[Mapping[str, Any]]] = defaultdict(list)
    for run in recorded:
        for row in run.predictions:
            rows[row["policy"]].append(row)
    return {
        "experiment": "calibration",
        "places": [run.scenario.place for run in recorded],
        "policies": {
            policy: {"calibration": by_network_and_size(each), "by_age": _by_age(each)}
            for policy, each in rows.items()
        },
    }


def _by_age(rows: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    return {
        network: {age: figures_of(each) for age, each in ages.items()}
        for network, ages in by_network_and_age(rows).items()
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


def by_network_and_age(rows: Iterable[Row]) -> dict[str, dict[str, list[Row]]]:
    """Return `{NETWORK: {AGE: rows}}` of transfers over one network alone, the youngest first.

    AGE is the lower end of a class of ages, in seconds as text: the age of the network's rate when the
    transfer began. Or it is `unknown`.
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


def lines(found: Mapping[str, Any]) -> Iterator[str]:
    for policy, each in found["policies"].items():
        for network, sizes in each["calibration"].items():
            for size, held in sizes.items():
                yield f"{policy}, {network}, {size}: {_text(held)}"
        for network, ages in each["by_age"].items():
            for age, held in ages.items():
                known = f"at least {age} s old" if age != UNKNOWN else UNKNOWN
                yield f"{policy}, {network}, rate {known}: {_text(held)}"


def _text(held: Mapping[str, Any]) -> str:
    return (
        f"expected {held['expected_over_actual_median']:.2f} x (median),"
        f" {held['expected_over_actual_sum']:.2f} x (sums), {held['coverage90']:.0%} inside,"
        f" {held['n']} transfers"
    )

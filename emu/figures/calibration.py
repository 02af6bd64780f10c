"""Calibration of live predictions, by network, size and age of what was known: from run folders.

    cedos-emu figures calibration RUN... --json FILE

Of each finished transfer over one network, what was expected of it when it began is compared with what
it took. Transfers that ended are all that is known of: one that a person gave up on is not among them.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from emu.runs.decisions import UNKNOWN, by_network_and_age, by_network_and_size, figures_of
from emu.runs.runs import Recorded


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

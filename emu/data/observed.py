"""Transfers of programs, with what the daemon knew when they began, as a transfer data set.

Of each transfer only the time by the strategy that carried it is known. What shared its network, queued
before it or fell silent meanwhile made it longer, as the daemon expected (`selector.decision.times`); of
that the row is freed, since predictors are asked for networks on which nothing else is under way.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from predictors.inputs import CONTEXT_COLUMNS

MOST_LENGTHENED = 3.0
"""A transfer that others lengthened by this factor says more of them than of its network."""

_DIGITS = 5


def observed(
    predictions: Iterable[Mapping[str, Any]], place: str, group: str
) -> Iterator[dict[str, Any]]:
    """Return a row for each prediction (of `emu.runs.decisions.rows_of`) that tells something."""
    for each in predictions:
        columns, longer = dict(each["columns"] or {}), each["lengthened"]
        if not columns or not longer or longer > MOST_LENGTHENED:
            continue
        yield {
            "place": place,
            "group": group,
            "start_s": round(each["ended_s"] - each["took_s"], 3),
            "size_bytes": each["size_bytes"],
            "direction": each["direction"],
            f"t_{each['strategy']}_s": _rounded(each["took_s"] / longer),
            f"censored_{each['strategy']}": False,
            **{name: _rounded(columns[name]) for name in CONTEXT_COLUMNS if name in columns},
        }


def _rounded(value: float) -> float:
    return float(f"{value:.{_DIGITS}g}")

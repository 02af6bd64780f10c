"""Expected against actual times of transfers that a policy predicted, by network.

Above one point each, by size; below by the age of the rate that was known when they began.
"""

from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from emu.lab.runs.calibrated import UNKNOWN, by_network_and_age, by_network_and_size, figures_of
from emu.lab.runs.runs import Recorded
from predictors.base import size_class

_MARKS = {"small": (".", "#1f77b4"), "medium": ("+", "#ff7f0e"), "large": ("x", "#2ca02c")}
"""Mark and colour of each class of sizes, the same in all panels."""
_MOST_TICKS = 5
_WIDE = 100.0


def draw(run: Recorded) -> Figure | None:
    """A panel per policy and network with the 90 % intervals; None where nothing was predicted."""
    alone = [row for row in run.predictions if row["alone"]]
    panels = sorted({(row["policy"], row["network"]) for row in alone})
    if not panels:
        return None
    figure, axes = plt.subplots(
        *(2, len(panels)),
        figsize=(4.2 * len(panels), 6.8),
        height_ratios=(2, 1),
        squeeze=False,
        layout="constrained",
    )
    for axis, below, (policy, network) in zip(*axes, panels, strict=True):
        rows = [row for row in alone if (row["policy"], row["network"]) == (policy, network)]
        held = by_network_and_size(rows)[network]
        for size in _MARKS:
            of_size = [row for row in rows if size_class(row["size_bytes"]) == size]
            if of_size:
                _points(axis, of_size, size, f"{size}: {held[size]['coverage90']:.0%} inside")
        ends = [each for row in rows for each in (row["took_s"], row["median_s"])]
        axis.axline((min(ends), min(ends)), slope=1, color="0.6", linewidth=0.8)
        axis.set(xscale="log", yscale="log", xlabel="took, s", title=f"{policy}, {network}")
        seen = {
            axis.xaxis: [row["took_s"] for row in rows],
            axis.yaxis: [row[end] for row in rows for end in ("low_s", "high_s")],
        }
        for side, values in seen.items():
            # Whole decades, where there are some, else parts of one.
            parts = (1.0,) if max(values) >= _WIDE * min(values) else (1.0, 2.0, 5.0)
            side.set_major_locator(LogLocator(subs=parts, numticks=_MOST_TICKS))
            side.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
            side.set_minor_formatter(NullFormatter())
        axis.legend(fontsize="small")
        _ages(below, by_network_and_age(rows)[network])
    axes[1][0].set_ylabel("expected / actual\n(median, middle 90 %)")
    axes[0][0].set_ylabel("expected, s (median and 90 % interval)")
    return figure


def _points(axis: Any, rows: list[Any], size: str, label: str) -> None:
    mark, colour = _MARKS[size]
    medians = [row["median_s"] for row in rows]
    spread = [
        [row["median_s"] - row["low_s"] for row in rows],
        [row["high_s"] - row["median_s"] for row in rows],
    ]
    axis.errorbar(
        [row["took_s"] for row in rows], medians, yerr=spread, fmt=mark, color=colour, label=label,
        alpha=0.6, linewidth=0.5,
    )  # fmt: skip


def _ages(axis: Any, ages: dict[str, list[Any]]) -> None:
    names = []
    for number, (age, rows) in enumerate(ages.items()):
        low, middle, high = np.quantile(
            [row["median_s"] / row["took_s"] for row in rows], (0.05, 0.5, 0.95)
        )
        spread = [[middle - low], [high - middle]]
        axis.errorbar(number, middle, yerr=spread, fmt="o", color="0.3", linewidth=1.0)
        known = f"from {age} s" if age != UNKNOWN else UNKNOWN
        names.append(f"{known}\n{figures_of(rows)['coverage90']:.0%}\nof {len(rows)}")
    axis.axhline(1.0, color="0.6", linewidth=0.8)
    axis.set(yscale="log", xlabel="age of the rate; inside the 90 % interval")
    axis.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0), numticks=_MOST_TICKS))
    axis.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.yaxis.set_minor_formatter(NullFormatter())
    axis.set_xticks(range(len(names)), names, fontsize="small")
    axis.set_xlim(-0.5, len(names) - 0.5)

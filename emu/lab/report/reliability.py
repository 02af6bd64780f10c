"""Expected against actual times of transfers that a policy predicted, one point each, by network."""

from typing import Any

import matplotlib.pyplot as plt
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from emu.lab.runs.calibrated import by_network_and_size
from emu.lab.runs.runs import Recorded
from predictors.calibration import size_class

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
        1, len(panels), figsize=(4.2 * len(panels), 4.4), squeeze=False, layout="constrained"
    )
    for axis, (policy, network) in zip(axes[0], panels, strict=True):
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

"""The picture of a run: the capacity of each network, the rate that it carried, and its transfers."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
from matplotlib.collections import LineCollection
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from emu import policies

mpl.use("Agg")


if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from emu.runs.runs import Recorded

COLOURS = {
    "wifi": "#1f77b4",
    "cellular": "#ff7f0e",
    "both": "#7b3fa0",
    "none": "#999999",
    "page or video": "#2ca02c",
}
_INTERFACES = {"wlan0": "wifi", "lte0": "cellular"}
_BROWSED = "page or video"
_BIN_S = 0.5


def draw(run: "Recorded", repeat: int = 0) -> "Figure":
    """Draw one row a policy: rates above, transfers below, switches as vertical marks.

    The caller saves and closes the figure.
    """
    duration_s = run.duration_s
    figure, axes = plt.subplots(
        2 * len(run.policies),
        1,
        figsize=(11, 2.7 * len(run.policies) + 0.8),
        sharex=True,
        squeeze=False,
        gridspec_kw={"height_ratios": [1.0, 0.8] * len(run.policies), "hspace": 0.12},
        layout="constrained",
    )
    for number, name in enumerate(run.policies):
        flows = [f for f in run.flows if f["policy"] == name and f["repeat"] == repeat]
        rates = [r for r in run.rates if r["policy"] == name and r["repeat"] == repeat]
        switches = [s for s in run.switches if s["policy"] == name and s["repeat"] == repeat]
        # Above the rates of both networks, below the transfers, pages and videos.
        above, below = axes[2 * number][0], axes[2 * number + 1][0]
        _rates(above, run.capacity, rates, duration_s)
        browsed = [
            each
            for each in (*run.pages, *run.videos)
            if each["policy"] == name and each["repeat"] == repeat
        ]
        _transfers(below, [*map(_of_flow, flows), *map(_of_browsing, browsed)])
        # A dotted line marks a change of the network.
        for switch in switches:
            for axis in (above, below):
                axis.axvline(switch["at_s"], color=COLOURS[switch["to"]], lw=0.8, ls=":", zorder=1)
        above.set_title(
            _headline(policies.title(name), run.summary["policies"][name]), fontsize=9, loc="left"
        )
    axes[-1][0].set_xlabel("seconds into the run")
    axes[-1][0].set_xlim(0, duration_s)
    figure.legend(
        handles=_key(bool(run.pages or run.videos)),
        loc="outside lower center",
        ncols=4,
        fontsize=8,
        frameon=False,
    )
    figure.suptitle(run.title, fontsize=11)
    return figure


def _headline(name: str, figures: Mapping[str, Any]) -> str:
    if not figures["n"]:
        return f"{name}:  no transfers, {figures['energy_j']:.0f} J"
    return (
        f"{name}:  mean {figures['mean_s']:.2f} s, p95 {figures['p95_s']:.2f} s, "
        f"{figures['cellular_mb']:.1f} MB cellular, {figures['energy_j']:.0f} J"
    )


def _rates(
    axis: "Axes",
    capacity: Sequence[Mapping[str, Any]],
    rates: Sequence[Mapping[str, Any]],
    duration_s: float,
) -> None:
    # The areas show what each network could carry.
    for kind in ("wifi", "cellular"):
        seconds = [c for c in capacity if c["network"] == kind]
        axis.fill_between(
            [c["at_s"] for c in seconds],
            [c["rate_bps"] / 1e6 for c in seconds],
            step="post",
            color=COLOURS[kind],
            alpha=0.16,
            lw=0,
        )
    # The lines show what each network carried, from the counters' differences.
    edges = np.arange(0.0, duration_s + 2 * _BIN_S, _BIN_S)
    for interface, kind in _INTERFACES.items():
        rows = [r for r in rates if r["interface"] == interface]
        if len(rows) < 2:
            continue
        at_s = np.array([r["at_s"] for r in rows])
        total = np.array([r["received_bytes"] + r["sent_bytes"] for r in rows], dtype=float)
        carried = np.diff(np.interp(edges, at_s, total)) * 8e-6 / _BIN_S
        axis.plot(edges[:-1] + _BIN_S / 2, carried, color=COLOURS[kind], lw=1.1)
    axis.set_ylabel("Mbit/s", fontsize=8)
    axis.set_ylim(bottom=0)
    axis.tick_params(labelsize=7)


class _Bar(NamedTuple):
    """The bar of one transfer in a row."""

    begin_s: float
    end_s: float
    network: str
    censored: bool


def _of_flow(flow: Mapping[str, Any]) -> _Bar:
    begin_s = flow["started_s"]
    return _Bar(begin_s, begin_s + flow["time_s"], flow["network"], flow["censored"])


def _of_browsing(each: Mapping[str, Any]) -> _Bar:
    """Return the bar of a page until its load event, or of a video while it is watched."""
    lasts_s = each["load_s"] if "load_s" in each else each["watched_s"] + each["stall_s"]
    return _Bar(each["started_s"], each["started_s"] + lasts_s, _BROWSED, each["censored"])


def _transfers(axis: "Axes", bars: Sequence[_Bar]) -> None:
    # Put each bar into the first lane that is free by then.
    lanes: list[float] = []
    segments, colours = [], []
    for bar in sorted(bars):
        lane = next((n for n, free_s in enumerate(lanes) if free_s <= bar.begin_s), len(lanes))
        if lane == len(lanes):
            lanes.append(bar.end_s)
        lanes[lane] = bar.end_s
        segments.append([(bar.begin_s, lane), (max(bar.end_s, bar.begin_s + 0.12), lane)])
        colours.append(COLOURS[bar.network])
        if bar.censored:
            axis.plot(bar.end_s, lane, marker="x", color="#d62728", ms=4, zorder=3)
    axis.add_collection(LineCollection(segments, colors=colours, linewidths=2.2))
    axis.set_ylim(max(len(lanes), 4) + 0.5, -1)
    axis.set_yticks([])
    axis.set_ylabel("transfers", fontsize=8)
    axis.tick_params(labelsize=7)


def _key(browsed: bool) -> list[Any]:
    found: list[Any] = [
        Patch(color=COLOURS["wifi"], alpha=0.2, label="Wi-Fi could carry"),
        Patch(color=COLOURS["cellular"], alpha=0.2, label="cellular could carry"),
        Line2D([], [], color=COLOURS["wifi"], lw=2, label="over Wi-Fi"),
        Line2D([], [], color=COLOURS["cellular"], lw=2, label="over cellular"),
        Line2D([], [], color=COLOURS["both"], lw=2, label="over both"),
        Line2D([], [], color="#d62728", marker="x", ls="", label="not finished in time"),
        Line2D([], [], color="#555555", lw=0.8, ls=":", label="new connections go elsewhere"),
    ]
    if browsed:
        found.append(
            Line2D([], [], color=COLOURS[_BROWSED], lw=2, label="page (to its load) or video")
        )
    return found

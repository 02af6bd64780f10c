"""The first picture of a page: every transfer of two policies side by side, the outages shaded."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import matplotlib.pyplot as plt
from matplotlib.lines import Line2D

from emu import policies
from emu.lab.report.timeline import COLOURS
from emu.places.stats import DEAD_BPS

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from emu.lab.runs.runs import Recorded

PAIR = ("wifi-first", "cedos-gateway")
_SHORTEST_S = 0.12
"""A shorter transfer is drawn as long as this, or it could not be seen."""
_WIDE, _NARROW = (10.5, 5.6), (4.4, 8.4)
_GATEWAY = "gateway"
_COLOURS = COLOURS | {_GATEWAY: "#2ca02c"}
_USED = {
    "wifi": "over Wi-Fi",
    "cellular": "over LTE",
    "both": "over both",
    "none": "no answer came",
    _GATEWAY: "through the gateway",
}


def has_pair(run: "Recorded") -> bool:
    return all(name in run.policies for name in PAIR)


def draw(run: "Recorded", *, narrow: bool = False) -> "Figure":
    """Draw the first repeat of Linux as it is and of cedos with a gateway, a row per transfer.

    Args:
        narrow: put one panel above the other, for a telephone.

    The caller saves and closes the figure.
    """
    flows = {
        name: sorted(
            (flow for flow in run.flows if flow["policy"] == name and flow["repeat"] == 0),
            key=lambda flow: flow["number"],
        )
        for name in PAIR
    }
    end_s = max(
        run.duration_s,
        *(flow["started_s"] + flow["time_s"] for rows in flows.values() for flow in rows),
    )
    rows, columns = (2, 1) if narrow else (1, 2)
    figure, axes = plt.subplots(
        *(rows, columns),
        figsize=_NARROW if narrow else _WIDE,
        sharex=True,
        sharey=True,
        squeeze=False,
        layout="constrained",
    )
    for axis, name in zip(axes.flat, PAIR, strict=True):
        _panel(axis, flows[name], outages(run.capacity, run.duration_s))
        figures = run.summary["policies"][name]
        axis.set_title(
            f"{policies.title(name)}\nmean {figures['mean_s']:.2f} s, "
            f"{figures['cellular_mb']:.0f} MB over LTE",
            fontsize=10,
            loc="left",
        )
        axis.set_xlim(0, 1.02 * end_s)
    for axis in axes[-1]:
        axis.set_xlabel("seconds into the run")
    for row in axes:
        row[0].set_ylabel("transfers, in the order of their start")
    figure.legend(
        handles=_key(flows), loc="outside lower center", ncols=2 if narrow else 5, frameon=False
    )
    return figure


def outages(capacity: Sequence[Mapping[str, Any]], duration_s: float) -> list[tuple[float, float]]:
    """Return the spans of the run, s, in which Wi-Fi carries next to nothing."""
    spans: list[tuple[float, float]] = []
    for second in capacity:
        if second["network"] != "wifi" or second["rate_bps"] >= DEAD_BPS:
            continue
        begin_s, end_s = second["at_s"], min(second["at_s"] + 1.0, duration_s)
        if begin_s >= duration_s:
            continue
        if spans and spans[-1][1] >= begin_s:
            spans[-1] = (spans[-1][0], end_s)
        else:
            spans.append((begin_s, end_s))
    return spans


def _panel(
    axis: "Axes", flows: Sequence[Mapping[str, Any]], spans: Sequence[tuple[float, float]]
) -> None:
    for begin_s, end_s in spans:
        axis.axvspan(begin_s, end_s, color="#d62728", alpha=0.12, lw=0)
    if spans:
        longest = max(spans, key=lambda span: span[1] - span[0])
        # The first transfers are at the top, so the space below an outage's begin is free.
        axis.annotate(
            "Wi-Fi is dead",
            (longest[0], len(flows) - 1),
            xytext=(-4, 2),
            textcoords="offset points",
            ha="right",
            color="#a02020",
            fontsize=9,
        )
    for row, flow in enumerate(flows):
        begin_s, colour = flow["started_s"], _COLOURS[_way(flow)]
        lasts_s = max(flow["time_s"], _SHORTEST_S)
        axis.barh(row, lasts_s, left=begin_s, height=0.8, color=colour, lw=0)
        if flow["censored"]:
            axis.plot(begin_s + lasts_s, row, marker="x", color="#d62728", ms=5, zorder=3)
    axis.set_ylim(len(flows) - 0.3, -0.7)
    axis.set_yticks([])
    axis.spines[["top", "right"]].set_visible(False)


def _way(flow: Mapping[str, Any]) -> str:
    """Return the network of a transfer; those through the gateway share the session's networks."""
    proxied = flow["policy"] == PAIR[1] and flow["network"] == "none"
    return _GATEWAY if proxied else str(flow["network"])


def _key(flows: Mapping[str, Sequence[Mapping[str, Any]]]) -> list[Line2D]:
    every = [flow for rows in flows.values() for flow in rows]
    used = {_way(flow) for flow in every}
    key = [
        Line2D([], [], color=_COLOURS[way], lw=5, label=words)
        for way, words in _USED.items()
        if way in used
    ]
    if any(flow["censored"] for flow in every):
        key.append(Line2D([], [], color="#d62728", marker="x", ls="", label="not finished in time"))
    return key

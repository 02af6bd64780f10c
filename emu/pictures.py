"""The style of all pictures in `notebooks/`: vector output, readable at half the width of a page.

Colours are those of Okabe and Ito, which colour-blind readers tell apart; each series has a mark of its
own, too. A figure with an interval is a point with a line, and a few trials are points.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import matplotlib.pyplot as plt
import numpy as np
from cycler import cycler
from matplotlib.ticker import NullFormatter

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

BLUE, ORANGE, GREEN, RED = "#0072B2", "#E69F00", "#009E73", "#D55E00"
PURPLE, SKY, BLACK, GREY = "#CC79A7", "#56B4E9", "#000000", "#8C8C8C"

# The width of a picture. At half a page's width its letters are seven points high.
WIDTH_IN: Final = 5.2

# Names for people. A name without an entry is shown unchanged.
NAMES: Final = {
    "wifi": "Wi-Fi", "cellular": "LTE", "mptcp_wifi": "MPTCP, Wi-Fi first",
    "mptcp_cellular": "MPTCP, LTE first",
    "wifi-first": "Wi-Fi first (Linux)", "cellular-only": "LTE alone",
    "mptcp-wifi": "kernel MPTCP, Wi-Fi first", "mptcp-cellular": "kernel MPTCP, LTE first",
    "mptcp-handover": "MPTCP's handover mode", "cedos": "cedos, told nothing",
    "cedos-gateway": "cedos with a gateway",
    "cedos-told": "cedos, told the rates", "cedos-told-start": "told, without moves",
    "max_s": "Max(S)", "max_s_per_e": "Max(S/E)", "max_1_per_e": "Max(1/E)", "oracle": "oracle",
    "svr": "SVR", "forest": "forest", "boosting": "boosting", "trees": "averaged trees (ours)",
    "tree": "one tree (the paper)", "last-rate": "size / last rate",
    "never": "never", "size-limit": "size limit", "wifi-only": "Wi-Fi only", "always": "always",
    "imp-free": "IMP, no budget", "clairvoyant": "knows the future",
    "imp-energy-pacer": "IMP, energy budget", "imp-data-pacer": "IMP, data budget",
    "imp-both-pacer": "IMP, both budgets",
    "imp-energy-odyssey": "energy, Odyssey", "imp-data-odyssey": "data, Odyssey",
    "imp-both-odyssey": "both, Odyssey",
    "imp-energy-pacer-one-class": "energy, one class", "imp-data-pacer-one-class": "data, one class",
    "imp-both-pacer-one-class": "both, one class",
    "wifi-preferred": "Wi-Fi if there", "local-only": "device only",
    "remote-preferred": "server if Wi-Fi", "adaptive": "adaptive", "brute-force": "brute force (ours)",
    "brute-force, as published": "brute force, as published", "error-bounds": "error bounds",
    "bayesian": "Bayesian", "session": "session (ours)", "tcp-restart": "TCP, begins again",
    "tcp-range": "curl with ranges", "bundles": "bundle protocol", "tcp-cellular": "TCP over 3G",
    "lowest-latency": "lowest latency", "highest-bandwidth": "highest bandwidth",
    "aggregate": "ideal sum", "unlabelled": "ours, no labels",
    "past1_bps": "rate of the last 1 s", "past5_bps": "rate of the last 5 s",
    "past10_bps": "rate of the last 10 s", "udp_bps": "UDP rate", "udp_min_bps": "UDP rate, least",
    "udp_max_bps": "UDP rate, most", "udp_mdev_bps": "UDP rate, deviation", "udp_loss": "UDP loss",
    "udp_gap_mean_s": "UDP gap, mean", "udp_gap_p50_s": "UDP gap, median",
    "udp_gap_p90_s": "UDP gap, 90 %", "rssi_dbm": "RSSI", "link_bps": "link speed",
    "chan_util": "channel in use", "available": "available", "ping_loss": "ping loss",
    "rtt_s": "ping RTT", "rtt_min_s": "ping RTT, least", "dns_s": "DNS time",
    "speed_mps": "speed of walking", "rsrp_dbm": "RSRP", "rsrq_db": "RSRQ", "sinr_db": "SINR",
    "cqi": "CQI",
    "d2sched": "D2Sched as printed", "chance": "ours", "no-delay": "no delay",
    "swtc": "SWTC", "lowest-rtt": "lowest RTT first", "round-robin": "round robin",
    "kernel-mptcp": "kernel MPTCP",
    "cbsp": "CBSP", "high-bandwidth-first": "high bandwidth first",
    "long-encounter-first": "long encounter first", "least-cost": "least cost (ours)",
    "eapc": "EAPC", "ods": "ODS", "fmtcp": "FMTCP", "cwa-mptcp": "CWA-MPTCP", "co-mptcp": "Co-MPTCP",
}  # fmt: skip

COLOURS: Final = {
    "wifi": BLUE, "cellular": ORANGE, "mptcp_wifi": GREEN, "mptcp_cellular": PURPLE,
    "wifi-first": BLUE, "cellular-only": ORANGE, "mptcp-wifi": GREEN, "mptcp-cellular": PURPLE,
    "cedos": BLACK, "cedos-told": GREY, "cedos-told-start": SKY, "mptcp-handover": GREEN,
    "wifi-preferred": BLUE, "local-only": ORANGE, "remote-preferred": BLUE, "adaptive": GREY,
    "brute-force": BLACK, "brute-force, as published": SKY, "error-bounds": RED, "bayesian": GREEN,
    "swtc": BLACK, "lowest-rtt": ORANGE, "round-robin": BLUE, "kernel-mptcp": GREEN,
    "d2sched": ORANGE, "chance": BLACK, "no-delay": GREY, "clairvoyant": GREEN,
}  # fmt: skip
_CYCLE: Final = (BLACK, BLUE, ORANGE, GREEN, RED, PURPLE, SKY, GREY)
_MARKS: Final = "osD^vPX*"
_ROW_IN: Final = 0.25


@dataclass(frozen=True, slots=True)
class Point:
    """A figure with its 95 % interval, or with the trials that it is the mean of."""

    value: float
    low: float | None = None
    high: float | None = None
    trials: Sequence[float] = ()


def use() -> None:
    """Set the style; in a notebook pictures become vectors."""
    plt.rcParams.update(
        {
            "axes.grid": True,
            "axes.prop_cycle": cycler(color=_CYCLE),
            "axes.spines.right": False,
            "axes.spines.top": False,
            "axes.titlesize": 10,
            "figure.constrained_layout.use": True,
            "figure.dpi": 80,
            "font.size": 10,
            "grid.alpha": 0.25,
            "legend.fontsize": 9,
            "legend.frameon": False,
            "svg.fonttype": "none",
            "svg.hashsalt": "cedos",
        }
    )
    from matplotlib_inline.backend_inline import set_matplotlib_formats  # noqa: PLC0415

    set_matplotlib_formats("svg", metadata={"Date": None})  # type: ignore[no-untyped-call]


def name(key: str) -> str:
    return NAMES.get(key, key)


def colour(key: str, number: int = 0) -> str:
    """Return the colour that a series has in all pictures, else the next one of the cycle."""
    return COLOURS.get(key, _CYCLE[number % len(_CYCLE)])


def axes(
    rows: int = 1, columns: int = 1, height_in: float = 3.0, **options: Any
) -> tuple[Any, Any]:
    """Return a figure and its axes, side by side at the usual width each."""
    width = WIDTH_IN if columns == 1 else 3.6 * columns
    return plt.subplots(rows, columns, figsize=(width, height_in), **options)


def point(found: Mapping[str, Any], key: str, few: int = 8) -> Point:
    """Return a figure of a result file: its trials where they are few, else its interval."""
    trials = found.get(f"{key}_trials") or found.get(f"trials_{key}") or ()
    if 0 < len(trials) <= few:
        return Point(found[key], trials=trials)
    low, high = found.get(f"{key}_ci95", (None, None))
    return Point(found[key], low, high)


def dots(
    axis: "Axes", groups: Sequence[str], series: Mapping[str, Sequence[Point | None]], unit: str
) -> None:
    """Draw a row a group, in each a mark a series: a value with its interval or its trials.

    `series`: for each group a point, or None where there is none.
    """
    step = 0.72 / max(len(series), 1)
    for number, (key, points) in enumerate(series.items()):
        shade = colour(key, number)
        offset = (number - (len(series) - 1) / 2) * step
        there = [(row + offset, each) for row, each in enumerate(points) if each is not None]
        for at, each in there:
            if each.low is not None and each.high is not None:
                axis.hlines(at, each.low, each.high, color=shade, lw=1.6)
            axis.plot(each.trials, [at] * len(each.trials), ".", color=shade, alpha=0.55, ms=5)
        axis.plot(
            [each.value for _, each in there], [at for at, _ in there], _MARKS[number % len(_MARKS)],
            color=shade, ms=6.5, mec="white", mew=0.5, label=name(key), zorder=3,
        )  # fmt: skip
    axis.set_yticks(range(len(groups)), [name(each) for each in groups])
    axis.set_ylim(len(groups) - 0.5, -0.5)
    axis.grid(visible=False, axis="y")
    for line in range(1, len(groups)):
        axis.axhline(line - 0.5, color=GREY, lw=0.4, alpha=0.5)
    axis.set_xlabel(unit)


def height_in(groups: int, series: int = 1) -> float:
    """Return the height of a picture with so many rows of marks, inches."""
    return 0.95 + _ROW_IN * groups * max(1.0, 0.62 * series)


def plain_log(axis: "Axes", *ticks: float) -> None:
    """Make the lower axis logarithmic, with ticks in plain numbers."""
    axis.set_xscale("log")
    axis.set_xticks(ticks, [f"{each:g}" for each in ticks])
    axis.xaxis.set_minor_formatter(NullFormatter())


def key_below(figure: "Figure", axis: "Axes", columns: int = 2) -> None:
    """Put the key below the picture, where it covers nothing."""
    handles, labels = axis.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=columns)


def shares(values: Sequence[float]) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Return what a cumulative distribution draws: values in order, and the share up to each."""
    ordered = np.sort(np.asarray(values, dtype=float))
    return ordered, np.arange(1, len(ordered) + 1) / len(ordered)

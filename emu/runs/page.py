"""The page of one or several runs: figures with their intervals, and the timeline of each."""

import base64
import html
import io
import json
from collections.abc import Container, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from cedos.errors import DataSetError
from emu import console, policies
from emu.places.stats import DEAD_BPS
from emu.runs import runs, table
from emu.runs.runs import Recorded
from emu.runs.table import caption, columns, disturbed, is_best

COLOURS = {
    "wifi": "#1f77b4",
    "cellular": "#ff7f0e",
    "both": "#7b3fa0",
    "none": "#999999",
    "gateway": "#2ca02c",
    "page or video": "#8c564b",
}
_INTERFACES = {"wlan0": "wifi", "lte0": "cellular"}
_BROWSED = "page or video"
_BIN_S = 0.5
PAIR = ("wifi-first", "cedos-gateway")
# The least drawn duration. A shorter one would be invisible.
_SHORTEST_S = 0.12
_USED = {
    "wifi": "over Wi-Fi",
    "cellular": "over LTE",
    "both": "over both",
    "none": "network not known",
    "gateway": "through the gateway",
    _BROWSED: "page (to its load) or video",
}
_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; margin: 1rem auto; max-width: 72rem; padding: 0 1rem }
h1 { font-size: 1.4rem; line-height: 1.25 }
.wide { overflow-x: auto }
table { border-collapse: collapse; margin: 1rem 0 }
th, td { padding: .3rem .6rem; text-align: right; border-bottom: 1px solid #ddd }
th:first-child, td:first-child { text-align: left }
td small { color: #666; display: block; white-space: nowrap }
.best { font-weight: 600 }
.said { font-size: 1.1rem; max-width: 46rem }
.caution { background: #fff3cd; padding: .5rem 1rem; border-radius: .3rem }
img { max-width: 100%; height: auto }
.wide img { min-width: 44rem }
details { margin: 1rem 0 }
pre { overflow-x: auto; background: #f6f6f6; padding: 1rem }
"""


mpl.use("Agg")


def draw_timeline(run: Recorded, repeat: int = 0) -> Figure:
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
    ways = {"wifi", "cellular"}  # whose rates are lines
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
        bars = [*map(_of_flow, flows), *map(_of_browsing, browsed)]
        _transfers(below, bars)
        ways.update(bar.network for bar in bars)
        # A dotted line marks a change of the network.
        for switch in switches:
            for axis in (above, below):
                axis.axvline(switch["at_s"], color=COLOURS[switch["to"]], lw=0.8, ls=":", zorder=1)
        above.set_title(
            _headline(policies.title(name), run.summary["policies"][name]),
            fontsize=9,
            loc="left",
            parse_math=False,
        )
    axes[-1][0].set_xlabel("seconds into the run")
    axes[-1][0].set_xlim(0, duration_s)
    figure.legend(
        handles=_timeline_key(ways),
        loc="outside lower center",
        ncols=4,
        fontsize=8,
        frameon=False,
    )
    # (A stranger's names are no formulas.)
    figure.suptitle(run.title, fontsize=11, parse_math=False)
    return figure


def _headline(name: str, figures: Mapping[str, Any]) -> str:
    if not figures["n"]:
        return f"{name}:  no transfers, {figures['energy_j']:.0f} J"
    return (
        f"{name}:  mean {figures['mean_s']:.2f} s, p95 {figures['p95_s']:.2f} s, "
        f"{figures['cellular_mb']:.1f} MB over LTE, {figures['energy_j']:.0f} J"
    )


def _rates(
    axis: Axes,
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
    return _Bar(begin_s, begin_s + flow["time_s"], _way(flow), flow["censored"])


def _of_browsing(each: Mapping[str, Any]) -> _Bar:
    """Return the bar of a page until its load event, or of a video while it is watched."""
    lasts_s = each["load_s"] if "load_s" in each else each["watched_s"] + each["stall_s"]
    return _Bar(each["started_s"], each["started_s"] + lasts_s, _BROWSED, each["censored"])


def _transfers(axis: Axes, bars: Sequence[_Bar]) -> None:
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


def _timeline_key(ways: Container[str]) -> list[Artist]:
    return [
        Patch(color=COLOURS["wifi"], alpha=0.2, label="Wi-Fi could carry"),
        Patch(color=COLOURS["cellular"], alpha=0.2, label="LTE could carry"),
        *_ways_key(ways, width=2),
        Line2D([], [], color="#d62728", marker="x", ls="", label="not finished in time"),
        Line2D([], [], color="#555555", lw=0.8, ls=":", label="new connections go elsewhere"),
    ]


def _ways_key(ways: Container[str], *, width: int) -> list[Line2D]:
    return [
        Line2D([], [], color=COLOURS[way], lw=width, label=words)
        for way, words in _USED.items()
        if way in ways
    ]


def has_pair(run: Recorded) -> bool:
    """Return whether both policies carried transfers; pages and videos are not drawn by transfer."""
    return set(PAIR) <= {flow["policy"] for flow in run.flows}


def draw(run: Recorded) -> Figure:
    """Draw the first repeat of Linux as it is and of cedos with a gateway, a row per transfer.

    The caller saves and closes the figure.
    """
    flows = {
        name: sorted(
            (flow for flow in run.flows if flow["policy"] == name and flow["repeat"] == 0),
            key=lambda flow: flow["number"],
        )
        for name in PAIR
    }
    # The axis ends with the last transfer, which may outlive the load.
    end_s = max(
        run.duration_s,
        *(flow["started_s"] + flow["time_s"] for rows in flows.values() for flow in rows),
    )
    figure, axes = plt.subplots(
        *(1, 2), figsize=(10.5, 5.6), sharex=True, sharey=True, squeeze=False, layout="constrained"
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
    figure.legend(handles=_key(flows), loc="outside lower center", ncols=5, frameon=False)
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
    axis: Axes, flows: Sequence[Mapping[str, Any]], spans: Sequence[tuple[float, float]]
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
        begin_s, colour = flow["started_s"], COLOURS[_way(flow)]
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
    return "gateway" if proxied else str(flow["network"])


def _key(flows: Mapping[str, Sequence[Mapping[str, Any]]]) -> list[Line2D]:
    every = [flow for rows in flows.values() for flow in rows]
    key = _ways_key({_way(flow) for flow in every}, width=5)
    if any(flow["censored"] for flow in every):
        key.append(Line2D([], [], color="#d62728", marker="x", ls="", label="not finished in time"))
    return key


def write(directories: Sequence[Path], out: Path | None = None) -> Path:
    """Draw the page of the runs into `out`, by default `report.html` of the first folder.

    The page holds its pictures. Each run's pictures also go into its own folder (`.svg`).
    DataSetError: a folder that is no finished run, or there is no room for a picture or the page.
    """
    page = out or directories[0] / "report.html"
    try:
        return _write(directories, page)
    except OSError as error:
        names = " ".join(map(str, directories))
        raise DataSetError(
            f"{page} is not drawn: {error.strerror or error}; then: cedos-emu report {names}"
            + (f" --out {out}" if out else "")
        ) from error


def _write(directories: Sequence[Path], page: Path) -> Path:
    sections = list(map(_section, map(runs.read, directories)))
    titles = " · ".join(runs.read(directory).title for directory in directories)
    console.write(
        page,
        "<!doctype html>\n<html lang=en><meta charset=utf-8>"
        "<meta name=viewport content='width=device-width'>"
        f"<title>{html.escape(titles)}</title><style>{_STYLE}</style>\n"
        + "\n".join(sections)
        + "\n</html>\n",
    )
    return page


def _section(run: runs.Recorded) -> str:
    scenario = run.scenario
    parts = [f"<h1>{html.escape(run.title)}</h1>"]
    if run.scenario.engine == "simulator":
        parts.append(
            "<p class=caption>The transfers of this run are simulated: computed, not measured.</p>"
        )
    if run.environment["synthetic"]:
        parts.append(
            "<p class=caution>The traces of this place are synthetic: generated, not measured.</p>"
        )
    if has_pair(run):
        words = "each transfer, Linux as it is and cedos with a gateway"
        parts.append(_picture(draw(run), run.directory / "comparison.svg", words))
    said = " ".join(table.sentences(run))
    if said:
        parts.append(f"<p class=said>{html.escape(said)}</p>")
    parts.append(f"<div class=wide>{_table(run)}</div>")
    parts.append(
        f"<p>{run.duration_s:g} s from second {scenario.start_s:g}, "
        f"{scenario.repeats} repetition{'s' * (scenario.repeats != 1)}. {html.escape(caption(run))}"
        " Bold: the best of its column; below: its 95 % interval.</p>"
    )
    parts += [f"<p class=caution>{html.escape(line)}</p>" for line in disturbed(run)]
    parts += [
        _picture(draw_timeline(run, repeat), run.directory / f"timeline-{repeat}.svg", "timeline")
        for repeat in range(scenario.repeats)
    ]
    facts = html.escape(json.dumps(run.environment, indent=2))
    parts.append(f"<details><summary>environment</summary><pre>{facts}</pre></details>")
    return "\n".join(parts)


def _picture(figure: Figure, file: Path, words: str) -> str:
    """Save a picture, and return it as a part of the page."""
    drawn = io.BytesIO()
    figure.savefig(drawn, format="svg")
    plt.close(figure)
    console.write(file, drawn.getvalue(), "run folder")
    data = base64.b64encode(drawn.getvalue()).decode()
    return f"<div class=wide><img src='data:image/svg+xml;base64,{data}' alt='{words}'></div>"


def _table(run: runs.Recorded) -> str:
    shown = columns(run)
    head = "".join(f"<th>{html.escape(heading)}</th>" for _, heading, _ in shown)
    rows = [f"<tr><th>policy</th>{head}</tr>"]
    for name, figures in run.summary["policies"].items():
        cells = []
        for key, _, form in shown:
            best = " class=best" if is_best(run, key, figures[key]) else ""
            interval = figures.get(f"{key}_ci95")
            small = (
                f"<small>{form.format(interval[0])} to {form.format(interval[1])}</small>"
                if interval
                else ""
            )
            cells.append(f"<td{best}>{form.format(figures[key])}{small}</td>")
        rows.append(f"<tr><td>{html.escape(policies.title(name))}</td>{''.join(cells)}</tr>")
    return "<table>" + "\n".join(rows) + "</table>"

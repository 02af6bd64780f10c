"""The picture of a place: both networks' rates over time, their outages, and their indicators."""

import math
from collections.abc import Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from emu.places.places import AccessTrace, Place
from emu.places.stats import OUTAGE_BPS, rates_bps, runs

COLOURS = {"wifi": "#1f77b4", "cellular": "#ff7f0e"}
NAMES = {"wifi": "Wi-Fi", "cellular": "cellular"}
# Panels below the rates: axis label, and (network, column, legend, line style) of what it may show.
_PANELS = (
    (
        "signal (dBm)",
        (("wifi", "rssi_dbm", "Wi-Fi RSSI", "-"), ("cellular", "rsrp_dbm", "RSRP", "-")),
    ),
    (
        "quality (dB; CQI)",
        (
            ("cellular", "sinr_db", "SINR", "-"),
            ("cellular", "rsrq_db", "RSRQ", "--"),
            ("cellular", "cqi", "CQI", ":"),
        ),
    ),
    ("Wi-Fi PHY (Mbit/s)", (("wifi", "link_mbps", "PHY rate", "-"),)),
    (
        "speed (m/s)",
        (("wifi", "speed_mps", "Wi-Fi", "-"), ("cellular", "speed_mps", "cell.", "--")),
    ),
    ("RTT (ms)", (("wifi", "rtt_ms", "Wi-Fi", "."), ("cellular", "rtt_ms", "cellular", "."))),
)


def draw(place: Place, path: Path) -> None:
    """Draw a place into an image file, whose ending decides on the format.

    Raises:
        PlaceError, TraceError: the place's files cannot be read.
        OSError, ValueError: the image cannot be written, or its ending is no known format.
    """
    panels = [
        (label, shown)
        for label, lines in _PANELS
        if (shown := [line for line in lines if place.networks[line[0]].series.known(line[1])])
    ]
    seconds = max(1, place.common_s)
    heights = [3.0, 0.5] + [1.2] * len(panels)
    figure = Figure(figsize=(11.0, 1.6 * sum(heights) ** 0.9), layout="constrained")
    axes = figure.subplots(len(heights), 1, sharex=True, gridspec_kw={"height_ratios": heights})
    _rates(axes[0], place, seconds)
    _outages(axes[1], place, seconds)
    for axis, (label, lines) in zip(axes[2:], panels, strict=True):
        for network, column, legend, style in lines:
            _indicator(axis, place.networks[network], column, seconds, style, legend, network)
        axis.set_ylabel(label, fontsize=8)
        axis.legend(loc="best", fontsize=7, ncols=3)
        axis.grid(alpha=0.3)
    axes[-1].set_xlabel("seconds")
    axes[-1].set_xlim(0, seconds)
    origin = "SYNTHETIC" if place.synthetic else "measured"
    if not place.origin_said:
        origin = place.origin
    elif not place.synthetic:
        origin += " simultaneously" if place.simultaneous else ", networks paired afterwards"
    figure.suptitle(f"{place.name} ({place.scenario or 'no scenario'}; {origin})\n{place.note}")
    figure.savefig(path, dpi=110)


def _rates(axis: Axes, place: Place, seconds: int) -> None:
    for name, net in place.networks.items():
        rates = rates_bps(net.down.repeated(seconds), seconds) / 1e6
        rtt = f"RTT {net.rtt_s * 1e3:.0f} ms {net.rtt_source}"
        label = f"{NAMES[name]}: mean {rates.mean():.1f} Mbit/s, {rtt}"
        axis.stairs(
            rates, range(seconds + 1), baseline=None, color=COLOURS[name], label=label, lw=1.3
        )
        if net.up_path != net.down_path:
            up = rates_bps(net.up.repeated(seconds), seconds) / 1e6
            axis.stairs(
                up,
                range(seconds + 1),
                baseline=None,
                color=COLOURS[name],
                label=f"{NAMES[name]} up: mean {up.mean():.1f} Mbit/s",
                lw=0.8,
                alpha=0.6,
                ls=":",
            )
    axis.set_ylabel("rate (Mbit/s)")
    axis.set_ylim(bottom=0)
    axis.legend(loc="upper right", fontsize=8)
    axis.grid(alpha=0.3)


def _outages(axis: Axes, place: Place, seconds: int) -> None:
    for row, (name, net) in enumerate(place.networks.items()):
        out = runs(rates_bps(net.down.repeated(seconds), seconds) < OUTAGE_BPS)
        axis.broken_barh(list(out), (0.6 - row, 0.8), color=COLOURS[name])
    axis.set_yticks([1, 0], [f"{NAMES[name]} out" for name in place.networks], fontsize=7)
    axis.set_ylim(-0.6, 1.6)


def _indicator(
    axis: Axes,
    net: AccessTrace,
    column: str,
    seconds: int,
    style: str,
    legend: str,
    network: str,
) -> None:
    values: Sequence[float] = net.series.column(column)[:seconds]
    at_s = [second + 0.5 for second in range(len(values))]
    # A value between two unknown ones makes no line: each gets a small mark as well.
    lonely = [
        value
        if all(
            not 0 <= near < len(values) or math.isnan(values[near])
            for near in (second - 1, second + 1)
        )
        else math.nan
        for second, value in enumerate(values)
    ]
    axis.plot(at_s, values, style, color=COLOURS[network], label=legend, lw=1.0, ms=4)
    axis.plot(at_s, lonely, ".", color=COLOURS[network], ms=4)

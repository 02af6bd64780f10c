"""The figures of a run as a table.

The verdict of a run on cedos with a gateway, in plain sentences with intervals.
"""

from pathlib import Path
from typing import Any

import numpy as np

from cedos.commands.console import render
from emu import policies
from emu.runs import runs
from emu.runs.runs import Recorded
from emu.statistics import measured

# Key of the summary, heading, format.
COLUMNS = (
    ("mean_s", "mean s", "{:.2f}"),
    ("median_s", "median s", "{:.2f}"),
    ("p95_s", "p95 s", "{:.2f}"),
    ("energy_j", "joules", "{:.0f}"),
    ("cellular_mb", "LTE MB", "{:.1f}"),
    ("regret_mean", "regret", "{:.2f}"),
    ("censored", "unfinished", "{:d}"),
)
# The same for runs with pages or videos.
BROWSING = (
    ("page_median_s", "page median s", "{:.2f}"),
    ("page_p95_s", "page p95 s", "{:.2f}"),
    ("page_transfer_median_s", "page transfer s", "{:.2f}"),
    ("video_transfer_s", "segment s", "{:.2f}"),
    ("video_start_s", "video starts after s", "{:.2f}"),
    ("video_stall_s", "stands still s", "{:.2f}"),
)
_GATEWAY, _TODAY = "cedos-gateway", "wifi-first"
_KERNEL = ("mptcp-wifi", "mptcp-cellular")


def sentences(run: Recorded) -> list[str]:
    """Compare the gateway with kernel MPTCP and today's Linux over the transfers of a run.

    Return nothing if one of these was not run, or carried no transfers.

    Of kernel MPTCP's two orders, the one that was faster in this run is compared, although its user
    could not have known which that is. The interval is a paired bootstrap over transfers.
    """
    found = run.summary["policies"]
    kernel = [name for name in _KERNEL if name in found]
    carried = {flow["policy"] for flow in run.flows}
    if not kernel or not {_GATEWAY, _TODAY, *kernel} <= carried & found.keys():
        return []
    rival = min(kernel, key=lambda name: float(found[name]["mean_s"]))
    said = [
        f"With a gateway the average transfer took {_seconds(found[_GATEWAY])} and used"
        f" {_cost(found[_GATEWAY])}.",
        f"{policies.title(rival)[0].upper()}{policies.title(rival)[1:]}, took"
        f" {_seconds(found[rival])} and used {_cost(found[rival])}.",
        f"{policies.title(_TODAY)} took {_seconds(found[_TODAY])} and used {_cost(found[_TODAY])}.",
    ]
    ratio, low, high = _over(run, _GATEWAY, rival)
    noise = max(high / ratio, ratio / low) - 1
    said.append(
        f"{found[_TODAY]['n']} transfers each; the gateway's time is {ratio:.2f} of kernel MPTCP's"
        f" (95 % interval {low:.2f} to {high:.2f}); differences under {100 * noise:.0f} % are noise here."
    )
    if low <= 1.0 <= high:
        said.append(
            "The difference between the gateway and kernel MPTCP is within noise in this run."
        )
    return said


def _seconds(figures: dict[str, Any]) -> str:
    unfinished = f" ({figures['censored']} did not end in time)" if figures["censored"] else ""
    return f"{figures['mean_s']:.2f} s{unfinished}"


def _cost(figures: dict[str, Any]) -> str:
    return f"{figures['cellular_mb']:.0f} MB of LTE data and {figures['energy_j']:.0f} J"


def _over(run: Recorded, mine: str, theirs: str) -> tuple[float, float, float]:
    """Return the ratio of both policies' mean times over the same transfers, and its interval."""
    mine_s, theirs_s = runs.times_s(run, mine), runs.times_s(run, theirs)
    found = measured(
        {"over": lambda rows: float(mine_s[rows].mean() / theirs_s[rows].mean())},
        len(mine_s),
        np.random.default_rng(run.scenario.seed),
    )
    low, high = found["over_ci95"]
    return found["over"], low, high


def print_table(directory: Path) -> None:
    """Print the figures of a run."""
    run = runs.read(directory)
    rows = [
        (policies.title(name), *(form.format(figures[key]) for key, _, form in columns(run)))
        for name, figures in run.summary["policies"].items()
    ]
    header = ("policy", *(heading for _, heading, _ in columns(run)))
    render.show([run.title, *render.table(header, rows)])
    render.show([*render.wrap(caption(run)), *disturbed(run), *sentences(run)])


def disturbed(run: runs.Recorded) -> list[str]:
    """Return the disturbances of the policies' runs from outside, a line each."""
    return [
        f"DISTURBED, {name}: {why}"
        for name, figures in run.summary["policies"].items()
        for why in figures.get("disturbed", ())
    ]


def columns(run: runs.Recorded) -> list[tuple[str, str, str]]:
    known = next(iter(run.summary["policies"].values()))
    return [column for column in (*COLUMNS, *BROWSING) if column[0] in known]


def is_best(run: runs.Recorded, key: str, value: Any) -> bool:
    values = [figures[key] for figures in run.summary["policies"].values()]
    return bool(value == min(values))


def caption(run: runs.Recorded) -> str:
    count = next(iter(run.summary["policies"].values()))["n"]
    if not count:
        return (
            f"No transfer was due within these {run.duration_s:g} s: a higher per_minute, or a longer"
            " duration_s, would give some. Joules by Delphi's power figures, tails included."
        )
    return (
        f"{count} transfers a policy. Regret: how much longer each took than under the fastest of"
        " these policies, on average (1: twice as long). Joules by Delphi's power figures, with tails."
    )

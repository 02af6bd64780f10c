"""The table of a run on the terminal."""

import json
from pathlib import Path
from typing import Any

from rich.table import Table

from emu import policies
from emu.console.output import console, show
from emu.lab.report import verdict
from emu.lab.runs import runs

COLUMNS = (
    ("mean_s", "mean s", "{:.2f}"),
    ("median_s", "median s", "{:.2f}"),
    ("p95_s", "p95 s", "{:.2f}"),
    ("energy_j", "joules", "{:.0f}"),
    ("cellular_mb", "LTE MB", "{:.1f}"),
    ("regret_mean", "regret", "{:.2f}"),
    ("censored", "unfinished", "{:d}"),
)
"""Key of the summary, heading, format."""

BROWSING = (
    ("page_median_s", "page median s", "{:.2f}"),
    ("page_p95_s", "page p95 s", "{:.2f}"),
    ("page_transfer_median_s", "page transfer s", "{:.2f}"),
    ("video_transfer_s", "segment s", "{:.2f}"),
    ("video_start_s", "video starts after s", "{:.2f}"),
    ("video_stall_s", "stands still s", "{:.2f}"),
)
"""The same for runs with pages or videos."""

TOGETHER = (
    ("transfer_mean_s", "mean s", "{:.2f}"),
    ("transfer_median_s", "median s", "{:.2f}"),
    ("reduction", "less than Wi-Fi first", "{:.0%}"),
    ("reduction_by_place", "the same, median place", "{:.0%}"),
    ("max_s", "S / best", "{:.2f}"),
    ("max_s_per_e", "(S/E) / best", "{:.2f}"),
    ("cellular_mean_mb", "LTE MB", "{:.1f}"),
    ("censored", "unfinished", "{:d}"),
)
"""The same for several places together."""


def print_table(directory: Path) -> None:
    """Prints the figures of a run; the best of each column is bold."""
    run = runs.read(directory)
    table = Table(title=run.title, caption=caption(run), caption_justify="left")
    table.add_column("policy")
    for _, heading, _ in columns(run):
        table.add_column(heading, justify="right")
    for name, figures in run.summary["policies"].items():
        cells = [
            f"[bold]{form.format(figures[key])}[/]"
            if is_best(run, key, figures[key])
            else form.format(figures[key])
            for key, _, form in columns(run)
        ]
        table.add_row(policies.title(name), *cells)
    show(table)
    for line in (*disturbed(run), *verdict.sentences(run)):
        console().print(line, markup=False, highlight=False)


def print_places(file: Path) -> None:
    """Prints what several places say together (`emu.lab.runs.combined`)."""
    summary = json.loads(file.read_text())
    table = Table(title=f"{summary['scenario']}: {len(summary['places'])} places together")
    table.add_column("policy")
    for _, heading, _ in TOGETHER:
        table.add_column(heading, justify="right")
    for name, figures in summary["policies"].items():
        table.add_row(
            policies.title(name),
            *(form.format(figures[key]) if key in figures else "" for key, _, form in TOGETHER),
        )
    show(table)


def disturbed(run: runs.Recorded) -> list[str]:
    """What disturbed the policies' runs from outside, a line each."""
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

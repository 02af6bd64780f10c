"""The table of a run on the terminal."""

from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from emu.runs import runs

COLUMNS = (
    ("mean_s", "mean s", "{:.2f}"),
    ("median_s", "median s", "{:.2f}"),
    ("p95_s", "p95 s", "{:.2f}"),
    ("mean_mbps", "Mbit/s", "{:.1f}"),
    ("energy_j", "joules", "{:.0f}"),
    ("cellular_mb", "cellular MB", "{:.1f}"),
    ("oracle_match", "as the oracle", "{:.0%}"),
    ("regret_mean", "regret", "{:.2f}"),
    ("censored", "unfinished", "{:d}"),
)
"""Key of the summary, heading, format."""


def print_table(directory: Path) -> None:
    """Prints the figures of a run; the best of each column is bold."""
    run = runs.read(directory)
    table = Table(title=run.title, caption=caption(run), caption_justify="left")
    table.add_column("policy")
    for _, heading, _ in COLUMNS:
        table.add_column(heading, justify="right")
    for name, figures in run.summary["policies"].items():
        cells = [
            f"[bold]{form.format(figures[key])}[/]"
            if is_best(run, key, figures[key])
            else form.format(figures[key])
            for key, _, form in COLUMNS
        ]
        table.add_row(name, *cells)
    console = Console()
    if not console.is_terminal:
        console.width = 120
    console.print(table)


def is_best(run: runs.Recorded, key: str, value: Any) -> bool:
    """Whether no policy of the run does better in this figure."""
    values = [figures[key] for figures in run.summary["policies"].values()]
    best = max(values) if key in ("mean_mbps", "oracle_match") else min(values)
    return bool(value == best)


def caption(run: runs.Recorded) -> str:
    """What the figures mean, in one sentence or two."""
    count = next(iter(run.summary["policies"].values()))["n"]
    return (
        f"{count} transfers a policy. Oracle: the fastest of these policies for each transfer; "
        "'as the oracle': within 10 % of it. Joules by Delphi's power figures, tails included."
    )

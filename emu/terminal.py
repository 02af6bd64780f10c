"""Output on the terminal: tables that keep their digits, and progress bars."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol

from rich.console import Console
from rich.measure import Measurement
from rich.progress import (
    BarColumn,
    Progress,
    SpinnerColumn,
    TaskProgressColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Table
from rich.text import Text

from cedos.plain_text import plain

# The columns if there is no terminal. With rich's 80 our tables would lose figures.
_WIDTH = 120
_WIDEST = 500


class PlainConsole(Console):
    """A console on which text from elsewhere, as the names of a stranger's run, moves no cursor."""

    def render_str(self, text: str, **options: Any) -> Text:
        return super().render_str("\n".join(map(plain, text.split("\n"))), **options)


def console() -> Console:
    """Return a console on stdout, as wide as its terminal."""
    found = PlainConsole()
    if not found.is_terminal:
        found.width = _WIDTH
    return found


def show(table: Table) -> None:
    """Print a table; where there is no terminal, as wide as its headings need."""
    found = console()
    if not found.is_terminal:
        wide = found.options.update(max_width=_WIDEST, width=_WIDEST)
        found.width = max(_WIDTH, Measurement.get(found, wide, table).maximum)
    found.print(table)


class Report(Protocol):
    """Tells how far the work is: `share` of it from 0 to 1, and what is being done now."""

    def __call__(self, share: float, what: str) -> None:
        """Move the bar."""


@contextmanager
def bar(title: str) -> Iterator[Report]:
    """Show a progress bar on stderr, or on no terminal a line for each further tenth."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield _lines(title)
        return
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        TaskProgressColumn(),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console) as progress:
        task = progress.add_task(title, total=1.0)

        def report(share: float, what: str) -> None:
            progress.update(task, completed=share, description=plain(f"{title}: {what}"))

        yield report


def _lines(title: str) -> Report:
    tenth = -1

    def report(share: float, what: str) -> None:
        nonlocal tenth
        if int(share * 10) > tenth:
            tenth = int(share * 10)
            print(plain(f"{title}: {share:4.0%} {what}"), file=sys.stderr, flush=True)

    return report

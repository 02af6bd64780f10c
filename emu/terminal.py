"""Progress bars on the terminal."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from rich.console import Console
from rich.progress import (
    BarColumn,
    Progress,
    SpinnerColumn,
    TaskProgressColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from cedos.plain_text import plain


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

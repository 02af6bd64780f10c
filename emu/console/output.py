"""Standard output for people's tables, which keep their digits where it goes into a file or a pipe."""

from rich.console import Console
from rich.measure import Measurement
from rich.table import Table

_WIDTH = 120
"""Columns where there is no terminal to ask: rich's 80 cut our tables, and with them their figures."""
_WIDEST = 500


def console() -> Console:
    """Return a console on stdout, as wide as its terminal."""
    found = Console()
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

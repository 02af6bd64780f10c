"""Standard output for people's tables, which keep their digits where it goes into a file or a pipe."""

from rich.console import Console

_WIDTH = 120
"""Columns where there is no terminal to ask: rich's 80 cut our tables, and with them their figures."""


def console() -> Console:
    """A console on stdout, as wide as its terminal."""
    found = Console()
    if not found.is_terminal:
        found.width = _WIDTH
    return found

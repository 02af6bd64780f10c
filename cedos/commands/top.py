"""`cedos top`: the status, refreshed."""

import itertools
import shutil
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress

import click

from cedos.api.client import ControlClient
from cedos.api.messages import StatusMessage
from cedos.commands import status
from cedos.commands.console import render
from cedos.commands.console.manual import SOCKET, Manual
from cedos.config.directories import directories
from cedos.errors import DaemonUnreachableError

# ECMA-48 and xterm: other screen without cursor; back; home; clear the line; clear the screen.
_ENTER, _LEAVE = "\x1b[?1049h\x1b[?25l", "\x1b[?25h\x1b[?1049l"
_WIDEST = 100
_HOME, _ERASE_LINE, _ERASE_BELOW = "\x1b[H", "\x1b[K", "\x1b[J"


@click.command(
    cls=Manual,
    examples=[
        ("cedos top", "Until Ctrl-C."),
        ("cedos top --interval 0.2 --count 50", "Five times a second, for ten seconds."),
    ],
    exits=(0, 1, 3, 6),
    files=[SOCKET],
)
@click.option(
    "-i",
    "--interval",
    "interval_s",
    type=click.FloatRange(0.05, 3600),
    default=1.0,
    show_default=True,
    help="Seconds between two refreshes.",
)
@click.option("-n", "--count", type=click.IntRange(1), help="End after so many refreshes.")
def command(interval_s: float, count: int | None) -> None:
    """Show the status repeatedly on a separate screen until Ctrl-C.

    The content is that of `cedos status`, cut off at the size of the terminal. If the daemon ends,
    the command waits for the next one.
    """
    client = ControlClient(directories().socket)
    first = client.status()
    screen = sys.stdout.isatty()

    def shown_of(now: StatusMessage) -> list[str]:
        columns = shutil.get_terminal_size().columns if screen else _WIDEST
        return list(map(render.plain, status.lines(now, columns)))

    with _own_screen() if screen else nullcontext(), suppress(KeyboardInterrupt):
        lines = shown_of(first)
        for shown in itertools.count(1):
            click.echo(_page(lines) if screen else "\n".join(lines), nl=not screen)
            if shown == count:
                return
            time.sleep(interval_s)
            try:
                lines = shown_of(client.status())
            except DaemonUnreachableError as error:
                lines = [render.plain(str(error))]


def _page(lines: list[str]) -> str:
    width, height = shutil.get_terminal_size()
    shown = [line[:width] + _ERASE_LINE for line in lines[: height - 1]]
    return _HOME + "\n".join(shown) + _ERASE_BELOW


@contextmanager
def _own_screen() -> Iterator[None]:
    click.echo(_ENTER, nl=False)
    try:
        yield
    finally:
        click.echo(_LEAVE, nl=False)

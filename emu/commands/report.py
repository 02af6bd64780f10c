"""`cedos-emu report`: draw pictures and a page from run folders."""

from pathlib import Path

import click

from cedos.commands.console.render import echo
from emu.console import examples, reading_others


@click.command("report", epilog=examples("cedos-emu report runs/a runs/b --out comparison.html"))
@click.argument(
    "directories",
    metavar="RUN...",
    nargs=-1,
    required=True,
    type=click.Path(path_type=Path, exists=True, file_okay=False),
)
@click.option(
    "--out",
    type=click.Path(path_type=Path, dir_okay=False),
    help="The page to write.  [default: report.html in the first folder]",
)
@reading_others()
def command(directories: tuple[Path, ...], out: Path | None) -> None:
    """Draw the page of one or several runs, from their folders only."""
    from emu.runs import page, table  # noqa: PLC0415

    for directory in directories:
        table.print_table(directory)
    echo(f"page: {page.write(directories, out)}")

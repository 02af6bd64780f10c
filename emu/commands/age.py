"""`cedos-emu age`: make a data set as a laptop would know it, with rates that are seconds old."""

from pathlib import Path

import click

from cedos.commands.console.render import echo
from emu import console
from emu.console import examples, reading_others


@click.command(
    "age",
    epilog=examples(
        "cedos-emu age traces/transfers.parquet --places ../shared/traces-real"
        " --out traces/transfers_aged.parquet"
    ),
)
@click.argument("data", type=click.Path(path_type=Path, dir_okay=False))
@click.option(
    "--places", "directory", type=click.Path(path_type=Path), help="Collection of places."
)
@click.option(
    "--out", type=click.Path(path_type=Path, dir_okay=False), required=True, help="Parquet or CSV."
)
@reading_others()
def command(data: Path, directory: Path | None, out: Path) -> None:
    """Make aged rows of DATA, for `train` beside it: the same transfers, known later.

    Past rates of one network or both become those that its trace carried 1.5 to 120 s before; another
    small download that DATA measured at the same instant becomes the last small transfer.
    """
    from emu.data import datasets, derived  # noqa: PLC0415
    from emu.places import places  # noqa: PLC0415

    console.make_room(out, "--out")
    read = datasets.read(data)
    known = places.load(directory or places.default_directory())
    rows = derived.aged(read.to_rows(), known)
    datasets.write(out, rows)
    echo(f"{len(rows)} aged rows of {len(read)} in {out}")

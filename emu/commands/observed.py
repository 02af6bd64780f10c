"""`cedos-emu observed`: make a data set of transfers that a daemon saw."""

from pathlib import Path
from typing import Any

import click

from cedos.commands.console.render import echo
from emu import console
from emu.console import examples, reading_others


@click.command(
    "observed",
    epilog=examples(
        "cedos-emu observed runs/mixed/* --out traces/transfers_live.parquet",
        "cedos-emu observed /var/lib/cedos/history.sqlite --out mine.parquet",
    ),
)
@click.argument(
    "sources",
    metavar="SOURCE...",
    nargs=-1,
    required=True,
    type=click.Path(path_type=Path, exists=True),
)
@click.option(
    "--places",
    "directory",
    type=click.Path(path_type=Path),
    help="Collection that was replayed, for the groups of its places.",
)
@click.option(
    "--out", type=click.Path(path_type=Path, dir_okay=False), required=True, help="Parquet or CSV."
)
@reading_others()
def command(sources: tuple[Path, ...], directory: Path | None, out: Path) -> None:
    """Make a transfer data set of what a daemon saw: of run folders, or of a host's own history.

    A row has the time of the one strategy that carried its transfer. Give the file to `train` beside
    data of all strategies (`collect`): predictors then know contexts as a daemon has them.
    """
    from emu.data import datasets  # noqa: PLC0415
    from emu.data.derived import observed  # noqa: PLC0415
    from emu.places import places  # noqa: PLC0415
    from emu.runs import runs  # noqa: PLC0415
    from emu.runs.decisions import predictions_of  # noqa: PLC0415

    console.make_room(out, "--out")
    rows: list[dict[str, Any]] = []
    known = places.load(directory or places.default_directory())
    for source in sources:
        if source.is_file():
            rows += observed(predictions_of(source), source.stem, source.stem)
            continue
        run = runs.read(source)
        place = run.scenario.place or ""
        found = known.get(place)
        rows += observed(
            run.predictions,
            place,
            found.group if found is not None else place,
        )
    datasets.write(out, rows)
    echo(f"{len(rows)} transfers of {len(sources)} sources in {out}")

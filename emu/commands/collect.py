"""`cedos-emu collect`: measure a transfer data set."""

import json
import os
from pathlib import Path

import click

from cedos.commands.console.manual import Parsed
from cedos.commands.console.render import echo
from cedos.model import Direction
from emu import console
from emu.console import examples


def _sized(text: str) -> tuple[int, Direction]:
    size, _, direction = text.partition(":")
    try:
        n_bytes, way = int(float(size)), Direction(direction or "down")
    except (ValueError, OverflowError):
        raise ValueError(f"{text!r} is no size: write it as 3000:down or 300000:up") from None
    if n_bytes < 1:
        raise ValueError(f"{text!r}: a transfer has at least one byte")
    return n_bytes, way


@click.command(
    "collect",
    epilog=examples(
        "cedos-emu collect --places ../shared/traces-real --starts 5 --out transfers.parquet",
        "cedos-emu collect --places traces --place static-s13 --size 3e6:down --out mine.parquet",
        "cedos-emu collect --engine simulator --starts 100 --out computed.parquet",
    ),
)
@click.option(
    "--places", "directory", type=click.Path(path_type=Path), help="Collection of places."
)
@click.option("--place", "names", multiple=True, help="Only this place; may be repeated.")
@click.option(
    "--out", type=click.Path(path_type=Path, dir_okay=False), required=True, help="Parquet file."
)
@click.option(
    "--starts",
    type=click.IntRange(1),
    default=3,
    show_default=True,
    help="Instants of each place that transfers start from.",
)
@click.option(
    "--size",
    "sizes",
    type=Parsed("bytes:direction", _sized),
    multiple=True,
    metavar="BYTES:DIRECTION",
    help="Of a transfer; may be repeated.  "
    "[default: 3000:down, 30000:down, 300000:down, 3000000:down, 300000:up]",
)
@click.option(
    "--like",
    type=click.Path(path_type=Path, exists=True),
    help="Repeat the places, starts, sizes and RTTs of this data set.",
)
@click.option(
    "--engine",
    type=click.Choice(["mahimahi", "simulator"]),
    default="mahimahi",
    show_default=True,
    help="The simulator computes what transfers take, without root.",
)
@click.option(
    "--jobs",
    type=click.IntRange(1),
    help="Transfers at once; without: three a core, or one a core in the simulator.",
)
@click.option("--seed", type=int, default=1, show_default=True)
def command(
    directory: Path | None,
    names: tuple[str, ...],
    out: Path,
    starts: int,
    sizes: tuple[tuple[int, Direction], ...],
    like: Path | None,
    engine: str,
    jobs: int | None,
    seed: int,
) -> None:
    """Measure completion times of all four strategies from the same instants of each place.

    Every transfer gets a fresh replay, rotated to its start. An interrupted collection goes on where
    it stopped when the same command is given again: finished rows are kept in OUT.partial. Rows take
    about ten seconds each, divided by --jobs; the simulator computes five rows a second on a core, and
    draws other base RTTs for every second start.
    """
    from cedos.errors import DataSetError  # noqa: PLC0415
    from emu.data import collect, datasets  # noqa: PLC0415
    from emu.places import places  # noqa: PLC0415
    from emu.runs import runs  # noqa: PLC0415
    from emu.terminal import bar  # noqa: PLC0415

    described = out.with_suffix(".environment.json")
    for file in (out, described):
        if file.exists():
            raise DataSetError(
                f"{file} is there already, and may have taken hours: choose another --out, or remove it"
            )
    console.make_room(out, "--out")
    simulated = engine == "simulator"
    jobs = jobs or (1 if simulated else 3) * (os.cpu_count() or 1)
    directory = directory or places.default_directory()
    known = places.load(directory)
    chosen = {name: known[name] for name in names or known}
    partial = out.with_suffix(out.suffix + ".partial")
    if like is None:
        rows = collect.plan(
            chosen,
            starts=starts,
            sizes=sizes or collect.DEFAULT_SIZES,
            seed=seed,
            vary_rtts=simulated,
        )
    else:
        table = [row for row in datasets.read(like).to_rows() if row["place"] in chosen]
        if not table:
            raise DataSetError(f"{like} has no row of the places in {directory}")
        rows = collect.plan_like(table)
    with bar("collecting") as report:
        entries = collect.collect(
            rows,
            directory,
            partial,
            jobs=jobs,
            seed=seed,
            simulated=simulated,
            done=lambda done, total: report(done / max(total, 1), f"{done} of {total} rows"),
        )
    datasets.write(out, entries)
    console.write(described, json.dumps(runs.describe(seed), indent=2) + "\n")
    partial.unlink(missing_ok=True)
    echo(f"{len(entries)} rows of {len(chosen)} places in {out}")

"""`cedos-emu collect`: measures a transfer data set."""

import json
import os
from pathlib import Path

import click

from cedos.model import Direction
from emu.help import examples


class _Size(click.ParamType[tuple[int, Direction]]):
    """`3000:down`: bytes and direction."""

    name = "bytes:direction"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[int, Direction]:
        if isinstance(value, tuple):
            return value
        size, _, direction = str(value).partition(":")
        try:
            parsed = (int(float(size)), Direction(direction or "down"))
        except ValueError:
            self.fail(f"{value!r} is no size: write it as 3000:down or 300000:up", param, ctx)
        if parsed[0] < 1:
            self.fail(f"{value!r}: a transfer has at least one byte", param, ctx)
        return parsed


@click.command(
    "collect",
    epilog=examples(
        "cedos-emu collect --places ../shared/traces-real --starts 5 --out transfers.parquet",
        "cedos-emu collect --place walk-1 --size 3e6:down --size 3e5:up --out mine.parquet",
    ),
)
@click.option(
    "--places", "directory", type=click.Path(path_type=Path), help="Collection of places."
)
@click.option("--place", "names", multiple=True, help="Only this place; may be repeated.")
@click.option(
    "--out", type=click.Path(path_type=Path, dir_okay=False), required=True, help="Parquet file."
)
@click.option("--starts", type=click.IntRange(1), default=3, show_default=True)
@click.option("--size", "sizes", type=_Size(), multiple=True, help="BYTES:DIRECTION; repeatable.")
@click.option(
    "--like",
    type=click.Path(path_type=Path, exists=True),
    help="Repeat the places, starts, sizes and RTTs of this data set.",
)
@click.option("--jobs", type=click.IntRange(1), default=3 * (os.cpu_count() or 1))
@click.option("--seed", type=int, default=1, show_default=True)
def command(
    directory: Path | None,
    names: tuple[str, ...],
    out: Path,
    starts: int,
    sizes: tuple[tuple[int, Direction], ...],
    like: Path | None,
    jobs: int,
    seed: int,
) -> None:
    """Measures completion times of all four strategies from the same instants of each place.

    Every transfer gets a fresh replay, rotated to its start. An interrupted collection goes on
    where it stopped when the same command is given again: finished rows are kept in OUT.partial.
    Rows take about ten seconds each, divided by --jobs.
    """
    from cedos.errors import DataSetError  # noqa: PLC0415
    from emu.data import collect, datasets  # noqa: PLC0415
    from emu.places import places  # noqa: PLC0415
    from emu.progress import bar  # noqa: PLC0415
    from emu.runs import environment  # noqa: PLC0415

    directory = directory or places.default_directory()
    known = places.load(directory)
    chosen = {name: known[name] for name in names or known}
    if like is not None:
        table = datasets.read(like).to_rows()
        rows = collect.plan_like(row for row in table if row["place"] in chosen)
        if not rows:
            raise DataSetError(f"{like} has no row of the places in {directory}")
    else:
        rows = collect.plan(chosen, starts=starts, sizes=sizes or collect.DEFAULT_SIZES, seed=seed)
    partial = out.with_suffix(out.suffix + ".partial")
    with bar("collecting") as report:
        entries = collect.collect(
            rows,
            directory,
            partial,
            jobs=jobs,
            seed=seed,
            done=lambda finished, total: report(
                finished / max(total, 1), f"{finished} of {total} rows"
            ),
        )
    datasets.write(out, entries)
    out.with_suffix(".environment.json").write_text(
        json.dumps(environment.describe(seed), indent=2) + "\n"
    )
    partial.unlink()
    click.echo(f"{len(entries)} rows of {len(chosen)} places in {out}")

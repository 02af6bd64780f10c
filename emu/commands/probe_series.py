"""`cedos-emu probe-series`: probe both networks of places second by second, in real time."""

import json
import os
from pathlib import Path

import click

from cedos.commands.console.render import echo
from emu import console
from emu.console import examples


@click.command(
    "probe-series",
    epilog=examples(
        "cedos-emu probe-series --places ../shared/traces-real --out traces/probe_series.parquet",
        "cedos-emu probe-series --place walk-away-s7 --seconds 30 --out mine.parquet",
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
    "--seconds", type=click.IntRange(2), default=100, show_default=True, help="Of each, at most."
)
@click.option("--jobs", type=click.IntRange(1), default=3 * (os.cpu_count() or 1))
@click.option("--seed", type=int, default=1, show_default=True, help="Decides the order alone.")
def command(
    directory: Path | None, names: tuple[str, ...], out: Path, seconds: int, jobs: int, seed: int
) -> None:
    """Record what active probes find, second by second, on both networks of each place.

    Four pings a second, every two seconds a DNS lookup and a train of UDP packets downwards, beside the
    radio's indicators and what the trace really carried. An interrupted recording goes on with the
    places that are missing. It takes the sum of the places' seconds, divided by --jobs.
    """
    from emu.data import probe_series  # noqa: PLC0415
    from emu.places import places  # noqa: PLC0415
    from emu.runs import runs  # noqa: PLC0415
    from emu.terminal import bar  # noqa: PLC0415

    console.make_room(out, "--out")
    directory = directory or places.default_directory()
    known = places.load(directory)
    walks = probe_series.plan({name: known[name] for name in names or known}, seconds)
    partial = out.with_suffix(out.suffix + ".partial")
    with bar("probing") as report:
        rows = probe_series.collect(
            walks,
            directory,
            partial,
            jobs=jobs,
            seed=seed,
            done=lambda finished, total: report(
                finished / max(total, 1), f"{finished} of {total} places"
            ),
        )
    probe_series.write(out, rows)
    console.write(
        out.with_suffix(".environment.json"), json.dumps(runs.describe(seed), indent=2) + "\n"
    )
    partial.unlink()
    echo(f"{len(rows)} rows of {len(walks)} places in {out}")

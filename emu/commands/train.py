"""`cedos-emu train`: fits completion-time predictors to a transfer data set."""

import hashlib
import platform
from datetime import UTC, datetime
from pathlib import Path

import click

from emu.help import examples


@click.command(
    "train",
    epilog=examples(
        "cedos-emu train traces/transfers.parquet --out predictors/shipped.json",
        "cedos-emu train mine.csv --out mine.json --trees 1 --apart",
    ),
)
@click.argument("data", type=click.Path(path_type=Path, dir_okay=False))
@click.option(
    "--out", type=click.Path(path_type=Path, dir_okay=False), required=True, help="The model, JSON."
)
@click.option(
    "--trees",
    type=click.IntRange(1, 200),
    default=30,
    show_default=True,
    help="Averaged; 1 is a single tree of the best splits, as in Delphi.",
)
@click.option(
    "--joint/--apart",
    default=True,
    show_default=True,
    help="Whether each tree predicts all strategies at once, or each strategy has its own.",
)
@click.option("--min-leaf", type=click.IntRange(1), help="Rows per leaf; 8, for a single tree 20.")
@click.option("--seed", type=int, default=0, show_default=True)
def command(
    data: Path, out: Path, trees: int, joint: bool, min_leaf: int | None, seed: int
) -> None:
    """Fits completion-time predictors to DATA (Parquet or CSV) and writes them as one JSON file.

    Errors are learned from groups of places that were held out; the medians printed at the end are
    from those. How good the decisions are is `cedos-emu evaluate`'s to say.
    """
    from cedos import predictor_file  # noqa: PLC0415
    from cedos.errors import DataSetError  # noqa: PLC0415
    from emu.data import datasets  # noqa: PLC0415
    from emu.data.evaluate import examples_of  # noqa: PLC0415
    from predictors.train import Settings, fit  # noqa: PLC0415

    read = datasets.read(data)
    if read.ignored:
        click.echo(f"not known, ignored: {', '.join(read.ignored)}")
    settings = Settings(trees=trees, joint=joint, min_leaf=min_leaf, seed=seed)
    try:
        model = fit(examples_of(read, read.texts["group"]), settings)
    except ValueError as error:
        raise DataSetError(f"{data}: {error}") from error
    predictor_file.save(
        model,
        out,
        {
            "data": data.name,
            "data_sha256": hashlib.sha256(data.read_bytes()).hexdigest(),
            "places": len(set(read.texts["place"].tolist())),
            "host": f"{platform.system()} {platform.release()} {platform.machine()}",
            "date": datetime.now(UTC).date().isoformat(),
        },
    )
    held_out = model.provenance["held_out"]
    click.echo(
        f"{model.provenance['rows']} rows of {model.provenance['groups']} groups, "
        f"{len(model.features)} columns: {out} ({out.stat().st_size / 1e3:.0f} kB)\n"
        "median relative error at groups held out: "
        + ", ".join(f"{name} {error:.1%}" for name, error in held_out.items())
    )

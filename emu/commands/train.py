"""`cedos-emu train`: fit completion-time predictors to a transfer data set."""

import hashlib
import platform
from datetime import UTC, datetime
from pathlib import Path

import click

from cedos.commands.console.render import echo, show
from emu import console
from emu.console import examples

# The families are named here too, so that `--help` does not import scikit-learn. A test compares
# them.
KINDS = (
    "trees", "tree", "forest", "svr", "boosting", "last-rate", "ewma", "harmonic", "last-rtt",
)  # fmt: skip


@click.command(
    "train",
    epilog=examples(
        "cedos-emu train traces/transfers*.parquet --out predictors/shipped.json",
        "cedos-emu train traces/transfers*.parquet --without sbu7 --out unseen.json",
    ),
)
@click.argument("data", nargs=-1, required=True, type=click.Path(path_type=Path, dir_okay=False))
@click.option(
    "--out", type=click.Path(path_type=Path, dir_okay=False), required=True, help="The model, JSON."
)
@click.option(
    "--kind",
    type=click.Choice(KINDS),
    default="trees",
    show_default=True,
    help="The family: 30 trees that know all strategies (trees), Delphi's tree for each (tree), ten "
    "bagged ones for each (forest), support vectors (svr), boosting, or a rule that learns nothing.",
)
@click.option(
    "--trees", type=click.IntRange(1, 500), help="How many; without it, the family's own number."
)
@click.option(
    "--without",
    multiple=True,
    metavar="GROUP",
    help="Leave this group of places out, so that the model never saw them; may be repeated.",
)
@click.option(
    "--partial", is_flag=True, help="Also from DATA in which a strategy was never measured."
)
@click.option("--seed", type=int, default=0, show_default=True)
def command(
    data: tuple[Path, ...],
    out: Path,
    kind: str,
    trees: int | None,
    without: tuple[str, ...],
    partial: bool,
    seed: int,
) -> None:
    """Fit completion-time predictors to DATA (Parquet or CSV, one or more) and write one JSON file.

    Errors are learned from groups of places that were held out; the medians printed at the end are
    from those. How good the decisions are is `cedos-emu evaluate`'s to say.

    Rows need not hold the times of all strategies, but DATA together must: a model never chooses what
    it has no times of. With --partial it is trained all the same; the daemon takes no model that does
    not know each network alone.
    """
    import numpy as np  # noqa: PLC0415

    from cedos.errors import ConfigError, DataSetError  # noqa: PLC0415
    from cedos.storage import model_files  # noqa: PLC0415
    from emu.data import datasets  # noqa: PLC0415
    from emu.data.evaluate import examples_of  # noqa: PLC0415
    from predictors.inputs import STRATEGIES  # noqa: PLC0415
    from predictors.training.examples import Settings  # noqa: PLC0415
    from predictors.training.train import fit  # noqa: PLC0415

    console.make_room(out, "--out")
    read = datasets.joined([datasets.read(each) for each in data])
    groups = read.texts["group"]
    if strange := [each for each in without if each not in groups]:
        known = ", ".join(sorted(set(groups.tolist())))
        raise ConfigError(
            f"--without {strange[0]}: {read.source} has no such group; it has {known}"
        )
    read = read.take(~np.isin(groups, without)) if without else read
    if read.ignored:
        echo(f"not known, ignored: {', '.join(read.ignored)}")
    unknown = [name for name in STRATEGIES if name not in read.strategies]
    if unknown and not partial:
        raise ConfigError(
            f"{read.source}: no times for {', '.join(unknown)}: this model cannot choose"
            f" {'them' if unknown[1:] else 'it'} (if that is meant: --partial)"
        )
    settings = Settings(kind=kind, trees=trees, seed=seed)
    try:
        model = fit(examples_of(read, read.texts["group"]), settings)
    except ValueError as error:
        raise DataSetError(f"{read.source}: {error}") from error
    model_files.save(
        model,
        out,
        {
            "data": ", ".join(each.name for each in data),
            "without": list(without),
            "data_sha256": [hashlib.sha256(each.read_bytes()).hexdigest() for each in data],
            "places": len(set(read.texts["place"].tolist())),
            "host": f"{platform.system()} {platform.release()} {platform.machine()}",
            "date": datetime.now(UTC).date().isoformat(),
        },
    )
    held_out = model.provenance["held_out"]
    show(
        [
            f"{model.provenance['rows']} rows of {model.provenance['groups']} groups, "
            f"{len(model.features)} columns: {out} ({out.stat().st_size / 1e3:.0f} kB)",
            "median relative error at groups held out: "
            + ", ".join(f"{name} {error:.1%}" for name, error in held_out.items()),
        ]
    )

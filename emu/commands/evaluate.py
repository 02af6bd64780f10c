"""`cedos-emu evaluate`: decision quality against the oracle, prediction error, coverage."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from emu.help import examples


@click.command(
    "evaluate",
    epilog=examples(
        "cedos-emu evaluate traces/transfers.parquet",
        "cedos-emu evaluate other.csv --model shipped --json other.json",
    ),
)
@click.argument("data", type=click.Path(path_type=Path, dir_okay=False))
@click.option(
    "--model",
    "model_name",
    metavar="FILE|shipped",
    help="Judge this model; without it, models are trained leaving each group out.",
)
@click.option(
    "--group-by",
    type=click.Choice(["group", "place", "row"]),
    default="group",
    show_default=True,
    help="What is left out together; row is a random split, where places are known.",
)
@click.option(
    "--json", "out", type=click.Path(path_type=Path, dir_okay=False), help="Figures, to F."
)
def command(data: Path, model_name: str | None, group_by: str, out: Path | None) -> None:
    """Judges choices of network on DATA, where every strategy was measured from the same instants.

    Policies: cedos (the daemon's own decision), the oracle, the fixed strategies and rules of thumb,
    each for Max(S) and Max(S/E). Within 10 % of the oracle's cost, mean regret (cost over the
    oracle's, less 1), its 95th percentile, mean time, sum of times over the oracle's; intervals by
    resampling groups. Predictions: median relative error, and how often 90 % intervals cover.
    """
    from cedos import predictor_file  # noqa: PLC0415
    from emu.data import datasets, evaluate  # noqa: PLC0415
    from emu.progress import bar  # noqa: PLC0415

    read = datasets.read(data)
    if read.ignored:
        click.echo(f"not known, ignored: {', '.join(read.ignored)}", err=True)
    model = None
    if model_name is not None:
        model = predictor_file.load(None if model_name == "shipped" else Path(model_name))
    with bar("evaluating") as report:
        found = evaluate.evaluate(
            read,
            model,
            group_by=group_by,
            progress=report,
        )
    found |= {"data": data.name, "model": model_name, "group_by": group_by}
    if out is not None:
        out.write_text(json.dumps(found, indent=1) + "\n")
    _show(found)


def _show(found: Mapping[str, Any]) -> None:
    from rich.box import SIMPLE_HEAD  # noqa: PLC0415
    from rich.console import Console  # noqa: PLC0415
    from rich.table import Table  # noqa: PLC0415

    console = Console()
    judged = "trained on the other groups" if found["model"] is None else found["model"]
    console.print(
        f"{found['data']}: {found['rows']} rows, {found['places']} places, {found['groups']} groups; "
        f"model: {judged}"
    )
    steady = found["steady"]["policies"]
    for objective in next(iter(found["policies"].values())):
        table = Table(title=objective, title_justify="left", box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
        table.add_column("policy", no_wrap=True)
        for title in (*_COLUMNS, "steady"):
            table.add_column(title, justify="right", no_wrap=True)
        for name, figures in found["policies"].items():
            cells = [_number(figures[objective][key]) for key in _COLUMNS.values()]
            calm = _number(steady[name][objective]["regret_mean"]) if name in steady else ""
            table.add_row(name, *cells, calm)
        console.print(table)
        cedos = found["policies"]["cedos"][objective]
        console.print(
            "cedos, 95 % intervals: "
            + ", ".join(
                f"{title} {_number(cedos[f'{key}_ci95'][0])} to {_number(cedos[f'{key}_ci95'][1])}"
                for title, key in _COLUMNS.items()
                if title in {"in 10 %", "regret", "x oracle"}
            )
        )
    console.print(
        f"steady: mean regret on the {found['steady']['rows']} rows where both networks alone did as "
        "their round trip and recent rate promised, give or take a factor of two"
    )
    table = Table(title="prediction", title_justify="left", box=SIMPLE_HEAD)
    for title in ("strategy", "median relative error", "90 % intervals cover"):
        table.add_column(title, justify="left" if title == "strategy" else "right")
    for model, strategies in found["prediction"].items():
        for name, figures in strategies.items():
            table.add_row(
                f"{model} {name}",
                *(f"{figures[key]:.1%}" for key in ("median_rel_error", "coverage90")),
            )
    console.print(table)


_COLUMNS = {
    "in 10 %": "within10_share",
    "match": "oracle_match",
    "regret": "regret_mean",
    "p95": "regret_p95",
    "mean s": "mean_s",
    "x oracle": "mean_s_over_oracle",
}


def _number(value: float) -> str:
    return f"{value:.0f}" if value >= 100 else f"{value:.3f}"

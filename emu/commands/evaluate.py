"""`cedos-emu evaluate`: judge a model: choices against the oracle, prediction error, coverage."""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from cedos.commands.console import render
from cedos.commands.console.render import echo
from emu import console
from emu.console import examples, reading_others


@click.command(
    "evaluate",
    epilog=examples(
        "cedos-emu evaluate traces/transfers.parquet",
        "cedos-emu evaluate traces/transfers.parquet traces/transfers_aged.parquet",
        "cedos-emu evaluate other.csv --model shipped --json other.json",
    ),
)
@click.argument("data", nargs=-1, required=True, type=click.Path(path_type=Path, dir_okay=False))
@click.option(
    "--model",
    "model_name",
    metavar="FILE|shipped",
    help="Judge this model on data that it was not trained on; without it, models are trained leaving "
    "each group out.",
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
@reading_others()
def command(
    data: tuple[Path, ...],
    model_name: str | None,
    group_by: str,
    out: Path | None,
) -> None:
    """Judge choices of network on DATA, where every strategy was measured from the same instants.

    Policies: cedos (the daemon's own decision), with redundant copies of what is short or endangered
    (hedged), the oracle, the fixed strategies and rules of thumb, each for Max(S) and Max(S/E). Within
    10 % of the oracle's cost, mean regret (cost over the oracle's, less 1), its 95th percentile, mean
    time, sum of times over the oracle's, bytes carried twice; intervals by resampling groups.
    Predictions: median relative error, and how often 90 % intervals cover. Where DATA tell how old
    rates are (`cedos-emu age`), also choices between the two networks by that age. Several DATA are
    judged as one.
    """
    from cedos.storage import model_files  # noqa: PLC0415
    from emu.data import datasets, evaluate  # noqa: PLC0415
    from emu.terminal import bar  # noqa: PLC0415

    if out is not None:
        console.make_room(out, "--json")
    read = datasets.joined([datasets.read(each) for each in data])
    if read.ignored:
        echo(f"not known, ignored: {', '.join(read.ignored)}", err=True)
    model = None
    if model_name is not None:
        file = None if model_name == "shipped" else Path(model_name)
        model = model_files.load(file, partial=True)
    with bar("evaluating") as report:
        found = evaluate.evaluate(
            read,
            model,
            group_by=group_by,
            progress=report,
        )
    found |= {
        "data": " + ".join(each.name for each in data),
        "model": model_name,
        "group_by": group_by,
    }
    if model is not None:
        found["trained_on"] = _trained_on(model.provenance, data)
    _show(found)
    if out is not None:
        from emu.runs import runs  # noqa: PLC0415

        known = {**found, "environment": runs.describe()}
        console.write(out, json.dumps(known, indent=1) + "\n", "--json")


def _trained_on(provenance: Mapping[str, Any], data: tuple[Path, ...]) -> list[str]:
    """Which of the files a model was trained on, by their contents."""
    known = provenance.get("data_sha256") or ()
    return [each.name for each in data if hashlib.sha256(each.read_bytes()).hexdigest() in known]


def _show(found: Mapping[str, Any]) -> None:
    judged = "trained on the other groups" if found["model"] is None else found["model"]
    render.show(
        render.wrap(
            f"{found['data']}: {found['rows']} rows, {found['places']} places, {found['groups']}"
            f" groups; model: {judged}"
        )
    )
    if found.get("trained_on"):
        echo(
            f"CAUTION: this model was trained on these rows: {', '.join(found['trained_on'])}; these"
            " figures flatter it. Without --model, each row is judged by a model that never saw its place"
        )
    for objective in next(iter(found["policies"].values())):
        rows = [
            (name, *(_number(figures[objective][key]) for key in _COLUMNS.values()))
            for name, figures in found["policies"].items()
            if objective in figures
        ]
        render.show(["", objective, *render.table(("policy", *_COLUMNS), rows)])
        cedos = found["policies"]["cedos"][objective]
        echo(
            "cedos, 95 % intervals: "
            + ", ".join(
                f"{title} {_number(cedos[f'{key}_ci95'][0])} to {_number(cedos[f'{key}_ci95'][1])}"
                for title, key in _COLUMNS.items()
                if title in {"in 10 %", "regret", "x oracle"}
            )
        )
    if ages := found.get("ages"):
        _show_ages(ages)
    rows = [
        (
            f"{model} {name}",
            *(f"{figures[key]:.1%}" for key in ("median_rel_error", "coverage90")),
        )
        for model, strategies in found["prediction"].items()
        for name, figures in strategies.items()
    ]
    header = ("strategy", "median relative error", "90 % intervals cover")
    render.show(["", "prediction", *render.table(header, rows)])


def _show_ages(ages: Mapping[str, Any]) -> None:
    rows = []
    for name, found in ages.items():
        cedos, hedged = (found["policies"][each] for each in ("cedos", "cedos-hedged"))
        rows.append(
            (
                name,
                str(found["rows"]),
                *(_number(cedos[_COLUMNS[each]]) for each in ("in 10 %", "regret", "x oracle")),
                _number(hedged["mean_s_over_oracle"]),
                *(
                    f"{found['prediction'][each]['coverage90']:.0%}"
                    for each in ("wifi", "cellular")
                ),
            )
        )
    header = ("known", "rows", "in 10 %", "regret", "x oracle", "hedged", "cover wifi", "cellular")
    title = "one network or the other, by how old its rate is (max_s)"
    render.show(["", title, *render.table(header, rows)])


_COLUMNS = {
    "in 10 %": "within10_share",
    "match": "oracle_match",
    "regret": "regret_mean",
    "p95": "regret_p95",
    "mean s": "mean_s",
    "x oracle": "mean_s_over_oracle",
    "extra": "extra_bytes_share",
}


def _number(value: float) -> str:
    return f"{value:.0f}" if value >= 100 else f"{value:.3f}"

"""Months simulated, their figures and a picture: `python -m emu.experiments.budgets usual`, and `odd`."""

import json
from pathlib import Path

import click

from cedos.selector.budgets.pacer import Pacer
from emu.experiments.budgets.figures import figures
from emu.experiments.budgets.months import live, simulate
from emu.experiments.budgets.odd_months import ODD_MONTHS, odd_figures, odd_worlds
from emu.experiments.budgets.picture import draw
from emu.lab.runs import environment


@click.group()
def main() -> None:
    """Simulated months."""


@main.command()
@click.option("--people", default=40, show_default=True, type=click.IntRange(1, 100_000))
@click.option("--seed", default=1, show_default=True)
@click.option("--json", "as_json", is_flag=True, help="As JSON.")
def odd(people: int, seed: int, as_json: bool) -> None:
    """First months that are unlike most: how many were exceeded, or left over though wanted."""
    found = {}
    for name, kind in ODD_MONTHS.items():
        click.echo(f"{name}, {people} people", err=True)
        worlds = odd_worlds(kind, seed, people)
        found[name] = odd_figures([each for world in worlds for each in live([world], Pacer)])
    if as_json:
        click.echo(json.dumps({"seed": seed, "people": people, "months": found}))
        return
    click.echo(
        f"{'month':<14}{'exceeded':>10}{'left over':>11}{'in its last quarter':>21}{'bought':>9}"
    )
    for name, of in found.items():
        counts = f"{of['exceeded']:>10.0f}{of['left_over']:>11.0f}{of['left_over_late']:>21.0f}"
        click.echo(f"{name:<14}{counts}{of['bought_of_best_share']:>9.2f}")


@main.command()
@click.option("--months", default=40, show_default=True, type=click.IntRange(1, 100_000))
@click.option("--seed", default=1, show_default=True)
@click.option("--out", required=True, type=click.Path(path_type=Path, file_okay=False))
def usual(months: int, seed: int, out: Path) -> None:
    """Simulates months under both controllers; writes `summary.json` and `months.png` to a folder."""
    found = simulate(seed, months, lambda text: click.echo(text, err=True))
    out.mkdir(parents=True, exist_ok=True)
    summary = {"seed": seed, "figures": figures(found), "host": environment.describe(seed)}
    (out / "summary.json").write_text(json.dumps(summary, indent=2) + "\n")
    draw(found["data"], out / "months.png")
    for key, value in figures(found).items():
        click.echo(f"{key:<28}{value:.4g}")


if __name__ == "__main__":
    main()

"""Months simulated, their figures and a picture: `python -m emu.experiments.budgets`."""

import json
from pathlib import Path

import click

from emu.experiments.budgets.figures import figures
from emu.experiments.budgets.months import simulate
from emu.experiments.budgets.picture import draw
from emu.lab.runs import environment


@click.command()
@click.option("--months", default=40, show_default=True, type=click.IntRange(1, 100_000))
@click.option("--seed", default=1, show_default=True)
@click.option("--out", required=True, type=click.Path(path_type=Path, file_okay=False))
def main(months: int, seed: int, out: Path) -> None:
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

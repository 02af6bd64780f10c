"""Months simulated, their figures and a picture: `python -m emu.experiments.budgets usual`, and `odd`."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import click
from matplotlib.figure import Figure

from cedos.commands.console.render import echo
from cedos.selector.budgets.pacer import Pacer
from emu.experiments.budgets.months import (
    ODD_MONTHS,
    Outcome,
    figures,
    live,
    odd_figures,
    odd_worlds,
    simulate,
)
from emu.experiments.budgets.plans import DAY_S
from emu.runs import environment

_COLOURS = {"pacer": "#1b6ca8", "odyssey": "#c8553d"}
_LOW, _HIGH = 1e-4, 1e4


def draw(found: Mapping[str, Sequence[Outcome]], path: Path) -> None:
    """Write the picture.

    Args:
        found: outcomes by controller, of the same months.
        path: a file whose suffix says the format.
    """
    figure = Figure(figsize=(10.0, 7.0), layout="constrained")
    spending, prices, ends, bought = figure.subplots(2, 2).flat
    # The month in the middle by what could be bought stands for all.
    typical = sorted(
        range(len(found["pacer"])), key=lambda number: found["pacer"][number].world.best_s
    )[len(found["pacer"]) // 2]
    for name, outcomes in found.items():
        outcome = outcomes[typical]
        days = [at_s / DAY_S for at_s, *_ in outcome.path]
        supply = outcome.supply
        spending.plot(
            days, [spent / supply for _, spent, _ in outcome.path], color=_COLOURS[name], label=name
        )
        prices.plot(
            days,
            [min(max(rate * 1e6, _LOW), _HIGH) for *_, rate in outcome.path],
            color=_COLOURS[name],
            label=name,
        )
        ends.hist(
            [100.0 * each.spent_share for each in outcomes],
            bins=[50.0 + step for step in range(0, 71, 2)],
            histtype="step",
            color=_COLOURS[name],
            label=name,
        )
        bought.plot(
            sorted(each.bought_s / max(each.world.best_s, 1e-9) for each in outcomes),
            [(number + 1) / len(outcomes) for number in range(len(outcomes))],
            color=_COLOURS[name],
            label=name,
        )
    spending.plot(
        [0, outcome.world.length_s / DAY_S], [0, 1], color="grey", linewidth=0.8, linestyle=":"
    )
    spending.set(title="A month: spent", xlabel="day", ylabel="share of the supply")
    prices.set(
        title="The same month: price (cut at the edges)",
        xlabel="day",
        ylabel="seconds per megabyte",
        yscale="log",
    )
    ends.axvline(100.0, color="grey", linewidth=0.8, linestyle=":")
    ends.set(title="All months: spent", xlabel="% of the supply", ylabel="months")
    bought.set(
        title="All months: time bought",
        xlabel="share of what one who knows the future could buy",
        ylabel="share of months",
    )
    for axes in (spending, prices, ends, bought):
        axes.legend()
    figure.suptitle("Months with shifting habits, drawn: no measured ones")
    figure.savefig(path)


@click.group()
def main() -> None:
    """Simulate months of people with budgets."""


@main.command()
@click.option("--people", default=40, show_default=True, type=click.IntRange(1, 100_000))
@click.option("--seed", default=1, show_default=True)
@click.option("--json", "as_json", is_flag=True, help="As JSON.")
def odd(people: int, seed: int, as_json: bool) -> None:
    """First months that are unlike most: how many were exceeded, or left over though wanted."""
    found = {}
    for name, kind in ODD_MONTHS.items():
        echo(f"{name}, {people} people", err=True)
        worlds = odd_worlds(kind, seed, people)
        found[name] = odd_figures([each for world in worlds for each in live([world], Pacer)])
    if as_json:
        echo(json.dumps({"seed": seed, "people": people, "months": found}))
        return
    echo(f"{'month':<14}{'exceeded':>10}{'left over':>11}{'in its last quarter':>21}{'bought':>9}")
    for name, of in found.items():
        counts = f"{of['exceeded']:>10.0f}{of['left_over']:>11.0f}{of['left_over_late']:>21.0f}"
        echo(f"{name:<14}{counts}{of['bought_of_best_share']:>9.2f}")


@main.command()
@click.option("--months", default=40, show_default=True, type=click.IntRange(1, 100_000))
@click.option("--seed", default=1, show_default=True)
@click.option("--out", required=True, type=click.Path(path_type=Path, file_okay=False))
def usual(months: int, seed: int, out: Path) -> None:
    """Simulate months under both controllers; writes `summary.json` and `months.png` to a folder."""
    found = simulate(seed, months, lambda text: echo(text, err=True))
    out.mkdir(parents=True, exist_ok=True)
    summary = {"seed": seed, "figures": figures(found), "host": environment.describe(seed)}
    (out / "summary.json").write_text(json.dumps(summary, indent=2) + "\n")
    draw(found["data"], out / "months.png")
    for key, value in figures(found).items():
        echo(f"{key:<28}{value:.4g}")


if __name__ == "__main__":
    main()

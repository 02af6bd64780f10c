"""Simulated months as a picture: one month's spending and prices, and how all of them ended."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from matplotlib.figure import Figure

from emu.experiments.budgets.habits import DAY_S
from emu.experiments.budgets.months import Outcome

_COLOURS = {"pacer": "#1b6ca8", "odyssey": "#c8553d"}
_LOW, _HIGH = 1e-4, 1e4


def draw(found: Mapping[str, Sequence[Outcome]], path: Path) -> None:
    """Writes the picture.

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

"""Cedos' evaluation of its scheduler again: `python -m emu.experiments.cedos --out notebooks/results`."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import click

from cedos.commands.console.render import echo
from emu import console
from emu.experiments.cedos import studies, world
from emu.experiments.cedos.compare import Tally, figures, schedulers, tally
from emu.experiments.cedos.world import World
from emu.places import places as collections
from emu.runs import runs

PARTS: Final = (
    "figure6",
    "days",
    "delays",
    "subway",
    "study",
    "idle_power",
    "places",
    "delays_at_places",
)
# Deadlines at a place. Transfers begin within the first 200 of its 600 s.
PLACE_DELAYS_S: Final = (30, 60, 120, 240, 390)

DELAYS_S: Final = (600, 1800, 3600, 3 * 3600, 6 * 3600)
_DAYS_OF_USER: Final = 10
_SEED: Final = 1
# The parts that use a fifth of the days. Others but `days` use rides, cases or places.
_OF_FEWER_DAYS: Final = ("delays", "study", "idle_power")


def users(count: int, delay_s: float | None = None) -> Iterator[Iterator[World]]:
    """Ten days of each; `delay_s`: the same for all downloads."""
    for user in range(-(-count // _DAYS_OF_USER)):
        first = _SEED * 1_000_000 + user * _DAYS_OF_USER
        drawn = (world.draw(number) for number in range(first, first + _DAYS_OF_USER))
        yield drawn if delay_s is None else (world.delayed(day, delay_s) for day in drawn)


def many_days(count: int, delay_s: float | None = None) -> dict[str, Any]:
    found = [tally(user, schedulers(), one_host=True) for user in users(count, delay_s)]
    return figures(found)


def at_places(directory: Path, runs: int, delay_s: float | None = None) -> dict[str, Any]:
    """Return figures by place and all together; `delay_s`: the same for all transfers."""
    by: dict[str, Tally] = {}
    for name, place in collections.load(directory).items():
        worlds = world.worlds(place, runs)
        if delay_s is not None:
            worlds = (world.delayed(each, delay_s) for each in worlds)
        by[name] = tally(worlds, schedulers(), one_host=False)
    return {name: figures([each]) for name, each in by.items()} | {
        "all": figures(list(by.values()))
    }


@click.command()
@click.option("--days", "count", default=500, show_default=True, type=click.IntRange(10, 100_000))
@click.option("--places", "directory", type=click.Path(path_type=Path, exists=True))
@click.option("--out", required=True, type=click.Path(path_type=Path, file_okay=False))
@click.argument("parts", nargs=-1, type=click.Choice(PARTS))
def main(count: int, directory: Path | None, out: Path, parts: tuple[str, ...]) -> None:
    """Simulate; writes `cedos_PART.json` to a folder. PARTS: all without."""
    console.make_folder(out, "--out")
    fewer = count // 5
    drawn_days = {"days": count} | dict.fromkeys(_OF_FEWER_DAYS, fewer)
    for part in parts or PARTS:
        match part:
            case "figure6":
                found: dict[str, Any] = studies.figure6()
            case "days":
                found = many_days(count)
            case "delays":
                found = {str(each): many_days(fewer, each) for each in DELAYS_S}
            case "subway":
                found = studies.figure8()
            case "study":
                found = studies.table6(fewer, _SEED)
            case "idle_power":
                found = studies.figure7(fewer, _SEED)
            case _ if directory is None:
                raise click.UsageError("--places DIR is needed for the real places")
            case "places":
                found = at_places(directory, 20)
            case _:
                found = {str(each): at_places(directory, 5, each)["all"] for each in PLACE_DELAYS_S}
        known: dict[str, Any] = {"host": runs.describe(_SEED), "simulated": True}
        if part in drawn_days:
            known["days"] = _DAYS_OF_USER * -(-drawn_days[part] // _DAYS_OF_USER)
        text = json.dumps(known | found, indent=1, allow_nan=False)
        file = out / f"cedos_{part}.json"
        console.write(file, text + "\n")
        echo(f"{part}: {file}")


if __name__ == "__main__":
    main()

"""One scenario at several places: a run folder for each, and what they say together.

The start within each place is drawn from the seed and the place's name, never chosen by a result.
"""

import json
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec

from cedos.errors import ConfigError
from emu.places.places import Places
from emu.progress import Report
from emu.runs import environment, experiment, runs
from emu.runs.scenario import Scenario
from emu.runs.together import together


def expand(scenario: Scenario, places: Places) -> list[Scenario]:
    """The scenario resolved at each of its `places`; ConfigError where one is unknown or too short."""
    if scenario.place:
        raise ConfigError("a scenario has a place or places, not both")
    if scenario.duration_s <= 0:
        raise ConfigError("a scenario with several places needs a duration_s, the same for all")
    resolved = []
    for name in scenario.places:
        left_s = places[name].common_s - scenario.duration_s
        if left_s < 0:
            raise ConfigError(f"{name} is shorter than duration_s = {scenario.duration_s:g}")
        start_s = float(int(random.Random(f"{scenario.seed}/{name}").uniform(0, left_s)))
        one = msgspec.structs.replace(scenario, place=name, places=(), start_s=start_s)
        resolved.append(experiment.resolve(one, places))
    return resolved


def run(
    scenario: Scenario,
    places: Places,
    directory: Path,
    report: Report,
    tell: Callable[[str], None] = print,
) -> dict[str, Any]:
    """Runs the scenario at every place into `directory/PLACE`; returns what they say together.

    `directory/summary.json` holds the same. A run that is complete already is not repeated, so that an
    interrupted series goes on where it stopped.

    Raises:
        EmulationError: the testbed or a policy failed; the runs so far stay.
    """
    every = expand(scenario, places)
    directory.mkdir(parents=True, exist_ok=True)
    for number, one in enumerate(every):
        target = directory / one.place
        if _complete(target, one):
            continue
        tell(f"{one.place} ({number + 1} of {len(every)}): from second {one.start_s:g}")

        def part(share: float, what: str, number: int = number, place: str = one.place) -> None:
            report((number + share) / len(every), f"{place}: {what}")

        experiment.run(one, places, target, part)
    return write([directory / one.place for one in every], directory / "summary.json")


def write(folders: Sequence[Path], file: Path) -> dict[str, Any]:
    """Puts finished runs together and writes that; DataSetError where one is not finished."""
    recorded = [runs.read(folder) for folder in folders]
    summary = together(recorded)
    summary["environment"] = environment.describe(recorded[0].scenario.seed)
    file.write_text(json.dumps(summary, indent=1) + "\n")
    return summary


def _complete(folder: Path, scenario: Scenario) -> bool:
    if not (folder / "summary.json").exists():
        return False
    return runs.read(folder).scenario == scenario

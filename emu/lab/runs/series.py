"""One scenario at several places: a run folder for each, and what they say together.

The start within each place is drawn from the seed and the place's name, never chosen by a result.
"""

import json
import random
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from cedos.errors import ConfigError, EmulationError, PlaceError, TraceError
from emu.console.progress import Report
from emu.lab.runs import environment, experiment, runs
from emu.lab.runs.claim import claimed
from emu.lab.runs.combined import combine
from emu.lab.runs.scenario import Scenario
from emu.places.places import Places

_ATTEMPTS = 2


def expand(
    scenario: Scenario, places: Places, broken: dict[str, str] | None = None
) -> list[Scenario]:
    """Return the scenario resolved at each of its `places`; faults of the others go to `broken`.

    ConfigError where one is too short, PlaceError where one is unknown; without `broken` the first
    broken one is raised, too.
    """
    if scenario.place:
        raise ConfigError("a scenario has a place or places, not both")
    if scenario.duration_s <= 0:
        raise ConfigError("a scenario with several places needs a duration_s, the same for all")
    resolved = []
    for name in scenario.places:
        try:
            left_s = places[name].common_s - scenario.duration_s
        except (PlaceError, TraceError) as error:
            if broken is None or (name not in places and name not in places.broken):
                raise
            broken[name] = str(error)
            continue
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
    *,
    force: bool = False,
) -> dict[str, Any]:
    """Run the scenario at every place into `directory/PLACE` and return what they say together.

    `directory/summary.json` holds the same. A run that is complete already is not repeated, so that an
    interrupted series goes on where it stopped. A place whose run fails is tried again once, then left
    out and named in `failed`, as are places whose files are broken. With `force`, a finished run of
    another scenario is replaced.

    Raises:
        DataSetError: without `force`, a finished run of another scenario is there; or another run writes
            there.
        EmulationError: no place could be run.
    """
    failed: dict[str, str] = {}
    every = expand(scenario, places, failed)
    for name, problem in failed.items():
        tell(f"{name} is left out: {problem}")
    with claimed(directory):
        return _run(every, places, directory, report, tell, failed, force=force)


def _run(
    every: Sequence[Scenario],
    places: Places,
    directory: Path,
    report: Report,
    tell: Callable[[str], None],
    failed: dict[str, str],
    *,
    force: bool,
) -> dict[str, Any]:
    if not force:
        runs.refuse_finished(directory)
        for one in every:
            if not _complete(directory / one.place, one):
                runs.refuse_finished(directory / one.place)
    if (directory / "environment.json").exists():
        runs.make_way(directory)  # one run: with its files a series would be taken for it
    for number, one in enumerate(every):
        target = directory / one.place
        tell(f"{one.place} ({number + 1} of {len(every)}): from second {one.start_s:g}")

        def part(share: float, what: str, number: int = number, place: str = one.place) -> None:
            report((number + share) / len(every), f"{place}: {what}")

        attempts = 0
        while not _complete(target, one) and attempts < _ATTEMPTS:
            attempts += 1
            failed.pop(one.place, None)
            try:
                experiment.run(one, places, target, part)
            except EmulationError as error:
                failed[one.place] = str(error)
                tell(f"{one.place}: {error}")
            except (PlaceError, TraceError) as error:  # trying again would not help
                failed[one.place] = str(error)
                tell(f"{one.place} is left out: {error}")
                break
    done = [directory / one.place for one in every if one.place not in failed]
    if not done:
        raise EmulationError(f"no place could be run: {failed}")
    return write(done, directory / "summary.json", failed)


def write(
    folders: Sequence[Path], file: Path, failed: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """Put finished runs together and write that; DataSetError where one is not finished."""
    recorded = [runs.read(folder) for folder in folders]
    summary = combine(recorded)
    summary["failed"] = dict(failed or {})
    summary["environment"] = environment.describe(recorded[0].scenario.seed)
    file.write_text(json.dumps(summary, indent=1) + "\n")
    return summary


def _complete(folder: Path, scenario: Scenario) -> bool:
    if not (folder / "summary.json").exists():
        return False
    return runs.read(folder).scenario == scenario

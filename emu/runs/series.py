"""A series: one scenario at several places, with a run folder for each, and their figures together.

For Delphi's Figure 10: at each place and for each policy, S is the median throughput of its pages (or of
its videos' segments), and E the joules of the whole run for each received megabyte. S and S/E are
divided by those of the best policy at that place, the paper's "optimal ground truth" (section 9.1).
Intervals are bootstrapped over groups of places.
"""

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from cedos.errors import ConfigError, DataSetError, EmulationError, PlaceError, TraceError
from emu.places.places import Places
from emu.runs import experiment, runs
from emu.runs.runs import Recorded, claimed
from emu.runs.scenario import Scenario
from emu.statistics import Floats, Measure, Rows, measured
from emu.terminal import Report

BASELINE = "wifi-first"
RESAMPLES = 2000


def figures(recorded: Sequence[Recorded]) -> dict[str, Any]:
    """Return figures by policy over all runs of one scenario, and by place beneath.

    Runs of one place are put together. Intervals draw groups of places, whose names are equal up to the
    dash: several walks along one way are no independent evidence.
    DataSetError: a place has no page and no video.

    - `transfer_mean_s`, `censored`, `n`: all transfers together;
    - `reduction`: by how much the sum of transfer times is below the baseline's;
    - `reduction_by_place`: the median over places of that place's reduction;
    - `energy_mean_j`, `cellular_mean_mb`: of one repeat;
    - `max_s`, `max_s_per_e`: median over places of the normalised objective.
    """
    recorded = runs.by_place(recorded)
    if empty := [run.scenario.place for run in recorded if not (run.pages or run.segments)]:
        raise DataSetError(
            f"the runs of {', '.join(empty)} have no pages and no videos, which `series` is about;"
            " `mobility` is about other transfers"
        )
    places = {run.scenario.place: _by_policy(run) for run in recorded}
    policies = runs.policies_of_all(recorded)
    groups = np.array([name.partition("-")[0] for name in places])
    scores = {
        key: _normalised(places, policies, score)
        for key, score in (("max_s", _speed), ("max_s_per_e", _speed_per_energy))
    }
    found: dict[str, Any] = {}
    for number, policy in enumerate(policies):
        parts = [place[policy] for place in places.values()]
        base = [place[BASELINE] for place in places.values()] if BASELINE in policies else None
        found[policy] = _figures(parts, base, groups) | {
            name: value
            for key, table in scores.items()
            for name, value in _middle(key, table[:, number], groups).items()
        }
    return {
        "scenario": recorded[0].scenario.name,
        "synthetic": any(run.environment["synthetic"] for run in recorded),
        "policies": found,
        "places": {
            name: {policy: _place_figures(part) for policy, part in place.items()}
            | {"start_s": run.scenario.start_s}
            for (name, place), run in zip(places.items(), recorded, strict=True)
        },
    }


def lines(found: Mapping[str, Any]) -> Iterator[str]:
    for name, each in found["policies"].items():
        less = ""
        if "reduction_by_place" in each:
            low, high = (100 * end for end in each["reduction_by_place_ci95"])
            less = (
                f" {100 * each['reduction_by_place']:.0f} % less than {BASELINE} at the median place"
                f" [{low:.0f}, {high:.0f}],"
            )
        yield (
            f"{name}: {each['n']} transfers, mean {each['transfer_mean_s']:.2f} s,{less}"
            f" {each['energy_mean_j']:.0f} J, {each['cellular_mean_mb']:.1f} MB"
        )


def _by_policy(run: Recorded) -> dict[str, dict[str, Any]]:
    found = {}
    for policy in run.policies:
        pages = [row for row in run.pages if row["policy"] == policy]
        videos = [row for row in run.videos if row["policy"] == policy]
        segments = [row for row in run.segments if row["policy"] == policy]
        cut_s = {(row["repeat"], row["number"]): row["watched_s"] for row in videos}
        time_s, size_bytes, censored = [], [], 0
        for row in pages:
            time_s.append(row["transfer_s"])
            size_bytes.append(row["size_bytes"])
            censored += row["censored"]
        for row in segments:
            ended_s = row["ended_s"]
            censored += ended_s is None
            # A segment that was cut off lasts until the video's watching ended.
            ended_s = cut_s[row["repeat"], row["video"]] if ended_s is None else ended_s
            time_s.append(ended_s - row["started_s"])
            size_bytes.append(
                row["size_bytes"] or row["bitrate_bps"] * run.scenario.video[0].segment_s / 8
            )
        summary = run.summary["policies"][policy]
        found[policy] = {
            "time_s": np.array(time_s),
            "size_bytes": np.array(size_bytes, dtype=float),
            "stall_s": np.array([row["stall_s"] for row in videos]),
            "censored": int(censored),
            "energy_j": summary["energy_j"],
            "repeats": run.scenario.repeats,
            "cellular_mb": summary["cellular_mb"],
        }
    return found


def _speed(part: Mapping[str, Any]) -> float:
    return float(np.median(8e-6 * part["size_bytes"] / part["time_s"]))


def _speed_per_energy(part: Mapping[str, Any]) -> float:
    megabytes = part["size_bytes"].sum() / 1e6 / part["repeats"]
    joules_per_mb = float(part["energy_j"] / megabytes)
    return _speed(part) / joules_per_mb


def _normalised(
    places: Mapping[str, Mapping[str, Any]],
    policies: Sequence[str],
    score: Callable[[Mapping[str, Any]], float],
) -> Floats:
    """Return one row per place and one column per policy, the best of each row being 1."""
    table = np.array([[score(place[policy]) for policy in policies] for place in places.values()])
    return np.asarray(table / table.max(axis=1, keepdims=True), dtype=float)


def _figures(
    parts: Sequence[Mapping[str, Any]],
    base: Sequence[Mapping[str, Any]] | None,
    groups: NDArray[np.str_],
) -> dict[str, Any]:
    measures: dict[str, Measure] = {
        "transfer_mean_s": lambda rows: float(_all(parts, "time_s", rows).mean()),
    }
    if base is not None:
        measures["reduction"] = lambda rows: float(
            1 - _all(parts, "time_s", rows).mean() / _all(base, "time_s", rows).mean()
        )
        # The paper's measure is a median over places. The one above is over all pages.
        by_place = np.array(
            [1 - a["time_s"].mean() / b["time_s"].mean() for a, b in zip(parts, base, strict=True)]
        )
        measures["reduction_by_place"] = lambda rows: float(np.median(by_place[rows]))
    if all(len(part["stall_s"]) for part in parts):
        measures["stall_mean_s"] = lambda rows: float(_all(parts, "stall_s", rows).mean())
    figures: dict[str, Any] = {
        "n": sum(len(part["time_s"]) for part in parts),
        "censored": sum(part["censored"] for part in parts),
        "energy_mean_j": float(np.mean([part["energy_j"] for part in parts])),
        "cellular_mean_mb": float(np.mean([part["cellular_mb"] for part in parts])),
    }
    return figures | measured(
        measures, len(parts), np.random.default_rng(1), RESAMPLES, groups=groups
    )


def _all(parts: Sequence[Mapping[str, Any]], key: str, rows: Rows) -> Floats:
    return np.concatenate([parts[row][key] for row in rows])


def _middle(key: str, values: Floats, groups: NDArray[np.str_]) -> dict[str, Any]:
    median: dict[str, Measure] = {key: lambda rows: float(np.median(values[rows]))}
    draw = np.random.default_rng(1)
    return measured(median, len(values), draw, RESAMPLES, groups=groups)


def _place_figures(part: Mapping[str, Any]) -> dict[str, Any]:
    time_s = part["time_s"]
    return {
        "n": len(time_s),
        "transfer_mean_s": float(time_s.mean()),
        "mbps": _speed(part),
        "energy_j": part["energy_j"],
        "cellular_mb": part["cellular_mb"],
        "censored": part["censored"],
    }


def expand(
    scenario: Scenario, places: Places, broken: dict[str, str] | None = None
) -> list[Scenario]:
    """Return the scenario resolved at each of its `places`; errors of broken places go to `broken`.

    ConfigError: a place is too short. PlaceError: a place is unknown. Without `broken`, the error of the
    first broken place is raised, too.
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
        # A shorter place begins at its start, and its traces repeat.
        start_s = float(int(random.Random(f"{scenario.seed}/{name}").uniform(0, max(left_s, 0))))
        one = msgspec.structs.replace(scenario, place=name, places=(), start_s=start_s)
        resolved.append(experiment.resolve(one, places))
    return resolved


def run(
    scenario: Scenario,
    places: Places,
    directory: Path,
    report: Report,
    tell: Callable[[str], None] = print,
) -> list[Path]:
    """Run the scenario at each place into `directory/PLACE`; return the folders of finished runs.

    A run that is complete is not repeated, so that an interrupted series goes on where it stopped. A
    place whose run fails, or whose files are broken, is told and left out.

    DataSetError: a finished run of another scenario is there, or another run writes there.
    EmulationError: no place could be run.
    """
    broken: dict[str, str] = {}
    every = expand(scenario, places, broken)
    for name, problem in broken.items():
        tell(f"{name} is left out: {problem}")
    done = []
    with claimed(directory):
        runs.refuse_finished(directory)
        for one in every:
            if not _complete(directory / one.place, one):
                runs.refuse_finished(directory / one.place)
        if (directory / "environment.json").exists():
            runs.make_way(directory)  # a single run: the series would be taken for it
        for number, one in enumerate(every):
            target = directory / one.place
            tell(f"{one.place} ({number + 1} of {len(every)}): from second {one.start_s:g}")

            def part(share: float, what: str, number: int = number, place: str = one.place) -> None:
                report((number + share) / len(every), f"{place}: {what}")

            try:
                if not _complete(target, one):
                    experiment.run(one, places, target, part)
                done.append(target)
            except (EmulationError, PlaceError, TraceError) as error:
                tell(f"{one.place} is left out: {error}")
    if not done:
        raise EmulationError("no place could be run")
    return done


def _complete(folder: Path, scenario: Scenario) -> bool:
    if not (folder / "summary.json").exists():
        return False
    return runs.read(folder).scenario == scenario

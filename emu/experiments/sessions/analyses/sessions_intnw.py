"""IntNW's Figures 2.1 to 2.4: foreground latency and background throughput."""

import random
from collections.abc import Sequence
from functools import partial
from typing import Any

from cedos.errors import ConfigError
from emu.experiments.sessions import intnw
from emu.experiments.sessions.batches import in_batches
from emu.lab.data.folds import Progress
from emu.places.places import Places
from emu.statistics import student_ci95
from emu.testbed.access import Access


def run(
    places: Places,
    *,
    setting: str = "hotspot",
    applications: Sequence[str] = intnw.APPLICATIONS,
    strategies: Sequence[str] = intnw.STRATEGIES,
    trials: int = 5,
    seed: int = 1,
    scale: float = 1.0,
    sensing_s: float = 60.0,
    processes: int = 1,
    detection_s: float = 1.0,
    at_once: int = 12,
    limit_s: float = 200.0,
    progress: Progress = lambda share, what: None,
) -> dict[str, Any]:
    """Measures every application under every strategy.

    `places`: where `setting` is the name of one.
    `setting`: `hotspot` or `intermittent` (Table 2.3), or a place: then each trial begins at another
    second of it.
    `trials`: of each; trial k has the same networks, sizes and instants for all strategies.
    `scale`: the background's sizes are multiplied by it.
    `sensing_s`: how long the sensors run.
    `processes`: 2: the sensors' urgent messages and their data in a process each (Figure 2.4).
    `detection_s`: how late the client notices that a network is gone.
    `at_once`: so many trials at the same time, each in namespaces of its own.
    `limit_s`: a trial that takes longer is an error.

    Returns:
        `{"applications": {NAME: {STRATEGY: {"foreground_s", "background_mbps", ..., "trials"}}}}`.

    Raises:
        ConfigError: a parameter that cannot be used.
    """
    for application in applications:
        if application not in intnw.APPLICATIONS:
            raise ConfigError(f"no application {application!r}: {', '.join(intnw.APPLICATIONS)}")
    parts: list[dict[str, Any]] = [{}]
    if processes == 2:
        parts = [{"parts": ["urgent"]}, {"parts": ["bulk"]}]
        if tuple(applications) != ("sensing",):
            raise ConfigError('two processes: only applications = ["sensing"] is split like that')
    tasks = {}
    for number in range(seed, seed + trials):
        accesses = _accesses(places, setting, number)
        for application in applications:
            for strategy in strategies:
                options: dict[str, Any] = {"seed": number, "scale": scale}
                if application == "sensing":
                    options["duration_s"] = sensing_s
                trial = intnw.Trial(
                    strategy, application, accesses, options, parts, detection_s, limit_s
                )
                tasks[application, strategy, number] = partial(intnw.measure, trial)
    found = in_batches(tasks, at_once, progress)
    return {
        "setting": setting,
        "trials": trials,
        "seed": seed,
        "scale": scale,
        "processes": processes,
        "sensing_s": sensing_s,
        "detection_s": detection_s,
        "applications": {
            application: {
                strategy: summary(
                    [found[application, strategy, number] for number in range(seed, seed + trials)]
                )
                for strategy in strategies
            }
            for application in applications
        },
    }


def _accesses(places: Places, setting: str, number: int) -> dict[str, Access]:
    if setting == "hotspot":
        return intnw.hotspot()
    if setting == "intermittent":
        return intnw.intermittent(number)
    place = places[setting]
    return intnw.of_place(place, random.Random(number).uniform(0, place.common_s))


def summary(trials: Sequence[dict[str, Any]]) -> dict[str, Any]:
    waits = [sum(each["foreground_s"]) / len(each["foreground_s"]) for each in trials]
    seconds = [each["background_s"] for each in trials]
    rates = [8 * each["background_bytes"] / each["background_s"] / 1e6 for each in trials]
    figures: dict[str, Any] = {}
    for key, values in (
        ("foreground_s", waits),
        ("background_s", seconds),
        ("background_mbps", rates),
    ):
        figures[key], figures[f"{key}_ci95"] = student_ci95(values)
        figures[f"{key}_trials"] = [round(each, 4) for each in values]
    figures["foreground_worst_s"] = max(max(each["foreground_s"]) for each in trials)
    return figures

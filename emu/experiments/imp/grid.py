"""A grid of all strategies under all budgets on all places, beside the best simple strategy.

A budget is met where no trial took more. A simple strategy that meets it in all trials is what ours is
measured against: the one of them with the shortest mean fetch time. How much is to be gained at all says
one who knows what will be read, and in which order, and has no budget.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import msgspec
import numpy as np

from cedos.errors import ConfigError
from cedos.selector.prefetch.queue import Queue
from emu.data.folds import Progress
from emu.experiments.imp import workload
from emu.experiments.imp.demand import METERED, Budgets, ControllerName
from emu.experiments.imp.setting import Setting, setting
from emu.experiments.imp.simulate import Outcome, Trial
from emu.experiments.imp.workload import Workload, clairvoyant, simple
from emu.experiments.replayed_network import described
from emu.places.places import Places
from emu.statistics import beside, trials_figure

# The mean fetch time that is too short to notice. Below it no policy counts as faster.
_NOTHING_S = 0.02

SCENARIOS = ("energy", "data", "both")
CLAIRVOYANT = "clairvoyant"


class PlaceParameters(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A `[[parameters.place]]` table."""

    name: str  # what figures call it
    # Places of the collection, one after another.
    parts: Annotated[list[str], msgspec.Meta(min_length=1)]
    energy_j: float  # the budget of joules
    data_mb: float  # the budget of metered megabytes
    cellular: str = "3g"  # the device's radio that its cellular network has
    # What moves the prices; beyond the first one only with the first load.
    controllers: tuple[ControllerName, ...] = ("pacer",)
    # Draw the contacts with Wi-Fi anew (`emu.experiments.imp.setting`); the first part's networks.
    contacts_seed: int | None = None

    @classmethod
    def read(cls, given: Sequence[Mapping[str, Any]]) -> "list[PlaceParameters]":
        """From TOML; ConfigError names what is wrong."""
        try:
            return msgspec.convert(list(given), list[cls])  # type: ignore[valid-type]
        except msgspec.ValidationError as error:
            raise ConfigError(f"[[parameters.place]]: {error}") from error


@dataclass(frozen=True, slots=True)
class _Run:
    """A strategy on a place: its outcomes by trial, and the budgets that it had."""

    outcomes: list[Outcome]
    energy_j: float | None
    data_bytes: float | None

    def kept(self, energy_j: float | None, data_bytes: float | None) -> int:
        return sum(
            (energy_j is None or one.energy_j <= energy_j)
            and (data_bytes is None or one.data_bytes <= data_bytes)
            for one in self.outcomes
        )

    @property
    def fetch_s(self) -> list[float]:
        return [float(np.mean(one.fetch_s)) for one in self.outcomes]


def run(
    places: Places,
    *,
    application: Literal["email", "news"],
    place: list[dict[str, Any]],
    scale: float = 1.0,
    trials: int = 5,
    duration_s: float = 1200.0,
    detection_s: float = 3.0,
    device: str = "nexus-one",
    seed: int = 1,
    progress: Progress = lambda share, what: None,
) -> dict[str, Any]:
    """Try all strategies and budgets on all places: Figures 3.1 and 3.2 (e-mail), 3.4 and 3.5 (news).

    Of the news reader ours is tried with a class of hints per feed and with one for all.
    `place`: `[[parameters.place]]`: see `PlaceParameters`.
    `duration_s`: of a trial, and the budgets' period.

    Returns:
        `{"simulated", "places": {NAME: {"networks", "budgets", "strategies": {NAME: figures},
        "beside": {NAME: {...}}, "events": {...}}}}`.

    Raises:
        ConfigError: a `[[parameters.place]]` that cannot be used.
    """
    wanted = PlaceParameters.read(place)
    loads = _loads(application, scale)
    found: dict[str, Any] = {}
    for number, one in enumerate(wanted):
        there = setting(
            places, one.parts, device, one.cellular, detection_s, contacts_seed=one.contacts_seed
        )
        runs = _runs(one, there, loads, trials, duration_s, seed)
        results: dict[str, _Run] = {}
        for count, (name, make, energy_j, data_bytes) in enumerate(runs):
            progress((number + count / len(runs)) / len(wanted), f"{one.name}, {name}")
            results[name] = _Run([make(trial) for trial in range(trials)], energy_j, data_bytes)
        found[one.name] = {
            "parts": one.parts,
            "synthetic": there.synthetic,
            "contacts_drawn": one.contacts_seed is not None,
            "radios": f"{device}, {one.cellular}",
            "networks": _described(there),
            "budgets": {"energy_j": one.energy_j, "data_mb": one.data_mb},
            "strategies": {name: _figures(run) for name, run in results.items()},
            "beside": _beside(results),
            "events": _events(results),
        }
    return {
        "scale": scale,
        "simulated": True,
        "trials": trials,
        "duration_s": duration_s,
        "detection_s": detection_s,
        "seed": seed,
        "places": found,
    }


def _loads(application: str, scale: float) -> dict[str, Callable[[int], Workload]]:
    """Return the workload of a seed by the suffix of our strategies' names; simple ones use the first."""
    if application == "email":
        return {"": lambda number: workload.email(number, scale=scale)}
    return {
        "": lambda number: workload.news(number, scale=scale),
        "-one-class": lambda number: workload.news(number, scale=scale, classes=False),
    }


def _runs(
    one: PlaceParameters,
    place: Setting,
    loads: Mapping[str, Callable[[int], Workload]],
    trials: int,
    duration_s: float,
    seed: int,
) -> list[tuple[str, Callable[[int], Outcome], float | None, float | None]]:
    def runner(
        load: Callable[[int], Workload],
        queue: Callable[[Workload], Queue],
        energy_j: float | None = None,
        data_bytes: float | None = None,
        controller: ControllerName = "pacer",
    ) -> Callable[[int], Outcome]:
        def run(trial: int) -> Outcome:
            work = load(seed * 1000 + trial)
            start_s = float(np.random.default_rng([seed, trial]).uniform(0.0, place.period_s))
            budgets = Budgets(duration_s, energy_j, data_bytes, controller)
            return Trial(
                work,
                place.networks,
                place.radios,
                queue(work),
                budgets,
                place.averages,
                start_s=start_s,
                duration_s=duration_s,
            ).run()

        return run

    first = next(iter(loads.values()))

    def simply(name: str) -> Callable[[Workload], Queue]:
        return lambda work: simple(work.threshold_bytes)[name]()

    found: list[tuple[str, Callable[[int], Outcome], float | None, float | None]] = [
        (name, runner(first, simply(name)), None, None) for name in simple(0.0)
    ]
    found.append(("imp-free", runner(first, lambda work: Queue()), None, None))
    found.append((CLAIRVOYANT, runner(first, clairvoyant), None, None))
    for suffix, load in loads.items():
        for scenario in SCENARIOS:
            energy_j = one.energy_j if scenario != "data" else None
            data_bytes = one.data_mb * 1e6 if scenario != "energy" else None
            for controller in one.controllers:
                if suffix and controller != one.controllers[0]:
                    continue
                run = runner(load, lambda work: Queue(), energy_j, data_bytes, controller)
                found.append((f"imp-{scenario}-{controller}{suffix}", run, energy_j, data_bytes))
    return found


def _figures(run: _Run) -> dict[str, Any]:
    of = run.outcomes
    kept = run.kept(run.energy_j, run.data_bytes)
    budgeted = run.energy_j is not None or run.data_bytes is not None
    return {
        **trials_figure("fetch_s", run.fetch_s, 4),
        **trials_figure("energy_j", [one.energy_j for one in of], 2),
        **trials_figure("data_mb", [one.data_bytes / 1e6 for one in of], 3),
        "trials_energy_j": [round(one.energy_j, 1) for one in of],
        "trials_data_mb": [round(one.data_bytes / 1e6, 3) for one in of],
        "trials_fetch_s": [round(s, 4) for s in run.fetch_s],
        **({"met": kept, "of": len(of)} if budgeted else {}),
    }


def _beside(results: Mapping[str, _Run]) -> dict[str, Any]:
    """Ours beside the best simple strategy that meets the same budgets in all trials."""
    found: dict[str, Any] = {}
    for name, run in results.items():
        if run.energy_j is None and run.data_bytes is None:
            continue
        meeting = {
            other: results[other].fetch_s
            for other in simple(0.0)
            if results[other].kept(run.energy_j, run.data_bytes) == len(run.outcomes)
        }
        found[name] = {"meeting": list(meeting)}
        if meeting:
            best = min(meeting, key=lambda other: sum(meeting[other]))
            against = beside(run.fetch_s, meeting[best])
            found[name] |= {"best": best, **against}
            found[name]["times_better"] = times_better(run.fetch_s, meeting[best])
            found[name]["at_most"] = times_better(results[CLAIRVOYANT].fetch_s, meeting[best])
    return found


def times_better(ours: Sequence[float], theirs: Sequence[float]) -> float | None:
    """Return how many times longer the others wait; None where they hardly wait at all."""
    if float(np.mean(theirs)) < _NOTHING_S:
        return None
    return round(sum(theirs) / max(sum(ours), _NOTHING_S), 2)


def _events(results: Mapping[str, _Run]) -> dict[str, Any]:
    return {
        name: [
            [event.at_s, event.what, event.key, event.network] for event in run.outcomes[0].events
        ]
        for name, run in results.items()
        if name in ("imp-energy-pacer", "imp-data-pacer")
    }


def _described(place: Setting) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, network in place.networks.items():
        contacts = [[round(each.begin_s, 1), round(each.end_s, 1)] for each in network.contacts()]
        found[name] = described(network) | {"contacts": contacts, "metered": name in METERED}
    return found

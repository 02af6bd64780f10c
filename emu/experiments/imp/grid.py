"""A grid of all strategies under all budgets on all places, beside the best simple strategy.

A budget is met where no trial took more. A simple strategy that meets it in all trials is what ours is
measured against: the one of them with the shortest mean fetch time. How much is to be gained at all says
one who knows what will be read, and in which order, and has no budget.

Settings of the experiments: places, and a drive that is made of encounters.

The dissertation's drive had Wi-Fi for 27 % of the time, for 7 s in the median, and slow 3G. No collection
has such a drive, measured on both networks. Here the cellular trace and the Wi-Fi's rates are a place's
own, while its Wi-Fi is there only during contacts. These and the gaps between them are drawn from the
published distributions of vehicular Wi-Fi: the networks are real, and when they meet is not.
"""

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import mean, median
from typing import Annotated, Any, Literal, Protocol

import msgspec
import numpy as np

from cedos.errors import ConfigError
from cedos.selector.energy import Radio
from cedos.selector.prefetch.outlook import Average
from cedos.selector.prefetch.queue import Queue
from cedos.storage.model_files import radios
from emu.data.evaluate import Progress
from emu.experiments.imp import workload
from emu.experiments.imp.demand import METERED, Budgets, ControllerName
from emu.experiments.imp.simulate import Outcome, Trial
from emu.experiments.imp.workload import Workload, clairvoyant, simple
from emu.experiments.replayed_network import ReplayedNetwork, concatenated, described, joined
from emu.places.places import Place, Places
from emu.places.stats import OUTAGE_BPS, rates_bps, runs
from emu.places.synth_paths import CONTACT_S, GAP_S, interpolated
from emu.places.traces import Trace
from emu.statistics import beside, trials_figure
from emu.testbed.access import Access

# The mean fetch time that is too short to notice. Below it no policy counts as faster.
_NOTHING_S = 0.02
SCENARIOS = ("energy", "data", "both")
CLAIRVOYANT = "clairvoyant"


def drive(place: Place, seconds: int, seed: int) -> dict[str, Access]:
    """Return both networks of a drive of so many seconds; the cellular trace repeats if it is shorter.

    Errors: TraceError where a trace cannot be read.
    """
    drawn = random.Random(f"drive {seed}")
    contacts: list[tuple[float, float]] = []
    at_s = interpolated(GAP_S, drawn.uniform(0.05, 0.9))
    while at_s < seconds:
        length_s = interpolated(CONTACT_S, drawn.uniform(0.05, 0.9))
        contacts.append((at_s, min(at_s + length_s, float(seconds))))
        at_s += length_s + interpolated(GAP_S, drawn.uniform(0.05, 0.9))
    found = {}
    for name, network in place.networks.items():
        ways = [network.down] if network.up is network.down else [network.down, network.up]
        traces = [
            _within(way, contacts, seconds)
            if name == "wifi"
            else concatenated([way], [1000 * seconds])
            for way in ways
        ]
        found[name] = Access(network.kind, up=traces[-1], down=traces[0], rtt_s=network.rtt_s)
    return found


def _within(trace: Trace, contacts: list[tuple[float, float]], seconds: int) -> Trace:
    """Return the seconds with service of a trace, one after another, as often as contacts need them."""
    rates = rates_bps(trace, max(1, trace.period_ms // 1000))
    covered = np.flatnonzero(rates >= OUTAGE_BPS)
    second = np.maximum(trace.times_ms - 1, 0) // 1000
    times, used = [], 0
    for begin_s, end_s in contacts:
        at_ms, left_ms = round(begin_s * 1000), round((end_s - begin_s) * 1000)
        while left_ms > 0:
            source = int(covered[used % len(covered)])
            within = trace.times_ms[second == source] - source * 1000
            step_ms = min(left_ms, 1000)
            times.append(within[within <= step_ms] + at_ms)
            at_ms, left_ms, used = at_ms + step_ms, left_ms - step_ms, used + 1
    joined = np.sort(np.concatenate(times)) if times else np.empty(0, dtype=np.int64)
    return Trace(joined[joined < seconds * 1000], seconds * 1000)


_SLOWEST_BPS = 10_000.0


_DRIVE_S = 3600


_USUAL = 5


class _Downlink(Protocol):
    @property
    def down(self) -> Trace: ...

    @property
    def rtt_s(self) -> float: ...


@dataclass(frozen=True, slots=True)
class Setting:
    """A place of an experiment, ready to be replayed."""

    networks: dict[str, ReplayedNetwork]
    radios: dict[str, Radio]
    # What the host knows from before: the collection's other places, or another drive.
    averages: dict[str, Average]
    period_s: float  # then the traces repeat
    synthetic: bool  # whether any trace was generated


def setting(
    places: Places,
    parts: Sequence[str],
    device: str,
    cellular: str,
    detection_s: float,
    contacts_seed: int | None = None,
) -> Setting:
    """Return the places one after another (`emu.experiments.replayed_network`).

    With a seed of contacts, the first place's networks with drawn ones
    (`emu.experiments.imp.grid`). Errors: PlaceError, TraceError.
    """
    chosen = [places[name] for name in parts]
    if contacts_seed is None:
        accesses = joined(chosen)
        groups = {place.group for place in chosen}
        others = [place.networks for place in places.values() if place.group not in groups]
        past: list[Mapping[str, _Downlink]] = list(others or [chosen[0].networks])
    else:
        accesses = drive(chosen[0], _DRIVE_S, contacts_seed)
        # Other contacts past other access points: yesterday's drive.
        past = [drive(chosen[0], _DRIVE_S, contacts_seed + 1000)]
    known = radios()[device]
    return Setting(
        {name: ReplayedNetwork(one, detection_s=detection_s) for name, one in accesses.items()},
        {"wifi": known["wifi"], "cellular": known[cellular]},
        {name: averages([one[name] for one in past]) for name in accesses},
        accesses["wifi"].down.period_s,
        any(place.synthetic for place in chosen),
    )


def averages(networks: Sequence[_Downlink]) -> Average:
    """Return what a network is like on average over places, each of which counts the same."""
    there, per_bit, rtts, absences = [], [], [], []
    for network in networks:
        rates = rates_bps(network.down, max(1, int(network.down.period_s)))
        up = rates >= OUTAGE_BPS
        there.append(float(up.mean()))
        if up.any():
            # Fetches last for some seconds: rates are those of so many (`simulate.USUAL_S`).
            usual = np.convolve(rates, np.ones(_USUAL) / _USUAL, mode="same")[up]
            per_bit.append(float((1.0 / np.maximum(usual, _SLOWEST_BPS)).mean()))
        rtts.append(network.rtt_s)
        absences += [length for _, length in runs(~up)]
    return Average(
        mean(there), mean(per_bit), median(rtts), float(np.mean(absences)) if absences else 0.0
    )


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
    # Draw the contacts with Wi-Fi anew (`emu.experiments.imp.grid`); the first part's networks.
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

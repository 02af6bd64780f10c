"""Offloaded computations in virtual time: utterances, a server that others use too, a device.

Sound is sent when it was spoken, so its length is known; the dissertation's recogniser listens along
and must guess it (4.4.3.2). Other users come to the server by a Poisson process whose rate is such that,
without us, a given number of them are there on average (an M/G/1 queue with processor sharing:
N = rho / (1 - rho)).

The cost of a computation: a linear function of its parameters, fitted to how it went before.

Seconds or joules (dissertation, 4.4.2: application compute time, application energy usage); the
application names the parameters and tells their values with each observation.
"""

import math
import random
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite, nan
from typing import Protocol

import numpy as np

from emu.experiments.meatballs.trial import (
    Agenda,
    Client,
    Policy,
    Race,
    SimulatedNetwork,
    Usage,
    play,
)
from emu.experiments.replayed_network import ReplayedNetwork
from predictors.base import Distribution, Measurement
from predictors.error import ErrorHistory, steady

# The bytes of one second of recorded sound.
BYTES_PER_S = 20_000
LOCAL, REMOTE = "local", "remote"
WIFI = "wifi"
UTTERANCES = 20
LENGTHS_S = (1.0, 8.0)
EVERY_S = 30.0
ANSWER_BYTES = 200
VALUE = "value"
# A value outside these bounds is no measurement.
_LEAST, _LARGEST = 1e-12, 1e12
_RUNS = 100
_FADING = 0.97
# By how much of its value a run misses the line, and by how much of it the prior may be wrong.
_SCATTER, _UNSURE = 0.1, 0.5
# The least prediction, as a share of the smallest observed value. A line may cross zero.
_LEAST_SHARE = 0.05


class ComputePredictor:
    """Predicts one quantity of a computation; itself a `Predictor`.

    Args:
        name: the quantity's, in its measurements: relative to what the line says, so that one history
            of errors serves all values of the parameters.
        typical: what is predicted before the first run.
    """

    def __init__(
        self, parameters: Sequence[str], name: str = "compute", typical: float = 1.0
    ) -> None:
        self.name = name
        self.features: Sequence[str] = (*parameters, "at_s")
        self._parameters = tuple(parameters)
        self._typical = typical
        self.errors = self.history()  # how wrong its predictions were
        self._runs: deque[tuple[tuple[float, ...], float]] = deque(maxlen=_RUNS)
        self._line: tuple[float, ...] | None = None

    @staticmethod
    def history() -> ErrorHistory:
        """Return an empty history of its errors, which age does not widen.

        A processor does not wander as a radio does; how much the load of a shared one changes from run
        to run is in the errors already.
        """
        return ErrorHistory(growth=steady)

    def observe(
        self, parameters: Mapping[str, float], value: float, at_s: float
    ) -> list[Measurement]:
        """Learn from a run: its parameters, and what it took (seconds, joules).

        A run with an unknown parameter, or without a positive value, is left out.
        """
        point = self._point(parameters)
        if point is None or not _LEAST <= value <= _LARGEST:
            return []
        off = 1.0
        if self._runs:
            off = value / self.point(parameters)
            self.errors.add(off, 1.0, at_s)
        self._runs.append((point, value))
        self._line = None
        return [Measurement(self.name, off, 1.0, at_s)]

    def point(self, parameters: Mapping[str, float]) -> float:
        """Return the expected value; an unknown parameter counts as its average."""
        if not self._runs:
            return self._typical
        if self._line is None:
            self._line = _line(self._runs)
        means = [
            sum([point[k] for point, _ in self._runs]) / len(self._runs)
            for k in range(len(self._parameters))
        ]
        known = [parameters.get(name, nan) for name in self._parameters]
        at = [x if abs(x) <= _LARGEST else mean for x, mean in zip(known, means, strict=True)]
        found = self._line[0] + sum([b * x for b, x in zip(self._line[1:], at, strict=True)])
        least = _LEAST_SHARE * min(value for _, value in self._runs)
        return max(found, least) if isfinite(found) else least

    def predict(self, features: Mapping[str, float], /) -> dict[str, Distribution]:
        """Predict a run with these parameters, begun at `at_s` (default: right after the last)."""
        now_s = features.get("at_s", nan)
        return {VALUE: self.errors.distribution(now_s).scale(self.point(features))}

    def _point(self, parameters: Mapping[str, float]) -> tuple[float, ...] | None:
        point = tuple([parameters.get(name, nan) for name in self._parameters])
        return point if all(abs(each) <= _LARGEST for each in point) else None


def _line(runs: Sequence[tuple[tuple[float, ...], float]]) -> tuple[float, ...]:
    """Constant and slopes of the least squares of *relative* errors, newer runs first.

    Relative ones, because it is by these that predictions are judged, and because long runs would
    rule otherwise. Until the runs tell it, a constant and every parameter are each taken to cause an
    equal share: two runs of nearly the same length, a little noise apart, say nothing of longer ones.
    """
    size = len(runs[0][0]) + 1
    scales = [sum([abs(point[k]) for point, _ in runs]) / len(runs) or 1.0 for k in range(size - 1)]
    level = sum([value for _, value in runs]) / len(runs)
    matrix = [[0.0] * size for _ in range(size)]
    right = [0.0] * size
    for age, (point, value) in enumerate(reversed(runs)):
        row = [1.0, *(x / scale for x, scale in zip(point, scales, strict=True))]
        weight = _FADING**age * (level / value) ** 2
        for i, left in enumerate(row):
            right[i] += weight * left * value / level
            for j, other in enumerate(row):
                matrix[i][j] += weight * left * other
    for i in range(size):
        matrix[i][i] += (_SCATTER / _UNSURE) ** 2
        right[i] += (_SCATTER / _UNSURE) ** 2 / size
    try:
        found: list[float] = np.linalg.solve(matrix, right).tolist()
    except np.linalg.LinAlgError:  # one run is so much shorter that the others have no weight left
        found = np.linalg.lstsq(matrix, right)[0].tolist()
    return (
        level * found[0],
        *(level * b / scale for b, scale in zip(found[1:], scales, strict=True)),
    )


@dataclass(frozen=True, slots=True)
class Utterance:
    """An utterance: some seconds of speech, spoken to its end at `at_s`."""

    number: int
    at_s: float
    length_s: float

    @property
    def up_bytes(self) -> int:
        return round(self.length_s * BYTES_PER_S)

    @property
    def size_bytes(self) -> int:
        return self.up_bytes + ANSWER_BYTES


def utterances(duration_s: float, seed: int) -> Sequence[Utterance]:
    """Return the same 20 utterances of 1 to 8 s again and again, one each 30 s (4.5.5.2)."""
    rng = random.Random(f"utterances:{seed}")
    lengths = [round(rng.uniform(*LENGTHS_S), 2) for _ in range(UTTERANCES)]
    count = int((duration_s - lengths[0]) / EVERY_S) + 1
    return [
        Utterance(k, k * EVERY_S + lengths[k % UTTERANCES], lengths[k % UTTERANCES])
        for k in range(count)
    ]


# Draw the seconds of another user's task on the idle processor.
Work = Callable[[random.Random], float]


def utilisation(concurrent: float) -> float:
    """Return the share of the time for which a processor is busy that so many share on average."""
    return concurrent / (1.0 + concurrent)


def arrivals(
    duration_s: float,
    concurrent: tuple[float, float],
    mean_work_s: float,
    work: Work,
    seed: int,
) -> Sequence[tuple[float, float]]:
    """Return when others come and their work in seconds, from before the trial to its end.

    `duration_s`: of the trial, from 0.
    `concurrent`: how many are there on average, at the beginning and at the end.
    `mean_work_s`: what `work` draws on average.
    """
    rng = random.Random(f"load:{seed}")
    # The load has been there for two minutes when the trial begins.
    found, at_s = [], -120.0
    first, last = concurrent
    highest = utilisation(max(first, last)) / mean_work_s
    while highest > 0:
        at_s += rng.expovariate(highest)
        if at_s >= duration_s:
            break
        share = min(max(at_s / duration_s, 0.0), 1.0)
        rate = utilisation(first + share * (last - first)) / mean_work_s
        # Thinned: the rate changes, the highest one does not.
        if rng.random() * highest < rate:
            found.append((at_s, work(rng)))
    return found


class SharedProcessor:
    """When a task of ours would be done that comes at some instant, with everybody else there.

    Our own tasks do not meet each other: they come one after the other.

    Args:
        others: instants and work, in order of time.
    """

    def __init__(self, others: Sequence[tuple[float, float]]) -> None:
        self._others = others

    def concurrent(self, at_s: float) -> int:
        return len(self._until(at_s)[0])

    def finished_s(self, at_s: float, work_s: float) -> float:
        """Return when a task with so much work that comes at `at_s` is done."""
        left, next_index = self._until(at_s)
        now_s, ours = at_s, work_s
        while True:
            sharing = len(left) + 1
            least = min([ours, *left])
            due_s = now_s + least * sharing
            comes_s = (
                self._others[next_index][0] if next_index < len(self._others) else float("inf")
            )
            if due_s <= comes_s:
                if ours <= least:
                    return due_s
                ours -= least
                left = [each - least for each in left if each - least > 1e-12]
                now_s = due_s
            else:
                done = (comes_s - now_s) / sharing
                ours -= done
                left = [each - done for each in left] + [self._others[next_index][1]]
                now_s = comes_s
                next_index += 1

    def _until(self, at_s: float) -> tuple[list[float], int]:
        """Return the others' work that is left at an instant, and who comes next."""
        left: list[float] = []
        now_s = at_s
        for index, (comes_s, work_s) in enumerate(self._others):
            if comes_s > at_s:
                return _served(left, at_s - now_s) if left else left, index
            if left:
                left = _served(left, comes_s - now_s)
            left.append(work_s)
            now_s = comes_s
        return _served(left, at_s - now_s) if left else left, len(self._others)


def _served(left: list[float], for_s: float) -> list[float]:
    """Return what is left of some work after the processor was shared among it for a while."""
    ascending = sorted(left)
    served = 0.0
    while ascending:
        sharing = len(ascending)
        step_s = (ascending[0] - served) * sharing
        if step_s > for_s:
            served += for_s / sharing
            break
        for_s -= step_s
        served = ascending.pop(0)
    return [each - served for each in ascending]


class ComputePolicy(Policy[Utterance], Protocol):
    """A policy that is also told how long the computation alone took."""

    def computed(self, task: Utterance, way: str, compute_s: float, now_s: float) -> None:
        """Learn how long the computation alone took; called right before the answer."""
        ...


@dataclass(frozen=True, slots=True)
class Speeds:
    """Seconds of processor time for an utterance: `base_s + per_s * length`, by way, and its spread."""

    base_s: Mapping[str, float]  # whatever the length
    per_s: Mapping[str, float]  # for each second of speech
    spread: float = 0.0  # standard deviation of a computation's time, as a share of it

    def work_s(self, way: str, length_s: float, number: int) -> float:
        """Return seconds on an otherwise idle processor; the same for the same number."""
        # A deterministic draw that needs no state: halves of a golden-ratio sequence.
        unit = (number * 0.6180339887498949 + (0.5 if way == REMOTE else 0.0)) % 1.0
        wobble = self.spread * math.sqrt(3.0) * (2.0 * unit - 1.0)
        return (self.base_s[way] + self.per_s[way] * length_s) * (1.0 + wobble)


def simulate(
    tasks: Sequence[Utterance],
    wifi: ReplayedNetwork,
    server: SharedProcessor,
    speeds: Speeds,
    policy: ComputePolicy,
    usage: Usage,
    *,
    start_s: float = 0.0,
    duration_s: float,
) -> tuple[list[Race[Utterance]], float]:
    """Simulate one trial; return the records, and the seconds for which the device computed.

    `wifi`: the network that leads to the server.
    `server`: its processor; its clock is the trial's.
    `speeds`: of the device and of the server alone.
    `start_s`: the second of the replay at which the trial begins.
    """
    agenda = Agenda()
    network = SimulatedNetwork(agenda, WIFI, wifi, usage, start_s)
    carrier = SimulatedOffload(agenda, network, server, speeds, policy)
    carrier.client.on_attach(LOCAL, 0.0)
    network.follow(carrier.client, REMOTE)
    return play(agenda, carrier.client, tasks, duration_s=duration_s), carrier.busy_s


class SimulatedOffload:
    def __init__(
        self,
        agenda: Agenda,
        network: SimulatedNetwork,
        server: SharedProcessor,
        speeds: Speeds,
        policy: ComputePolicy,
    ) -> None:
        self._agenda, self._network, self._server, self._speeds = agenda, network, server, speeds
        self._policy = policy
        self._began_s: dict[int, float] = {}
        self.busy_s = 0.0
        self.client = Client(policy, self.start, self.cancel)

    def start(self, task: Utterance, way: str, now_s: float) -> None:
        work_s = self._speeds.work_s(way, task.length_s, task.number)
        if way == LOCAL:
            self._began_s[task.number] = now_s
            self._agenda.at(now_s + work_s, lambda at_s: self._computed_here(task, at_s))
            return
        self._network.start(
            task.number,
            task.up_bytes,
            ANSWER_BYTES,
            now_s,
            lambda at_s, compute_s: self._answered(task, way, compute_s, at_s),
            lambda at_s: self._server.finished_s(at_s, work_s) - at_s,
        )

    def cancel(self, task: Utterance, way: str, now_s: float) -> None:
        """Stop the processor at once."""
        if way == LOCAL:
            self.busy_s += now_s - self._began_s.pop(task.number)
        else:
            self._network.cancel(task.number, now_s)

    def _computed_here(self, task: Utterance, at_s: float) -> None:
        began_s = self._began_s.pop(task.number, None)
        if began_s is not None:
            self.busy_s += at_s - began_s
            self._answered(task, LOCAL, at_s - began_s, at_s)

    def _answered(self, task: Utterance, way: str, compute_s: float, at_s: float) -> None:
        self._policy.computed(task, way, compute_s, at_s)
        self.client.on_answer(task.number, way, at_s)

"""The evaluators' interface: ways to do a thing, uncertain quantities, and the choice among them.

Meatballs' strategies (dissertation, 4.4.1) need not be networks: the same evaluators choose where a
computation runs. A way's time is a sum, each term a function of one predicted quantity, so a
quantity's 50 errors cost 50 calls and not one for each combination of errors.

`Trusting` takes predictions as the truth, like Meatballs' adaptive baseline (4.5.5).
"""

from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import inf, isfinite, isnan, log
from typing import ClassVar

from cedos.selector.objective import Objective, Outcome, WeightedCost
from predictors.base import Distribution, Measurement
from predictors.error import ErrorHistory


@dataclass(frozen=True, slots=True)
class Term:
    """A part of a way's time: seconds, as a monotonic function of one quantity's value."""

    quantity: str
    of: Callable[[float], float]


@dataclass(frozen=True, slots=True)
class Way:
    """A way to do the thing."""

    name: str
    terms: tuple[Term, ...] = ()  # the uncertain parts of its time
    fixed_s: float = 0.0  # the certain part
    watts: float = 0.0  # joules per second while it goes on
    fixed_j: float = 0.0  # further joules (a radio's tail)
    metered_bytes: float = 0.0  # the bytes that it uses of the data plan
    # For how long it can go on, in seconds from now (the rest of a dwell time); None: as long as it
    # takes.
    lasting: Distribution | None = None
    # Seconds lost if it cannot go on for long enough: for noticing that, and for doing it another way
    # from the start.
    detour_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Redundant:
    """Several ways at once: the first to end counts, and all of them are paid.

    `called_off`: whether the others are stopped then; else each goes on to its own end.
    """

    name: str
    parts: tuple[str, ...]
    called_off: bool = False


@dataclass(frozen=True, slots=True)
class Judged:
    """The expected cost of a way from now on; all of it infinite if it is unknown.

    `low_s` and `high_s` bound the method's interval of the time: 90 % of the probability (brute
    force, Bayesian), the prediction interval (error bounds), or the point itself (trusting).
    """

    name: str
    time_s: float
    low_s: float
    high_s: float
    energy_j: float
    metered_bytes: float
    cost: float


@dataclass(frozen=True, slots=True)
class Choice:
    """The way of least cost, and all of them as they were judged."""

    name: str
    evaluations: tuple[Judged, ...]

    @property
    def chosen(self) -> Judged:
        return next(each for each in self.evaluations if each.name == self.name)


# The strategies that run without an answer so far, by name, with their seconds. Their use is spent.
Running = Mapping[str, float]


@lru_cache(maxsize=4096)
def network_terms(
    network: str,  # the name its predictor has
    size_bytes: float,  # bytes carried, both ways
    round_trips: float = 1.0,  # how many latencies pass before the last byte
) -> tuple[Term, Term]:
    """Return the terms of an exchange over a network, by `predictors.network`'s quantities."""
    bits = 8.0 * size_bytes
    return (
        Term(f"{network}.bandwidth", lambda bps: bits / bps),
        Term(f"{network}.latency", lambda latency_s: round_trips * latency_s),
    )


# The number of choices that are kept.
_KEPT = 64
# A quantity outside these bounds is no information.
_LEAST, _LARGEST = 1e-15, 1e15

# The step of the logarithm of the age after which a kept choice is computed anew.
_AGE_STEP = 0.05
_NOTHING: Running = {}
_ONLY_TIME = WeightedCost()


class Known:
    """A quantity: its prediction, and the errors of past predictions."""

    __slots__ = ("errors", "prediction")

    def __init__(self, errors: ErrorHistory) -> None:
        self.prediction: float | None = None
        self.errors = errors


class Evaluator(ABC):
    """A method of taking uncertainty into account (dissertation, 4.3).

    It keeps the errors of the quantities that the ways depend on.

    Quantities are positive numbers, which the caller names. A value that is not positive and finite is
    no information; a way that depends on a quantity without a prediction has an infinite cost.
    """

    name: ClassVar[str]

    def __init__(
        self, history: Callable[[str], ErrorHistory] = lambda quantity: ErrorHistory()
    ) -> None:
        self._history = history
        self._known: dict[str, Known] = {}
        self._version = 0
        self._changed_at_s = -inf
        self._choices: OrderedDict[object, Choice] = OrderedDict()

    def predict(self, quantity: str, value: float, at_s: float) -> None:
        if _is_number(value):
            self._of(quantity).prediction = value
            self._on_change(at_s)

    def on_measured(self, quantity: str, value: float, prediction: float, at_s: float) -> None:
        """Record the measured value of a quantity, and its next prediction."""
        known = self._of(quantity)
        if _is_number(value):
            self._learn(quantity, known, value, at_s)
        if _is_number(prediction):
            known.prediction = prediction
        self._on_change(at_s)

    def learn(self, measurements: Iterable[Measurement]) -> None:
        for each in measurements:
            self.on_measured(*each)

    def reset(self, quantities: Iterable[str], at_s: float) -> None:
        """Forget the errors of these quantities, as behind a new access point.

        Their predictions stay until the next one comes.
        """
        for quantity in quantities:
            self._of(quantity).errors.reset(at_s)
        self._on_change(at_s)

    def choose(
        self,
        ways: Sequence[Way | Redundant],  # those there are, at least one that is not redundant
        objective: Objective = _ONLY_TIME,  # what is best; not one that looks at sizes
        now_s: float = 0.0,  # the instant, for the age of what is known
        # Ways under way that have not answered yet. For them all figures are those of what is still
        # to come.
        running: Running = _NOTHING,
    ) -> Choice:
        """Return the way of least cost; of equals the first.

        ValueError: no way, two of one name, or a redundant one whose parts are not among them.
        """
        # Errors fade slowly: a choice is kept until something changed, or its age grew by a step.
        age_s = now_s - self._changed_at_s
        age = round(log(1.0 + age_s) / _AGE_STEP) if 0.0 < age_s < inf else 0
        key = (tuple(ways), objective, age, tuple(running.items()), self._version)
        found = self._choices.get(key)
        if found is None:
            found = self._choices[key] = self._chosen(ways, objective, now_s, running)
            if len(self._choices) > _KEPT:
                self._choices.popitem(last=False)
        return found

    def _chosen(
        self, ways: Sequence[Way | Redundant], objective: Objective, now_s: float, running: Running
    ) -> Choice:
        # Check that names are unique and that the parts of redundant ways exist.
        singles = {way.name: way for way in ways if isinstance(way, Way)}
        redundant = [way for way in ways if isinstance(way, Redundant)]
        if not singles or len({way.name for way in ways}) != len(ways):
            raise ValueError("an evaluator needs ways with names of their own, one not redundant")
        for way in redundant:
            if not way.parts or not set(way.parts) <= singles.keys():
                raise ValueError(f"{way.name} has parts that are no ways: {', '.join(way.parts)}")
        found = self._judge(singles, redundant, objective, now_s, running)
        evaluations = tuple([found[way.name] for way in ways])
        return Choice(min(evaluations, key=lambda each: each.cost).name, evaluations)

    @abstractmethod
    def _judge(
        self,
        ways: Mapping[str, Way],
        redundant: Sequence[Redundant],
        objective: Objective,
        now_s: float,
        running: Running,
    ) -> dict[str, Judged]:
        """Return every way's evaluation, by name."""

    def _learn(self, quantity: str, known: Known, value: float, at_s: float) -> None:
        if known.prediction is not None and known.errors.add(value, known.prediction, at_s):
            # Gathered now, so that no decision has to wait for it.
            known.errors.distribution(at_s)

    def _of(self, quantity: str) -> Known:
        known = self._known.get(quantity)
        if known is None:
            known = self._known[quantity] = Known(self._history(quantity))
        return known

    def _on_change(self, at_s: float) -> None:
        self._version += 1
        self._choices.clear()
        if isfinite(at_s):
            self._changed_at_s = max(self._changed_at_s, at_s)


def unknown(name: str) -> Judged:
    """Return the evaluation of a way that is unknown."""
    return Judged(name, inf, inf, inf, inf, inf, inf)


def judge(
    objective: Objective,
    name: str,
    times_s: tuple[float, float, float],
    energy_j: float,
    metered_bytes: float,
) -> Judged:
    """Return the evaluation of a way by its expected time and bounds (in this order)."""
    cost = objective.cost(Outcome(times_s[0], energy_j, metered_bytes, 0.0))
    return Judged(name, *times_s, energy_j, metered_bytes, inf if isnan(cost) else cost)


def use_left(way: Way, time_s: float, elapsed_s: float | None) -> tuple[float, float]:
    """Return the joules and metered bytes still to be used by a way that takes `time_s` from now on."""
    # A running way is prolonged, not begun: its tail and its bytes are spent already.
    if elapsed_s is None:
        return way.fixed_j + way.watts * time_s, way.metered_bytes
    return way.watts * time_s, 0.0


def _is_number(value: float) -> bool:
    return _LEAST <= value <= _LARGEST


class Trusting(Evaluator):
    """An evaluator without errors: the way predicted first is first, so hedging never pays."""

    name: ClassVar[str] = "trusting"

    def _judge(
        self,
        ways: Mapping[str, Way],
        redundant: Sequence[Redundant],
        objective: Objective,
        now_s: float,
        running: Running,
    ) -> dict[str, Judged]:
        return judge_by_points(
            ways, redundant, objective, running, lambda name: self._of(name).prediction
        )


def judge_by_points(
    ways: Mapping[str, Way],
    redundant: Sequence[Redundant],
    objective: Objective,
    running: Running,
    value: Callable[[str], float | None],
) -> dict[str, Judged]:
    """Return the evaluations of all ways by one value of each quantity."""
    found = {}
    for name, way in ways.items():
        time_s = time_of(way, value)
        if time_s is None:
            found[name] = unknown(name)
            continue
        # What a running way has waited already is no part of its future.
        time_s = max(time_s - running.get(name, 0.0), 0.0)
        # A way that ends before it is done costs the detour as well.
        if way.lasting is not None and (end_s := way.lasting.quantile(0.5)) < time_s:
            time_s = end_s + way.detour_s
        found[name] = _summary(name, time_s, [(way, time_s)], objective, running)
    for both in redundant:
        parts = [(ways[name], found[name].time_s) for name in both.parts]
        first_s = min(time_s for _, time_s in parts)
        # The parts that lose are stopped when the first one answers.
        if both.called_off:
            parts = [(way, first_s) for way, _ in parts]
        found[both.name] = (
            _summary(both.name, first_s, parts, objective, running)
            if all(isfinite(time_s) for _, time_s in parts)
            else unknown(both.name)
        )
    return found


def time_of(way: Way, value: Callable[[str], float | None]) -> float | None:
    """Return a way's time for one value of each quantity; None if it is no number."""
    time_s = way.fixed_s
    for term in way.terms:
        at = value(term.quantity)
        if at is None:
            return None
        try:
            time_s += term.of(at)
        except (ArithmeticError, ValueError):
            return None
    return time_s if isfinite(time_s) and time_s >= 0.0 else None


def _summary(
    name: str,
    time_s: float,
    parts: Sequence[tuple[Way, float]],
    objective: Objective,
    running: Running,
) -> Judged:
    used = [use_left(way, of_s, running.get(way.name)) for way, of_s in parts]
    energy_j, metered_bytes = sum([each[0] for each in used]), sum([each[1] for each in used])
    return judge(objective, name, (time_s, time_s, time_s), energy_j, metered_bytes)

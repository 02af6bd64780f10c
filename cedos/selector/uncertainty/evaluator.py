"""What all evaluators have in common: what is known of quantities, and how a choice is made of costs."""

from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from math import inf, isfinite, isnan, log
from typing import ClassVar, NamedTuple

from cedos.selector.objective import Objective, Outcome, WeightedCost
from cedos.selector.rounded import rounded
from cedos.selector.uncertainty.ways import Choice, Judged, Redundant, Running, Way
from predictors.base import Distribution, Measurement
from predictors.error import ErrorHistory

_KEPT = 64
_LEAST, _LARGEST = 1e-15, 1e15
"""Quantities beyond are no numbers that anything could be told from."""

_AGE_STEP = 0.05
_NOTHING: Running = {}
_ONLY_TIME = WeightedCost()


class SingleCandidate(NamedTuple):
    """A network that could carry a transfer alone: what that is expected to cost, and its radio."""

    outcome: Outcome
    time: Distribution
    watts: float


class Known:
    """One quantity: what is predicted of it, and how wrong that was so far."""

    __slots__ = ("errors", "prediction")

    def __init__(self, errors: ErrorHistory) -> None:
        self.prediction: float | None = None
        self.errors = errors


class Evaluator(ABC):
    """One of Meatballs' methods of taking uncertainty (dissertation, 4.3).

    Decisions on transfers, whose times predictors tell as distributions, ask the class (`times`,
    `cost_of_sending_twice`). An object chooses among ways of any kind (`choose`), and keeps the errors of
    the quantities that they depend on.

    Quantities are positive numbers with names of the caller's. What is not a positive finite number
    is taken for no information, never for a value; a way that depends on a quantity without a
    prediction costs infinitely much.

    Attributes:
        name: as the configuration has it.
        words: what people are told of it.
    """

    name: ClassVar[str]
    words: ClassVar[str]

    def __init__(
        self, history: Callable[[str], ErrorHistory] = lambda quantity: ErrorHistory()
    ) -> None:
        self._history = history
        self._known: dict[str, Known] = {}
        self._version = 0
        self._changed_at_s = -inf
        self._choices: OrderedDict[object, Choice] = OrderedDict()

    @classmethod
    def times(cls, predicted: Mapping[str, Distribution]) -> Mapping[str, Distribution]:
        """The predicted times of strategies, as the method takes them."""
        return predicted

    @classmethod
    def cost_of_sending_twice(
        cls, objective: Objective, candidates: Sequence[SingleCandidate]
    ) -> float | None:
        """What sending the same over all candidates is reckoned to cost; None: what is expected."""
        return None

    def predict(self, quantity: str, value: float, at_s: float) -> None:
        if _is_number(value):
            self._of(quantity).prediction = value
            self._changed(at_s)

    def measured(self, quantity: str, value: float, prediction: float, at_s: float) -> None:
        """Takes what a quantity turned out to be, and what is predicted of it from now on."""
        known = self._of(quantity)
        if _is_number(value):
            self._learn(quantity, known, value, at_s)
        if _is_number(prediction):
            known.prediction = prediction
        self._changed(at_s)

    def learn(self, measurements: Iterable[Measurement]) -> None:
        for each in measurements:
            self.measured(*each)

    def reset(self, quantities: Iterable[str], at_s: float) -> None:
        """What was seen of these quantities says nothing any more, as behind a new access point.

        Their predictions stay until the next one comes.
        """
        for quantity in quantities:
            self._of(quantity).errors.reset(at_s)
        self._changed(at_s)

    def choose(
        self,
        ways: Sequence[Way | Redundant],
        objective: Objective = _ONLY_TIME,
        now_s: float = 0.0,
        running: Running = _NOTHING,
    ) -> Choice:
        """The way of least cost; of equals the first.

        Args:
            ways: those there are, at least one that is not redundant.
            objective: what is best; not one that looks at sizes.
            now_s: the instant, for the age of what is known.
            running: ways under way that have not answered yet. For them all figures are those of what
                is still to come.

        Raises:
            ValueError: no way, two of one name, or a redundant one whose parts are not among them.
        """
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
        singles = {way.name: way for way in ways if isinstance(way, Way)}
        redundant = [way for way in ways if isinstance(way, Redundant)]
        if not singles or len({way.name for way in ways}) != len(ways):
            raise ValueError("an evaluator needs ways with names of their own, one not redundant")
        for way in redundant:
            if not way.parts or not set(way.parts) <= singles.keys():
                raise ValueError(f"{way.name} has parts that are no ways: {', '.join(way.parts)}")
        found = self._judge(singles, redundant, objective, now_s, running)
        evaluations = tuple([found[way.name] for way in ways])
        best = min(evaluations, key=lambda each: each.cost)
        rivals = [each for each in evaluations if each.name in singles and each is not best]
        rival = min(rivals, key=lambda each: each.cost, default=None)
        return Choice(best.name, evaluations, _why(best, rival, redundant, running))

    @abstractmethod
    def _judge(
        self,
        ways: Mapping[str, Way],
        redundant: Sequence[Redundant],
        objective: Objective,
        now_s: float,
        running: Running,
    ) -> dict[str, Judged]:
        """Every way's evaluation, by name."""

    def _learn(self, quantity: str, known: Known, value: float, at_s: float) -> None:
        if known.prediction is not None and known.errors.add(value, known.prediction, at_s):
            # Gathered now, so that no decision has to wait for it.
            known.errors.distribution(at_s)

    def _of(self, quantity: str) -> Known:
        known = self._known.get(quantity)
        if known is None:
            known = self._known[quantity] = Known(self._history(quantity))
        return known

    def _changed(self, at_s: float) -> None:
        self._version += 1
        self._choices.clear()
        if isfinite(at_s):
            self._changed_at_s = max(self._changed_at_s, at_s)


def unknown(name: str) -> Judged:
    """The evaluation of a way of which nothing can be said."""
    return Judged(name, inf, inf, inf, inf, inf, inf)


def judged(
    objective: Objective,
    name: str,
    times_s: tuple[float, float, float],
    energy_j: float,
    metered_bytes: float,
) -> Judged:
    """The evaluation of a way by its expected time and the bounds of that (in this order)."""
    cost = objective.cost(Outcome(times_s[0], energy_j, metered_bytes, 0.0))
    return Judged(name, *times_s, energy_j, metered_bytes, inf if isnan(cost) else cost)


def spent(way: Way, time_s: float, elapsed_s: float | None) -> tuple[float, float]:
    """Joules and metered bytes still to be used by a way that takes `time_s` from now on."""
    if elapsed_s is None:
        return way.fixed_j + way.watts * time_s, way.metered_bytes
    return way.watts * time_s, 0.0


def _is_number(value: float) -> bool:
    return _LEAST <= value <= _LARGEST


def _why(
    best: Judged, rival: Judged | None, redundant: Sequence[Redundant], running: Running
) -> str:
    if not isfinite(best.cost):
        return f"{best.name}: nothing is known of any way"
    waited = ", ".join(
        f"{name} has not answered for {rounded(for_s)} s" for name, for_s in running.items()
    )
    lead = f"{waited}; " if waited else ""
    lead += f"{best.name}: {rounded(best.time_s, 3)} s expected"
    if rival is None or not isfinite(rival.cost):
        return lead
    if any(best.name == way.name for way in redundant):
        saved, more = (
            rival.time_s - best.time_s,
            best.cost - best.time_s - rival.cost + rival.time_s,
        )
        return (
            f"{lead}, hedged: {rounded(max(saved, 0.0))} s sooner than {rival.name} alone"
            f" ({rounded(rival.time_s, 3)} s), for joules and bytes worth {rounded(max(more, 0.0))} s"
        )
    return f"{lead}, cost {rounded(best.cost, 3)} against {rounded(rival.cost, 3)} of {rival.name}"

"""Bayesian estimation: the quantities, given the decision of the predictors (dissertation, 4.3.3).

The prior of a quantity is a histogram of its measurements. The evidence is the way that the
predictions favour; its likelihood is how often they favoured that way just before measurements like
these. So the method learns how right *decisions* were, not predictions. Cells of the joint
histogram that were never observed have no likelihood, and only the others are visited.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from math import exp, floor, inf, log
from typing import ClassVar

from cedos.selector.objective import Objective
from cedos.selector.uncertainty.brute_force import HIGH, LOW, BruteForce
from cedos.selector.uncertainty.evaluator import (
    Judged,
    Known,
    Redundant,
    Running,
    Way,
    judge,
    judge_by_points,
    time_of,
    unknown,
    use_left,
)
from cedos.selector.uncertainty.times import cut_off
from predictors.error import FADING, ErrorHistory

_TIDY_AFTER = 50

# The width of a bin in logarithms: a quarter, or 10 bins for a factor of ten.
_STEP = log(1.25)

# Measurements with a smaller weight relative to the newest are dropped: those older than 130.
_NEGLIGIBLE = 0.02

# A cell of the joint histogram: the bin of each quantity, sorted by name.
Cell = tuple[tuple[str, int], ...]


class Bayesian(BruteForce):
    """Posterior distributions of the quantities. Without any history it goes by the errors' prior."""

    name: ClassVar[str] = "bayesian"

    def __init__(
        self, history: Callable[[str], ErrorHistory] = lambda quantity: ErrorHistory()
    ) -> None:
        super().__init__(history)
        # Histogram of each quantity: bin -> its weight, and the mean of the logarithms in it.
        self._priors: dict[str, dict[int, list[float]]] = {}
        self._latest: dict[str, int] = {}
        # Cell -> how often each way was the predictions' favourite in it.
        self._likelihood: dict[Cell, dict[str, float]] = {}
        # The weight of a new observation: it grows, in place of all older ones fading.
        self._unit = 1.0
        self._until_tidy = _TIDY_AFTER
        self._asked: tuple[Mapping[str, Way], Objective] | None = None

    def reset(self, quantities: Iterable[str], at_s: float) -> None:
        # Cells that contain a forgotten quantity say nothing any more.
        gone = set(quantities)
        for quantity in gone:
            self._priors.pop(quantity, None)
            self._latest.pop(quantity, None)
        self._likelihood = {
            cell: of
            for cell, of in self._likelihood.items()
            if gone.isdisjoint(quantity for quantity, _ in cell)
        }
        super().reset(gone, at_s)

    def _learn(self, quantity: str, known: Known, value: float, at_s: float) -> None:
        # The favourite before this measurement is the evidence that it came with.
        decision = self._decision()
        super()._learn(quantity, known, value, at_s)
        at = floor(log(value) / _STEP)
        prior = self._priors.setdefault(quantity, {})
        # Prior: the histogram of the quantity, older values fading.
        for number, each in list(prior.items()):
            if number != at:
                each[0] *= FADING
                if each[0] < _NEGLIGIBLE:
                    del prior[number]
        weight, middle = prior.get(at, (0.0, 0.0))
        # A bin stands for the mean of what fell into it.
        prior[at] = [weight + 1.0, middle + (log(value) - middle) / (weight + 1.0)]
        self._latest[quantity] = at
        # Likelihood: how often this cell came with this favourite.
        if decision is not None:
            cell = tuple(sorted(self._latest.items()))
            of = self._likelihood.setdefault(cell, {})
            # The newest weighs most (see `_unit`).
            of[decision] = of.get(decision, 0.0) + self._unit
            self._unit /= FADING
            self._tidy()

    def _tidy(self) -> None:
        # Bring all weights back to a unit of 1, and drop cells that hardly count any more.
        self._until_tidy -= 1
        if self._until_tidy > 0:
            return
        self._until_tidy = _TIDY_AFTER
        self._likelihood = {
            cell: {decision: weight / self._unit for decision, weight in of.items()}
            for cell, of in self._likelihood.items()
            if sum(of.values()) > _NEGLIGIBLE * self._unit
        }
        self._unit = 1.0

    def _decision(self) -> str | None:
        """Return the way that predictions favour now, among those of the last choice."""
        if self._asked is None:
            return None
        ways, objective = self._asked
        found = judge_by_points(ways, (), objective, {}, self._prediction)
        best = min(found.values(), key=lambda each: each.cost)
        return best.name if best.cost < inf else None

    def _prediction(self, quantity: str) -> float | None:
        known = self._known.get(quantity)
        return None if known is None else known.prediction

    def _judge(
        self,
        ways: Mapping[str, Way],
        redundant: Sequence[Redundant],
        objective: Objective,
        now_s: float,
        running: Running,
    ) -> dict[str, Judged]:
        # Without evidence the errors' prior decides.
        self._asked = (ways, objective)
        masses, cells = self._posterior(ways, now_s)
        times_of = {
            name: of
            for name, way in ways.items()
            if (of := self._case_times(way, cells)) is not None
        }
        if not cells or len(times_of) < len(ways):
            return super()._judge(ways, redundant, objective, now_s, running)
        # A running way has not answered: only cells with longer times remain (4.3.4).
        for name, elapsed_s in running.items():
            if name in times_of:
                agreeing = [
                    mass if time > elapsed_s else 0.0
                    for mass, time in zip(masses, times_of[name], strict=True)
                ]
                if any(agreeing):
                    masses = agreeing
                    times_of[name] = [max(time - elapsed_s, 0.0) for time in times_of[name]]
                else:
                    # It runs for longer than in any cell: the rest is as long again (as `remaining`).
                    times_of[name] = [elapsed_s] * len(masses)
        # A contact may end before.
        for name, way in ways.items():
            if way.lasting is not None:
                times_of[name] = [
                    cut_off(time, way.lasting, way.detour_s) for time in times_of[name]
                ]
        # Expected time and use of each way, then of each redundant one by its first part.
        found = {
            name: _summary(
                name, times_of[name], masses, [(way, times_of[name])], objective, running
            )
            for name, way in ways.items()
        }
        for both in redundant:
            first = [
                min(case) for case in zip(*[times_of[name] for name in both.parts], strict=True)
            ]
            parts = [
                (ways[name], first if both.called_off else times_of[name]) for name in both.parts
            ]
            found[both.name] = _summary(both.name, first, masses, parts, objective, running)
        return found

    def _posterior(
        self, ways: Mapping[str, Way], now_s: float
    ) -> tuple[list[float], list[Mapping[str, int]]]:
        """Return the possible cells, each by its bins, and the likelihood of each."""
        needed = {term.quantity for way in ways.values() for term in way.terms}
        evidence = self._decision()
        every = sum([sum(of.values()) for of in self._likelihood.values()])
        if evidence is None or not every or not needed or not needed <= self._latest.keys():
            return [], []
        # `usual` is how often this favourite came in all cells: what it says without any cell.
        usual = sum([of.get(evidence, 0.0) for of in self._likelihood.values()]) / every
        # Evidence from old predictions says less: in the end, nothing.
        kept = exp(-max([self._of(quantity).errors.added_variance(now_s) for quantity in needed]))
        masses: list[float] = []
        cells: list[Mapping[str, int]] = []
        for cell, of in self._likelihood.items():
            bins = dict(cell)
            if not needed <= bins.keys():
                continue
            # Likelihood of the evidence in this cell, times the priors of its bins.
            mass = kept * of.get(evidence, 0.0) / sum(of.values()) + (1.0 - kept) * usual
            for quantity in needed:
                known = self._priors[quantity].get(bins[quantity])
                mass *= known[0] if known else 0.0
            if mass > 0.0:
                masses.append(mass)
                cells.append(bins)
        return masses, cells

    def _case_times(self, way: Way, cells: Sequence[Mapping[str, int]]) -> list[float] | None:
        """Return a way's time in each cell; None if one is no number."""
        times = [way.fixed_s] * len(cells)
        for term in way.terms:
            at = [bins[term.quantity] for bins in cells]
            middles = {number: exp(self._priors[term.quantity][number][1]) for number in set(at)}
            alone = Way(way.name, (term,))
            of = {number: time_of(alone, {term.quantity: m}.get) for number, m in middles.items()}
            if None in of.values():
                return None
            times = [time + (of[number] or 0.0) for time, number in zip(times, at, strict=True)]
        return times


def _summary(
    name: str,
    times: Sequence[float],
    masses: Sequence[float],
    parts: Sequence[tuple[Way, Sequence[float]]],
    objective: Objective,
    running: Running,
) -> Judged:
    # All expectations are weighted by the posterior masses of the cells, and so are the quantiles below.
    total = sum(masses)

    def mean(values: Sequence[float]) -> float:
        return sum([mass * value for mass, value in zip(masses, values, strict=True)]) / total

    if not total > 0.0:
        return unknown(name)
    time_s = mean(times)
    used = [use_left(way, mean(of), running.get(way.name)) for way, of in parts]
    energy_j, metered_bytes = sum([each[0] for each in used]), sum([each[1] for each in used])
    ascending = sorted(zip(times, masses, strict=True))
    bounds = []
    for q in (LOW, HIGH):
        reached = 0.0
        for time, mass in ascending:
            reached += mass
            if reached >= q * total:
                bounds.append(time)
                break
        else:
            bounds.append(ascending[-1][0])
    return judge(objective, name, (time_s, bounds[0], bounds[1]), energy_j, metered_bytes)

"""Brute force: every combination of past errors, each as likely as it was (dissertation, 4.3.1).

The result is exact for ways of two quantities, without enumerating the joint outcomes of several
ways (`times`). Ways that share a quantity (a computation's length, say) are not independent: each
of its values is a case of its own.
"""

from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import product
from math import isfinite
from typing import ClassVar

from cedos.selector.objective import Objective
from cedos.selector.uncertainty.evaluator import (
    Evaluator,
    Judged,
    Redundant,
    Running,
    Way,
    judge,
    unknown,
    use_left,
)
from cedos.selector.uncertainty.times import (
    gather,
    interrupt,
    mean,
    mean_of_first,
    quantile,
    remaining,
    sums_of,
    survival_of_first,
)
from predictors.error import SLICES, slice_means

LOW, HIGH = 0.05, 0.95
_CASES = 10


class BruteForce(Evaluator):
    name: ClassVar[str] = "brute-force"

    def _judge(
        self,
        ways: Mapping[str, Way],
        redundant: Sequence[Redundant],
        objective: Objective,
        now_s: float,
        running: Running,
    ) -> dict[str, Judged]:
        # The values of the quantities; and, for ways not begun yet, those values that the silence of the
        # running ways leaves possible.
        values = self._values(ways, now_s)
        told = _given_silence(ways, values, running)
        times = {
            name: _times(way, values if name in running else told, running.get(name))
            for name, way in ways.items()
        }
        found = {}
        # Ways alone are sorted lists of times.
        for name, way in ways.items():
            of = times[name]
            if not of:
                found[name] = unknown(name)
                continue
            mean_s = mean(of)
            energy_j, metered_bytes = use_left(way, mean_s, running.get(name))
            times_s = mean_s, of[int(LOW * len(of))], of[int(HIGH * len(of))]
            found[name] = judge(objective, name, times_s, energy_j, metered_bytes)
        # Redundant ways: the first of several lists.
        for both in redundant:
            parts = [ways[name] for name in both.parts]
            if not all(times[name] for name in both.parts):
                # One that cannot be judged adds nothing that could be counted on.
                found[both.name] = unknown(both.name)
                continue
            times_s = _time_of_first(parts, values, times, running)
            energy_j = metered_bytes = 0.0
            for way in parts:
                time_s = times_s[0] if both.called_off else found[way.name].time_s
                joules, carried = use_left(way, time_s, running.get(way.name))
                energy_j += joules
                metered_bytes += carried
            found[both.name] = judge(objective, both.name, times_s, energy_j, metered_bytes)
        return found

    def _values(self, ways: Mapping[str, Way], now_s: float) -> dict[str, Sequence[float]]:
        """Return the equally likely values of the quantities that the ways depend on, if predicted."""
        found: dict[str, Sequence[float]] = {}
        for way in ways.values():
            for term in way.terms:
                known = self._known.get(term.quantity)
                if (
                    term.quantity not in found
                    and known is not None
                    and known.prediction is not None
                ):
                    point = known.prediction
                    ratios = known.errors.distribution(now_s).samples
                    found[term.quantity] = [point * ratio for ratio in ratios]
        return found


def _given_silence(
    ways: Mapping[str, Way], values: Mapping[str, Sequence[float]], running: Running
) -> Mapping[str, Sequence[float]]:
    """Return the quantities' values, conditioned on the silence of the running ways.

    A computation that has not answered yet is probably a long one, wherever else it is begun.
    """
    changed: dict[str, Sequence[float]] = {}
    for name in running.keys() & ways.keys():
        others = {t.quantity for way in ways.values() if way.name != name for t in way.terms}
        for quantity in {term.quantity for term in ways[name].terms} & others & values.keys():
            # Weigh each value by the probability that the running way would still be silent with it.
            given = [(value, {**values, quantity: [value]}) for value in values[quantity]]
            weighted = [
                (value, weight)
                for value, case in given
                if (weight := _likelihood([ways[name]], case, running)) > 0.0
            ]
            if weighted:
                changed[quantity] = slice_means(weighted, SLICES)
    return {**values, **changed}


def _times(way: Way, values: Mapping[str, Sequence[float]], elapsed_s: float | None) -> list[float]:
    """Return the equally likely rests of a way, ascending; empty if they are unknown."""
    # Each term gets all values of its quantity. If it fails for one of them, the time is unknown.
    parts = []
    for term in way.terms:
        of = values.get(term.quantity)
        if of is None:
            return []
        try:
            parts.append([*map(term.of, of)])
        except (ArithmeticError, ValueError):
            return []
    # All sums; then the rests of those still possible; then the end of a contact.
    times = sums_of(way.fixed_s, parts)
    if times and elapsed_s is not None:
        times = remaining(times, elapsed_s)
    if times and way.lasting is not None and isfinite(way.detour_s):
        times = interrupt(times, way.lasting, way.detour_s)
    return times


def _time_of_first(
    parts: Sequence[Way],
    values: Mapping[str, Sequence[float]],
    times: Mapping[str, list[float]],
    running: Running,
) -> tuple[float, float, float]:
    """Return the mean and the 90 % interval of the time of the first of several ways."""
    lists = [times[way.name] for way in parts]
    low, high = min(each[0] for each in lists), min(each[-1] for each in lists)
    shared = _shared_quantities(parts)
    # Fast path: independent lists. Else each value of the shared quantities is a case of its own,
    # weighted by the probability that the running ways are still silent.
    if not shared:
        survival = survival_of_first(lists)
        mean_s = mean_of_first(lists)
    else:
        cases = []
        for case in product(*[gather(sorted(values[name]), _CASES) for name in shared]):
            given = {**values, **{name: [value] for name, value in zip(shared, case, strict=True)}}
            weight = _likelihood(parts, given, running)
            if weight > 0.0:
                cases.append((weight, [_times(way, given, running.get(way.name)) for way in parts]))
        cases = cases or [(1.0, lists)]
        total = sum([weight for weight, _ in cases])
        mean_s = sum([weight * mean_of_first(case) for weight, case in cases]) / total
        functions = [(weight / total, survival_of_first(case)) for weight, case in cases]
        low = min(each[0] for _, case in cases for each in case)
        high = max(min(each[-1] for each in case) for _, case in cases)
        survival = _mix(functions)
    return mean_s, quantile(survival, LOW, low, high), quantile(survival, HIGH, low, high)


def _shared_quantities(parts: Sequence[Way]) -> list[str]:
    """Return the quantities that more than one of the ways depend on."""
    seen: set[str] = set()
    twice: dict[str, None] = {}
    for way in parts:
        mine = {term.quantity for term in way.terms}
        twice.update(dict.fromkeys(sorted(mine & seen)))
        seen |= mine
    return list(twice)


def _likelihood(
    parts: Sequence[Way], values: Mapping[str, Sequence[float]], running: Running
) -> float:
    """Return the probability that no running way has answered yet, given the shared values."""
    product_of = 1.0
    for way in parts:
        times = _times(replace(way, lasting=None), values, None)
        if not times:
            return 0.0
        elapsed_s = running.get(way.name)
        if elapsed_s is not None:
            product_of *= 1.0 - bisect_right(times, elapsed_s) / len(times)
    return product_of


def _mix(functions: Sequence[tuple[float, Callable[[float], float]]]) -> Callable[[float], float]:
    return lambda time_s: sum([weight * each(time_s) for weight, each in functions])

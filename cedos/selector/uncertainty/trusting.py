"""The trusting oracle: predictions taken for the truth, as Meatballs' adaptive baseline does (4.5.5)."""

from collections.abc import Callable, Mapping, Sequence
from math import isfinite
from typing import ClassVar

from cedos.selector.objective import Objective
from cedos.selector.uncertainty.evaluator import Evaluator, judged, spent, unknown
from cedos.selector.uncertainty.ways import Judged, Redundant, Running, Way
from predictors.base import Distribution


class Trusting(Evaluator):
    """No errors: the first of several ways is the one predicted to be, so hedging never pays."""

    name: ClassVar[str] = "trusting"
    words: ClassVar[str] = "Uncertainty: ignored, predictions are taken as certain"

    @classmethod
    def times(cls, predicted: Mapping[str, Distribution]) -> Mapping[str, Distribution]:
        return {name: Distribution((time.quantile(0.5),)) for name, time in predicted.items()}

    def _judge(
        self,
        ways: Mapping[str, Way],
        redundant: Sequence[Redundant],
        objective: Objective,
        now_s: float,
        running: Running,
    ) -> dict[str, Judged]:
        return trusted(ways, redundant, objective, running, lambda name: self._of(name).prediction)


def trusted(
    ways: Mapping[str, Way],
    redundant: Sequence[Redundant],
    objective: Objective,
    running: Running,
    value: Callable[[str], float | None],
) -> dict[str, Judged]:
    """All ways judged by one value of each quantity."""
    found = {}
    for name, way in ways.items():
        time_s = time_of(way, value)
        if time_s is None:
            found[name] = unknown(name)
            continue
        time_s = max(time_s - running.get(name, 0.0), 0.0)
        if way.lasting is not None and (end_s := way.lasting.quantile(0.5)) < time_s:
            time_s = end_s + way.detour_s
        found[name] = _summary(name, time_s, [(way, time_s)], objective, running)
    for both in redundant:
        parts = [(ways[name], found[name].time_s) for name in both.parts]
        first_s = min(time_s for _, time_s in parts)
        if both.called_off:
            parts = [(way, first_s) for way, _ in parts]
        found[both.name] = (
            _summary(both.name, first_s, parts, objective, running)
            if all(isfinite(time_s) for _, time_s in parts)
            else unknown(both.name)
        )
    return found


def time_of(way: Way, value: Callable[[str], float | None]) -> float | None:
    """A way's time for one value of each quantity; None where it is no number."""
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
    used = [spent(way, of_s, running.get(way.name)) for way, of_s in parts]
    energy_j, metered_bytes = sum([each[0] for each in used]), sum([each[1] for each in used])
    return judged(objective, name, (time_s, time_s, time_s), energy_j, metered_bytes)

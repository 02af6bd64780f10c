"""A place never seen becomes known: rows in the order of their starts, with what was learned before.

Only the strategy that was chosen is learned from, and only once its transfer has ended: rows that
start together know nothing of each other.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from cedos.selector.objective import Objective
from emu.lab.data.choices import cedos_choice
from emu.lab.data.datasets import DataSet
from predictors.adapt import Adaptive
from predictors.base import Distribution
from predictors.completion import CompletionModel

FIRST = 30
"""Transfers after which a place should be its own."""


class _Here:
    """An adaptive model at one place, as the selector asks it."""

    def __init__(self, adaptive: Adaptive, place: str) -> None:
        self._adaptive, self._place = adaptive, place

    @property
    def features(self) -> Sequence[str]:
        return self._adaptive.features

    def predict(self, features: Mapping[str, float], /) -> dict[str, Distribution]:
        return self._adaptive.predict(features, self._place)


@dataclass(frozen=True, slots=True)
class Walk:
    """What was chosen at each row, and how many transfers of its place had been decided on before."""

    names: list[str]
    before: NDArray[np.intp]
    predicted: list[dict[str, Distribution]]


def walk(
    data: DataSet,
    rows: Sequence[Mapping[str, float]],
    models: Sequence[CompletionModel],
    objective: Objective,
) -> Walk:
    """Plays every place from its first start to its last.

    `models` has for each row the one that may judge it; a place begins with that of its first row.
    """
    names = [""] * len(data)
    before = np.zeros(len(data), dtype=np.intp)
    predicted: list[dict[str, Distribution]] = [{} for _ in names]
    times_s = data.times_s
    starts = data.numbers["start_s"]
    places = data.texts["place"]
    for place in np.unique(places):
        here = np.nonzero(places == place)[0]
        here = here[np.argsort(starts[here], kind="stable")]
        adaptive = Adaptive(models[here[0]])
        view = _Here(adaptive, str(place))
        running: list[tuple[float, int]] = []
        for number, index in enumerate(here.tolist()):
            now_s = float(starts[index])
            for end_s, ended in sorted(each for each in running if each[0] <= now_s):
                name = names[ended]
                adaptive.update(rows[ended], name, float(times_s[name][ended]), str(place), end_s)
            running = [each for each in running if each[0] > now_s]
            name = cedos_choice(rows[index], view, objective, data.strategies)
            names[index], before[index] = name, number
            predicted[index] = view.predict(rows[index])
            running.append((now_s + float(times_s[name][index]), index))
    return Walk(names, before, predicted)

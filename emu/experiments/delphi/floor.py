"""The limit of choices: what noise, chance and places leave to any policy.

Two independent measurements of the same instants bound it from above: the best choices of the one, told
the future as it were, are scored on the other. And a model that knows a place from its other instants,
earlier and later ones, shows what could ever be learned there.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cedos.selector.objective import Objective
from emu import ROOT
from emu.data import datasets
from emu.data.choices import cedos_choices, energies_j, policy_outcome
from emu.data.choices import costs as costs_of
from emu.data.datasets import DataSet
from emu.data.evaluate import OBJECTIVES, Progress, examples_of, models_by_group
from emu.experiments.delphi.prediction import whole
from emu.statistics import Bootstrap, Floats, mean, ratio
from predictors.completion import CompletionModel
from predictors.training.examples import USUAL

# The number of transfers after which a place should be known.
FIRST = 30

_FOLDS = 10
# Steady: both networks alone took at most so many times as long or as short as naively expected.
_STEADY = 2.0
_WITHIN = 1.1 * (1.0 + 1e-9)
_NONE = np.zeros(0, dtype=np.intp)
_SAME = ("start_s", "size_bytes", "direction_up")


@dataclass(frozen=True, slots=True)
class _Costs:
    """Costs and times of every strategy at every row: shape (rows, strategies)."""

    cost: Floats
    time_s: Floats

    def take(self, rows: NDArray[Any]) -> "_Costs":
        return _Costs(self.cost[rows], self.time_s[rows])

    def regret(self, choice: NDArray[np.intp]) -> Floats:
        found: Floats = _picked(self.cost, choice) / self.cost.min(axis=1) - 1.0
        return found

    def judged(self, choice: NDArray[np.intp], bootstrap: Bootstrap) -> dict[str, Any]:
        best_s = _picked(self.time_s, self.cost.argmin(axis=1))
        regret = self.regret(choice)
        return {
            "n": len(choice),
            **bootstrap.figure("within10_share", mean(regret + 1.0 <= _WITHIN)),
            **bootstrap.figure("regret_mean", mean(regret)),
            **bootstrap.figure("mean_s_over_oracle", ratio(_picked(self.time_s, choice), best_s)),
        }


def run(
    data: DataSet, second: str = "", progress: Progress = lambda share, what: None
) -> dict[str, Any]:
    """Our choices at places left out, by kind of transfer, beside what bounds them.

    `data`: rows with the times of all strategies; others are left out.
    `second`: another measurement of (some of) the same instants, relative to the repository.

    Returns:
        By objective: `kinds` (figures of cedos by kind of transfer, of all, and of those in
        `second`); `told` (rows measured twice, all and steady: cedos, and the oracle of each
        measurement scored on the other); `places` (mean regret after `FIRST` transfers of a place, never
        seen and known, and the share that knowing it takes away). Beside them `noise`, how far two
        measurements of a time lie apart.
    """
    data = whole(data)
    groups = data.texts["group"]
    examples = examples_of(data, groups)
    rows = [examples.row(k) for k in range(len(data))]
    # Models of other groups, and models that know the place from its other instants.
    unseen = models_by_group(data, examples, USUAL, progress, most_folds=_FOLDS)
    instants = examples.instants
    assert instants is not None
    known = models_by_group(data, examples_of(data, instants), USUAL, progress, most_folds=_FOLDS)
    # Pair the rows that were measured twice.
    other = whole(datasets.read(ROOT / second)) if second else None
    here, there = measured_twice(data, other) if other is not None else (_NONE, _NONE)
    steady = _steady_rows(data, rows, unseen)
    kinds = _kinds(data, here)
    later = _later(data)
    found: dict[str, Any] = {"rows": len(data)}
    for name, objective in OBJECTIVES.items():
        # Judge the choices by kind of transfer.
        costs = _costs(data, objective)
        chosen = _choices(data, rows, unseen, objective)
        at_known = _choices(data, rows, known, objective)
        of: dict[str, Any] = {"kinds": {}}
        for kind, mask in kinds.items():
            of["kinds"][kind] = costs.take(mask).judged(chosen[mask], Bootstrap(groups[mask]))
        if other is not None and len(here):
            # An oracle told of the other measurement bounds what any policy can reach.
            ours, theirs = costs.take(here), _costs(other, objective).take(there)
            of["told"] = {
                label: _told(
                    ours.take(mask), theirs.take(mask), chosen[here][mask], groups[here][mask]
                )
                for label, mask in (("all", np.full(len(here), True)), ("steady", steady[here]))
            }
        if later.any():
            of["places"] = _learnable(
                costs.regret(chosen)[later], costs.regret(at_known)[later], groups[later]
            )
        found[name] = of
    if other is not None and len(here):
        # The noise: how far two measurements of one time lie apart.
        off = {
            name: np.abs(np.log(data.times_s[name][here] / other.times_s[name][there]))
            for name in data.strategies
        }
        found["noise"] = {
            name: {"median": float(np.median(each)), "p90": float(np.quantile(each, 0.9))}
            for name, each in off.items()
        }
    return found


def _steady_rows(
    data: DataSet, rows: Sequence[Mapping[str, float]], models: Sequence[CompletionModel]
) -> NDArray[np.bool_]:
    """Return the rows in which each network alone was as fast as its rate and round trip promised."""
    steady = np.ones(len(data), dtype=np.bool_)
    naive = [model.naive(row) for row, model in zip(rows, models, strict=True)]
    for name in ("wifi", "cellular"):
        if name in data.strategies:
            ratio = data.times_s[name] / np.array([each[name] for each in naive])
            steady &= (ratio <= _STEADY) & (ratio >= 1.0 / _STEADY)
    return steady


def _told(
    ours: _Costs, theirs: _Costs, chosen: NDArray[np.intp], groups: NDArray[Any]
) -> dict[str, Any]:
    bootstrap = Bootstrap(groups)
    return {
        "cedos": ours.judged(chosen, bootstrap),
        "second_knows_first": ours.judged(theirs.cost.argmin(axis=1), bootstrap),
        "first_knows_second": theirs.judged(ours.cost.argmin(axis=1), bootstrap),
    }


def _learnable(never_seen: Floats, known: Floats, groups: NDArray[Any]) -> dict[str, Any]:
    bootstrap = Bootstrap(groups)
    return {
        "first": FIRST,
        "rows": len(groups),
        **bootstrap.figure("regret_never_seen", mean(never_seen)),
        **bootstrap.figure("regret_known", mean(known)),
        **bootstrap.figure("gone_share", ratio(never_seen - known, never_seen)),
    }


def _choices(
    data: DataSet,
    rows: Sequence[Mapping[str, float]],
    models: Sequence[CompletionModel],
    objective: Objective,
) -> NDArray[np.intp]:
    names = data.strategies
    chosen = cedos_choices(rows, models, objective, names)
    return np.array([names.index(name) for name in chosen])


def _costs(data: DataSet, objective: Objective) -> _Costs:
    energy_j = energies_j(data)
    outcomes = [policy_outcome(data, [name] * len(data), energy_j) for name in data.strategies]
    return _Costs(
        np.column_stack([costs_of(data, outcome, objective) for outcome in outcomes]),
        np.column_stack([outcome.time_s for outcome in outcomes]),
    )


def measured_twice(data: DataSet, other: DataSet) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Return the indices of rows that both have: same place, start, size and direction."""

    def keys(of: DataSet) -> list[tuple[Any, ...]]:
        numbers = [of.numbers[name].round(3).tolist() for name in _SAME]
        return list(zip(of.texts["place"].tolist(), *numbers, strict=True))

    at = {key: index for index, key in enumerate(keys(other))}
    both = [(index, at[key]) for index, key in enumerate(keys(data)) if key in at]
    return np.array([a for a, _ in both], dtype=np.intp), np.array(
        [b for _, b in both], dtype=np.intp
    )


def _kinds(data: DataSet, twice: NDArray[np.intp]) -> dict[str, NDArray[np.bool_]]:
    """Return rows by size and direction; all; and all of the kinds that were measured twice."""
    size, up = data.numbers["size_bytes"], data.numbers["direction_up"]
    kinds = list(zip(size.tolist(), up.tolist(), strict=True))
    found = {
        f"{int(each[0])} {'up' if each[1] else 'down'}": np.array([kind == each for kind in kinds])
        for each in sorted(set(kinds), key=lambda kind: (kind[1], kind[0]))
    }
    found["all"] = np.full(len(data), True)
    if len(twice):
        reference = {kinds[index] for index in twice.tolist()}
        found["kinds measured twice"] = np.array([kind in reference for kind in kinds])
    return found


def _later(data: DataSet) -> NDArray[np.bool_]:
    """Return rows with at least `FIRST` before them at their place."""
    places, starts = data.texts["place"], data.numbers["start_s"]
    found = np.zeros(len(data), dtype=np.bool_)
    for place in np.unique(places):
        here = np.nonzero(places == place)[0]
        found[here[np.argsort(starts[here], kind="stable")][FIRST:]] = True
    return found


def _picked(of: Floats, choice: NDArray[np.intp]) -> Floats:
    found: Floats = of[np.arange(len(choice)), choice]
    return found

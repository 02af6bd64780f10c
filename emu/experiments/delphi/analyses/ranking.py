"""How to rank under Max(S/E): what is to become of dead networks, and typical cost or expected ratio.

Under Max(S) a network that is said to be dead is left out: to be wrong costs little, to miss a dead one
very much. Under Max(S/E) both mistakes cost a factor of hundreds, as cellular pays for its tail
however short the transfer is. So which rule is best is a question to the data, and it is asked
fairly: each rule is picked on some places, and scored on others that neither it nor its models have seen.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.model_selection import GroupKFold

from cedos.errors import DataSetError
from cedos.selector.decision.liveness import why_dead
from cedos.selector.decision.roles import ROLES, ROLES_OF
from emu.experiments.delphi.analyses.prediction import whole
from emu.experiments.delphi.processes import in_processes
from emu.lab.data.choices import CELLULAR, WIFI, context_of
from emu.lab.data.datasets import DataSet
from emu.lab.data.evaluate import OBJECTIVES
from emu.lab.data.folds import Progress, examples_of, models_by_group
from emu.lab.data.outcomes import costs, energies_j, policy_outcome
from emu.lab.data.transfer_energy import transfer_energy_j
from emu.statistics import Bootstrap, Floats, mean
from predictors.completion import CompletionModel
from predictors.error import SAMPLES, middles
from predictors.inputs import STRATEGIES
from predictors.training.examples import USUAL, Examples
from predictors.training.train import fit

PRESENT = "hard, typical"
"""What the daemon does: dead networks take no part, and geometric means are compared."""

RULES = tuple(
    f"{dead}, {by}" for dead in ("hard", "none", "soft") for by in ("typical", "expected")
)
"""Dead networks: out (hard), judged by the model alone (none), or expected back as dead ones came back at
other places (soft). By: the cost at the typical time, or the expected ratio to the better network's."""

_FOLDS = 10
_INNER_FOLDS = 5
_SMALL_BYTES, _LARGE_BYTES = 30_000, 3_000_000
_LEAST_S = 0.5
_OBJECTIVE = "max_s_per_e"


@dataclass(frozen=True, slots=True)
class _Table:
    """What choices are made of; the first axis is the row's.

    Attributes:
        cost: what each strategy cost, shape (rows, strategies).
        samples_s: predicted times, shape (rows, strategies, samples).
        dead: whether each of `ROLES` is said to be dead, shape (rows, 2).
        watts: per strategy, shape (rows, strategies).
    """

    cost: Floats
    samples_s: Floats
    dead: NDArray[np.bool_]
    watts: Floats
    tail_j: Floats


@dataclass(frozen=True, slots=True)
class _Fold:
    """One part of the places: which rows, each rule's regret here and on all others."""

    rows: NDArray[np.intp]
    regret: Mapping[str, Floats]
    elsewhere: Mapping[str, float]


def run(data: DataSet, progress: Progress = lambda share, what: None) -> dict[str, Any]:
    """Nested cross-validation of the rules, and each of them alone.

    `data`: rows with the times of all strategies; others are left out.

    Returns:
        `rows`; `rules`: rule -> `regret_mean`, `difference` from the present one (paired: the same
        resamples of groups), and its two parts, at rows where a network is said to be dead and at all
        others; `nested`: the same of the rule that was best on the other places, and `picked`, how often
        which; `verdicts`: by size, how often a Wi-Fi said to be dead was better all the same.

    Raises:
        DataSetError: a strategy was not measured, or too few transfers met a dead Wi-Fi.
    """
    data = whole(data)
    if data.strategies != STRATEGIES:
        raise DataSetError(f"{data.source}: the times of all of {', '.join(STRATEGIES)} are needed")
    groups = data.texts["group"]
    parts = list(GroupKFold(_FOLDS).split(np.empty((len(data), 1)), groups=groups))
    jobs = {f"nested fold {k}": (data, *part) for k, part in enumerate(parts, 1)}
    folds = in_processes(_fold, jobs, progress).values()
    regret = {rule: np.zeros(len(data)) for rule in RULES}
    nested = np.zeros(len(data))
    picked = dict.fromkeys(RULES, 0)
    for fold in folds:
        best = min(RULES, key=lambda rule: fold.elsewhere[rule])
        picked[best] += 1
        nested[fold.rows] = fold.regret[best]
        for rule in RULES:
            regret[rule][fold.rows] = fold.regret[rule]
    dead = dead_of(data)
    bootstrap = Bootstrap(groups)

    def judged(of: Floats) -> dict[str, Any]:
        return {
            **bootstrap.figure("regret_mean", mean(of)),
            **bootstrap.figure("difference", mean(of - regret[PRESENT])),
            "at_dead": float((of * dead.any(axis=1)).mean()),
            "elsewhere": float((of * ~dead.any(axis=1)).mean()),
        }

    return {
        "rows": len(data),
        "rules": {rule: judged(regret[rule]) for rule in RULES},
        "nested": judged(nested) | {"picked": picked},
        "verdicts": _verdicts(data, dead),
    }


def dead_of(data: DataSet) -> NDArray[np.bool_]:
    """Which of Wi-Fi and cellular the rule of dead networks calls dead."""
    names = [network.name for network in (WIFI, CELLULAR)]
    columns = data.columns
    known = [
        {name: float(column[row]) for name, column in columns.items() if not np.isnan(column[row])}
        for row in range(len(data))
    ]
    return np.array(
        [
            [why_dead(context, name) is not None for name in names]
            for context in map(context_of, known)
        ]
    ).reshape(-1, len(names))


def _verdicts(data: DataSet, dead: NDArray[np.bool_]) -> dict[str, Any]:
    cost = _costs(data)
    alone = dead[:, 0] & ~dead[:, 1]
    wifi, cellular = (cost[:, data.strategies.index(name)] for name in ("wifi", "cellular"))
    found: dict[str, Any] = {"wifi_dead": int(alone.sum())}
    for size in np.unique(data.numbers["size_bytes"]):
        here = alone & (data.numbers["size_bytes"] == size)
        if here.any():
            found[f"{int(size)}"] = {
                "n": int(here.sum()),
                "wrong_share": float((wifi < cellular)[here].mean()),
                "loss_if_believed": float(np.maximum(cellular / wifi - 1.0, 0.0)[here].mean()),
                "loss_if_not": float(np.maximum(wifi / cellular - 1.0, 0.0)[here].mean()),
            }
    return found


def _fold(data: DataSet, train: NDArray[np.intp], test: NDArray[np.intp]) -> _Fold:
    """One part held out; the rules are compared on the others, by models that saw neither."""
    examples = examples_of(data, data.texts["group"])
    known = data.take(train)
    inner = models_by_group(known, examples.take(train), USUAL, most_folds=_INNER_FOLDS)
    own = _table(known, examples.take(train), inner)
    model = fit(examples.take(train), USUAL)
    there = _table(data.take(test), examples.take(test), [model] * len(test))
    back_s = _back_s(known, own.dead, np.full(len(known), True))
    regret, elsewhere = {}, {}
    for rule in RULES:
        regret[rule] = _regret(there, _chosen(there, rule, back_s(data.take(test))))
    # On the training places, too, a dead network is expected back as it came back at the others.
    groups = known.texts["group"]
    soft_s = np.zeros((len(known), SAMPLES))
    for group in np.unique(groups):
        here = groups == group
        soft_s[here] = _back_s(known, own.dead, ~here)(known.take(here))
    for rule in RULES:
        elsewhere[rule] = float(_regret(own, _chosen(own, rule, soft_s)).mean())
    return _Fold(test, regret, elsewhere)


def _table(data: DataSet, examples: Examples, models: Sequence[CompletionModel]) -> _Table:
    names = data.strategies
    samples_s = np.empty((len(data), len(names), SAMPLES))
    watts = np.empty((len(data), len(names)))
    tail_j = np.array([transfer_energy_j(name, 1.0, "down", 0.0) for name in names])
    for index, model in enumerate(models):
        predicted = model.predict(examples.row(index))
        way = "up" if data.numbers["direction_up"][index] else "down"
        for k, name in enumerate(names):
            samples_s[index, k] = predicted[name].samples
            watts[index, k] = transfer_energy_j(name, 1.0, way, 1.0) - tail_j[k]
    return _Table(_costs(data), samples_s, dead_of(data), watts, tail_j)


def _costs(data: DataSet) -> Floats:
    energy_j = energies_j(data)
    objective = OBJECTIVES[_OBJECTIVE]
    each = [policy_outcome(data, [name] * len(data), energy_j) for name in data.strategies]
    return np.column_stack([costs(data, outcome, objective) for outcome in each])


def _back_s(
    data: DataSet, dead: NDArray[np.bool_], rows: NDArray[np.bool_]
) -> Callable[[DataSet], Floats]:
    """How long transfers take over a Wi-Fi that is said to be dead, by what they took in these rows.

    What small ones took is the wait until it is back; each group of places has one voice. What large ones
    took beyond the middle wait tells the rate.

    Returns:
        From rows to quantiles of their times, s, shape (rows, `SAMPLES`).
    """
    rows = rows & dead[:, 0] & ~dead[:, 1]
    size_bytes, time_s, groups = (
        data.numbers["size_bytes"],
        data.times_s["wifi"],
        data.texts["group"],
    )
    small, large = rows & (size_bytes <= _SMALL_BYTES), rows & (size_bytes >= _LARGE_BYTES)
    if not (small.any() and large.any()):
        raise DataSetError(f"{data.source}: too few transfers at a dead Wi-Fi to learn from")
    names, count = np.unique(groups[small], return_counts=True)
    voice = dict(zip(names.tolist(), (1.0 / count).tolist(), strict=True))
    waits_s = middles(
        zip(time_s[small].tolist(), [voice[name] for name in groups[small].tolist()], strict=True)
    )
    beyond_s = np.maximum(time_s[large] - np.median(waits_s), _LEAST_S)
    rate_bps = float(np.median(8.0 * size_bytes[large] / beyond_s))

    def times_s(of: DataSet) -> Floats:
        found: Floats = np.array(waits_s) + 8.0 * of.numbers["size_bytes"][:, None] / rate_bps
        return found

    return times_s


def _regret(table: _Table, chosen: NDArray[np.intp]) -> Floats:
    cost = table.cost
    found: Floats = cost[np.arange(len(cost)), chosen] / cost.min(axis=1) - 1.0
    return found


def _chosen(table: _Table, rule: str, back_s: Floats) -> NDArray[np.intp]:
    """What a rule chooses; `back_s`: the times over a dead Wi-Fi, shape (rows, samples)."""
    dead, by = rule.split(", ")
    samples_s = table.samples_s
    out = table.dead & ~table.dead.all(axis=1, keepdims=True)
    if dead == "soft":
        samples_s = samples_s.copy()
        samples_s[out[:, 0], 0] = back_s[out[:, 0]]
    cost = _typical(table, samples_s) if by == "typical" else _expected(table, samples_s)
    if dead != "none":
        # MPTCP does not begin on a dead network; that may join later.
        for k, name in enumerate(STRATEGIES):
            first = ROLES.index(ROLES_OF[name][0])
            if dead == "hard" or name != "wifi":
                cost[out[:, first], k] = np.inf
    found: NDArray[np.intp] = cost.argmin(axis=1)
    return found


def _typical(table: _Table, samples_s: Floats) -> Floats:
    usual_s = np.exp(np.log(samples_s).mean(axis=2))
    found: Floats = usual_s * (table.watts * usual_s + table.tail_j)
    return found


def _expected(table: _Table, samples_s: Floats) -> Floats:
    """The expected ratio to the best: Wi-Fi and cellular go their own ways, MPTCP as its primary."""
    cost = samples_s * (table.watts[:, :, None] * samples_s + table.tail_j[None, :, None])
    turns = {
        "wifi": np.repeat(np.arange(SAMPLES), SAMPLES),
        "cellular": np.tile(np.arange(SAMPLES), SAMPLES),
    }
    together = np.stack(
        [cost[:, k, turns[ROLES_OF[name][0]]] for k, name in enumerate(STRATEGIES)], axis=1
    )
    found: Floats = (together / together.min(axis=1, keepdims=True)).mean(axis=2)
    return found

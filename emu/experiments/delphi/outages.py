"""The worth of seeing outages: transfers that lose over a second, with and without the signs of one.

The same family of models is trained and ranked once with all that tells of an outage and once without it
(`SIGNS`), and so are the other families; no model has seen the place that it is asked about. Which
transfers an outage meets comes from the traces themselves, so that no model has a say in it.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cedos.selector.uncertainty.times import spread_of
from emu.data.choices import (
    can_be_redundant,
    cedos_choices,
    energies_j,
    policy_outcome,
    rules,
    with_late_copies,
)
from emu.data.datasets import DataSet
from emu.data.evaluate import OBJECTIVES
from emu.data.folds import Progress, examples_of, models_by_group
from emu.experiments.delphi.prediction import in_processes, whole
from emu.places import places as collections
from emu.places.stats import DEAD_BPS, next_outage_s
from emu.repository import ROOT
from emu.statistics import Bootstrap, Floats, mean, ratio, share
from predictors.base import Distribution
from predictors.inputs import NETWORKS, inputs_of
from predictors.training.examples import Settings, typical_of

SIGNS = ("ping_loss", "available", "udp_loss")
"""Columns that say outright that a network lets nothing through; the rule of dead networks uses them."""

SILENT = ("rtt_s", "rtt_min_s", "dns_s", "udp_bps")
"""Columns that are missing where nothing answered: without the signs, a middle value replaces them."""

LAST_SECOND = ("rtt_s", "past1_bps", "udp_bps", "dns_s")
"""Other columns of the last seconds; averages over five and ten seconds and the least RTT stay."""

LOST_S = 1.0
_LONGEST_S = 30.0
_FOLDS = 10
_SHIPPED = "trees"
FULL = "trees"


@dataclass(frozen=True, slots=True)
class _ModelChoices:
    """Strategies chosen by a model, and the times that it expected of all of them."""

    names: list[str]
    predicted: list[dict[str, Distribution]]


def run(
    data: DataSet,
    places: str,
    kinds: Sequence[str] = ("trees", "forest", "boosting", "tree", "svr"),
    progress: Progress = lambda share, what: None,
) -> dict[str, Any]:
    """Max(S) with and without the signs of outages, where outages are.

    `data`: rows with the times of all strategies; others are left out.
    `places`: the collection whose traces were replayed, relative to the repository.
    `kinds`: families of models to do without the signs; the shipped one must be among them.

    Returns:
        `rows` (how many of each kind of outage), `policies`: policy -> kind of outage -> `lost_share`, of
        its rows those that took over `LOST_S` longer than the oracle, and of all rows `regret_mean` and
        `mean_s_over_oracle`; `against`: kind of outage -> the best policy without the signs, and how many
        times as many lose with them (`times`: foretold alone, `times_bounded`: with copies of what is
        late), with intervals from the same resamples.
    """
    data = whole(data)
    met = outages(data, ROOT / places)
    chosen = _choices_of_all(data, kinds, progress)
    energy_j = energies_j(data)
    outcomes = {name: policy_outcome(data, each.names, energy_j) for name, each in chosen.items()}
    if can_be_redundant(data):
        for name in (FULL, without(_SHIPPED)):
            late = with_late_copies(data, chosen[name].names, chosen[name].predicted, energy_j)
            outcomes[f"{name}, late copies"] = late
    blind = without_signs(data)
    for rule, names in rules(blind).items():
        if rule not in data.strategies:
            outcomes[f"rule {rule}"] = policy_outcome(data, names.tolist(), energy_j)
    best_s = np.column_stack(list(data.times_s.values())).min(axis=1)
    lost = {name: each.time_s - best_s > LOST_S for name, each in outcomes.items()}
    bootstrap = Bootstrap(data.texts["group"])
    found: dict[str, Any] = {
        "rows": {kind: int(mask.sum()) for kind, mask in met.items()},
        "groups": {kind: len(np.unique(data.texts["group"][mask])) for kind, mask in met.items()},
        "policies": {},
        "against": {},
    }
    for name, each in outcomes.items():
        of: dict[str, Any] = {
            kind: bootstrap.figure("lost_share", share(lost[name], mask))
            for kind, mask in met.items()
            if mask.any()
        }
        of |= bootstrap.figure("regret_mean", mean(each.time_s / best_s - 1.0))
        of |= bootstrap.figure("mean_s_over_oracle", ratio(each.time_s, best_s))
        found["policies"][name] = of
    blind_ones = [without(kind) for kind in kinds]
    blind_ones += [name for name in outcomes if name.startswith("rule ")]
    for kind, mask in met.items():
        if not mask.any():
            continue
        best = min(blind_ones, key=lambda name: float((lost[name] & mask).sum()))
        other = (lost[best] & mask).astype(np.float64)
        if not other.any():
            continue  # there is nothing to make less of
        found["against"][kind] = {
            "best_without": best,
            **bootstrap.figure("times", _times(lost[FULL] & mask, other)),
            **bootstrap.figure("times_bounded", _times(lost[f"{FULL}, late copies"] & mask, other)),
        }
    return found


def without(kind: str) -> str:
    return f"{kind} without signs"


def outages(data: DataSet, directory: Path) -> dict[str, NDArray[np.bool_]]:
    """Which rows an outage meets: of any network, in the transfer's direction, a second long at least.

    `dies`: a network that carried something in the second before the start goes out within the next
    one; `dead`: it was out before and is still out then; `later`: it goes out while the transfer
    would last on it by the textbook, but not within a second; `next_second`: the first two together.
    """
    known = collections.load(directory)
    typical = typical_of(examples_of(data, data.texts["group"]))
    examples = examples_of(data, data.texts["group"])
    kinds = {kind: np.zeros(len(data), dtype=np.bool_) for kind in ("dies", "dead", "later")}
    for index in range(len(data)):
        naive_s = inputs_of(examples.row(index), typical)[1]
        for network, access in known[str(data.texts["place"][index])].networks.items():
            trace = access.up if data.numbers["direction_up"][index] else access.down
            start_s = float(data.numbers["start_s"][index])
            out_s = next_outage_s(trace, start_s, min(naive_s[network], _LONGEST_S))
            if out_s is None:
                continue
            before = trace.rate_bps(trace.period_s + start_s - 1.0, trace.period_s + start_s)
            kind = "later" if out_s > 1.0 else "dead" if before < DEAD_BPS else "dies"
            kinds[kind][index] = True
    kinds["later"] &= ~(kinds["dies"] | kinds["dead"])
    return {
        "next_second": kinds["dies"] | kinds["dead"],
        **kinds,
        "all": np.ones(len(data), dtype=np.bool_),
    }


def without_signs(data: DataSet, *, last_second: bool = True) -> DataSet:
    """Return the data set without signs of outages; `last_second`: False hides that one, too."""
    hidden = {f"{network}_{name}" for network in NETWORKS for name in SIGNS}
    if not last_second:
        hidden |= {f"{network}_{name}" for network in NETWORKS for name in LAST_SECOND}
    filled = {f"{network}_{name}" for network in NETWORKS for name in SILENT}
    numbers = {}
    for name, column in data.numbers.items():
        if name in hidden:
            continue
        known = np.isfinite(column)
        middle = np.median(column[known]) if name in filled and known.any() else np.nan
        numbers[name] = np.where(known, column, middle)
    return DataSet(data.source, data.texts, numbers, data.ignored)


def _choices_of_all(
    data: DataSet, kinds: Sequence[str], progress: Progress
) -> dict[str, _ModelChoices]:
    blind = without_signs(data)
    jobs: dict[str, tuple[DataSet, str, bool]] = {
        FULL: (data, _SHIPPED, True),
        f"{FULL} without the rule of dead networks": (data, _SHIPPED, False),
        f"{FULL} without signs and last second": (
            without_signs(data, last_second=False),
            _SHIPPED,
            True,
        ),
    }
    jobs |= {without(kind): (blind, kind, True) for kind in kinds}
    return in_processes(_choices_of, jobs, progress)


def _choices_of(data: DataSet, kind: str, rule: bool) -> _ModelChoices:
    """Return the choices of a family's models at unseen places; `rule`: whether dead networks are out."""
    examples = examples_of(data, data.texts["group"])
    rows = [examples.row(index) for index in range(len(data))]
    models = models_by_group(data, examples, Settings(kind), most_folds=_FOLDS)
    predicted = [model.predict(row) for row, model in zip(rows, models, strict=True)]
    if rule:
        names = cedos_choices(rows, models, OBJECTIVES["max_s"], data.strategies)
    else:
        names = [
            min(data.strategies, key=lambda name: spread_of(each[name]).usual_s)
            for each in predicted
        ]
    return _ModelChoices(names, predicted)


def _times(of: NDArray[np.bool_], other: Floats) -> Callable[[Floats], Floats]:
    return ratio(of.astype(np.float64), other)

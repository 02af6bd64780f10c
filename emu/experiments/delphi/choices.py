"""Delphi's Figures 7 to 9 and Tables 5 and 6: what the selector chooses, and what comes of it.

As in section 7.3: a scheme chooses at every row of a data set from what was known at its start, and
the recorded time of its choice counts. Throughput is size over time, energy efficiency size over
joules (Table 4 and the tail), both as medians over all transfers.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from cedos.selector.objective import MaxSPerE, Objective
from emu.data.choices import PolicyOutcome, cedos_choices, costs, energies_j, policy_outcome
from emu.data.datasets import DataSet
from emu.data.evaluate import OBJECTIVES, Progress, examples_of, models_at_random, models_by_group
from emu.experiments.delphi.prediction import in_processes, whole
from emu.statistics import Bootstrap, Floats, mean, quantile
from predictors.completion import CompletionModel
from predictors.training.examples import Settings

BETAS = tuple(round(0.25 * k, 2) for k in range(21))
# The share of transfers whose size the paper's profiler does not know (Table 1).
GUESSED_SHARE = 0.16

GUESS_BYTES = 3_000.0

# Mbit/s and Mbit/J of Tables 5 and 6, and the shares of the oracle's choices (Figure 9).
PAPER = {
    "table_5": {"max_s": (3.0, 2.8), "max_s_per_e": (2.6, 4.9), "wifi": (1.4, 5.2)},
    "table_6": {
        "max_s": {"svr": (2.3, 1.6), "tree": (2.1, 2.0)},
        "max_s_per_e": {"svr": (1.4, 5.6), "tree": (1.9, 2.7)},
        "wifi": (1.4, 5.6),
        "cellular": (1.7, 1.5),
    },
    "success": {
        "max_s": {"active": 0.85, "adaptive": 0.81, "guessed": 0.78},
        "max_s_per_e": {"active": 0.93, "adaptive": 0.90, "guessed": 0.86},
    },
}

# The folds of groups for Table 6, as many as the random split has.
_FOLDS = 10

_ONLY_ENERGY = MaxSPerE(alpha=0.0, beta=1.0, name="max-1-per-e")
_ACTIVE = ("rtt_s", "rtt_min_s", "ping_loss", "dns_s", "udp_bps", "udp_loss")


@dataclass(frozen=True, slots=True)
class _Rows:
    data: DataSet
    columns: list[dict[str, float]]
    energy_j: Mapping[str, Floats]
    bootstrap: Bootstrap

    def chosen(self, models: Sequence[CompletionModel], objective: Objective) -> list[str]:
        return self.by(self.columns, models, objective)

    def by(
        self,
        columns: Sequence[Mapping[str, float]],
        models: Sequence[CompletionModel],
        objective: Objective,
    ) -> list[str]:
        return cedos_choices(columns, models, objective, self.data.strategies)

    def oracle(self, objective: Objective) -> list[str]:
        names = self.data.strategies
        cost = np.column_stack(
            [
                costs(
                    self.data,
                    policy_outcome(self.data, [name] * len(self.data), self.energy_j),
                    objective,
                )
                for name in names
            ]
        )
        return [names[k] for k in cost.argmin(axis=1).tolist()]

    def medians(self, names: Sequence[str]) -> dict[str, Any]:
        outcome: PolicyOutcome = policy_outcome(self.data, names, self.energy_j)
        mbit = 8e-6 * self.data.numbers["size_bytes"]
        return {
            **self.bootstrap.figure("mbps", quantile(mbit / outcome.time_s, 0.5)),
            **self.bootstrap.figure("mbit_per_j", quantile(mbit / outcome.energy_j, 0.5)),
        }

    def success(self, names: Sequence[str], objective: Objective) -> dict[str, Any]:
        """Exactly the oracle's choice, as in the paper, and within 5 % of its cost."""
        best = self.oracle(objective)
        cost, least = (
            costs(self.data, policy_outcome(self.data, each, self.energy_j), objective)
            for each in (names, best)
        )
        same = np.array(names) == np.array(best)
        return {
            **self.bootstrap.figure("oracle_match", mean(same)),
            **self.bootstrap.figure("within5_share", mean(cost <= 1.05 * least * (1.0 + 1e-9))),
            **self.bootstrap.figure("regret_mean", mean(cost / least - 1.0)),
        }


def run(
    data: DataSet,
    kinds: Sequence[str] = ("tree", "svr", "trees"),
    train_share: float = 0.9,
    progress: Progress = lambda share, what: None,
) -> dict[str, Any]:
    """Compute all of the section's tables and figures from one data set.

    `data`: rows with the times of all strategies; others are left out.
    `kinds`: families of models for Table 6; the others are drawn with the shipped family.
    `train_share`: of the random split for Figures 7 to 9, where places are known.

    Returns:
        `{"rows", "paper", "schemes": {NAME: medians}, "frontier": [{"beta", medians}], "shares":
        {OBJECTIVE: {"cedos" | "oracle": {STRATEGY: share}}}, "success": {OBJECTIVE: {"active",
        "adaptive", "guessed": figures}}, "unseen": {OBJECTIVE: {KIND: medians and success}}}`.
    """
    data = whole(data)
    groups = data.texts["group"]
    examples = examples_of(data, groups)
    rows = _Rows(
        data, [examples.row(k) for k in range(len(data))], energies_j(data), Bootstrap(groups)
    )
    # Figures 7 to 9 know the places: a random split.
    at_random = examples_of(data, np.arange(len(data)))
    known = models_at_random(data, at_random, train_share, Settings(), progress)
    schemes = {name: rows.medians([name] * len(data)) for name in data.strategies}
    shares: dict[str, Any] = {}
    success: dict[str, Any] = {}
    for name, objective in {**OBJECTIVES, "max_1_per_e": _ONLY_ENERGY}.items():
        chosen = rows.chosen(known, objective)
        schemes[name] = rows.medians(chosen)
        shares[name] = {
            "cedos": _shares(chosen, data.strategies),
            "oracle": _shares(rows.oracle(objective), data.strategies),
        }
        success[name] = {
            "active": rows.success(chosen, objective),
            # Probes of an earlier start stand for indicators that were not measured again.
            "adaptive": rows.success(rows.by(_older(rows), known, objective), objective),
            "guessed": rows.success(rows.by(_guessed(rows), known, objective), objective),
        }
    frontier = [{"beta": beta, **rows.medians(rows.oracle(MaxSPerE(beta=beta)))} for beta in BETAS]
    # Table 6 leaves places out, for each family of models.
    unseen: dict[str, Any] = {name: dict.fromkeys(kinds) for name in OBJECTIVES}
    jobs = {kind: (data, kind) for kind in kinds}
    for kind, by_objective in in_processes(_unseen, jobs, progress).items():
        for name, chosen in by_objective.items():
            unseen[name][kind] = rows.medians(chosen) | rows.success(chosen, OBJECTIVES[name])
    return {
        "rows": len(data),
        "paper": PAPER,
        "schemes": schemes,
        "frontier": frontier,
        "shares": shares,
        "success": success,
        "unseen": unseen,
    }


def _unseen(data: DataSet, kind: str) -> dict[str, list[str]]:
    examples = examples_of(data, data.texts["group"])
    models = models_by_group(data, examples, Settings(kind), most_folds=_FOLDS)
    columns = [examples.row(k) for k in range(len(data))]
    return {
        name: cedos_choices(columns, models, objective, data.strategies)
        for name, objective in OBJECTIVES.items()
    }


def _shares(names: Sequence[str], strategies: Sequence[str]) -> dict[str, float]:
    return {name: names.count(name) / len(names) for name in strategies}


def _guessed(rows: _Rows) -> list[dict[str, float]]:
    """Return the rows with 3 KB for the size in 16 % of them, drawn once."""
    drawn = np.random.default_rng(1).random(len(rows.columns)) < GUESSED_SHARE
    return [
        row | {"size_bytes": GUESS_BYTES} if guess else row
        for row, guess in zip(rows.columns, drawn.tolist(), strict=True)
    ]


def _older(rows: _Rows) -> list[dict[str, float]]:
    """Return rows with the probes of their place's start before, as if nothing was probed again."""
    starts, places = rows.data.numbers["start_s"], rows.data.texts["place"]
    found = []
    for index, row in enumerate(rows.columns):
        earlier = np.nonzero((places == places[index]) & (starts < starts[index]))[0]
        if not len(earlier):
            found.append(row)
            continue
        before = rows.columns[int(earlier[np.argmax(starts[earlier])])]
        active = [f"{network}_{name}" for network in ("wifi", "cellular") for name in _ACTIVE]
        kept = {name: value for name, value in row.items() if name not in active}
        found.append(kept | {name: before[name] for name in active if name in before})
    return found

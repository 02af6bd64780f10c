"""What each policy's choices came to at every row: seconds, joules, bytes.

The rows hold what every strategy took from the same instant. A redundant transfer took what the faster
of its two copies took; a late second copy, what the chosen strategy took or the other network's time
from the moment at which the copy started. That moment's network is taken for what it was at the row's
instant, which is the one thing here that was not measured.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from cedos.selector.decision.roles import ROLES
from cedos.selector.objective import Objective, Outcome
from emu.lab.data.choices import REDUNDANT
from emu.lab.data.datasets import DataSet
from emu.lab.data.transfer_energy import transfer_energy_j
from emu.statistics import Floats
from predictors.base import Distribution

LATE_Q = 0.9
"""A transfer is late that has outlasted this quantile of its predicted time, ..."""

LATE_LEAST_S = 0.3
"""... and so much more: a copy takes two round trips before it is of any use."""


@dataclass(frozen=True, slots=True)
class PolicyOutcome:
    """One policy's outcomes, one entry per row; `extra_bytes` are beyond the transfer's own."""

    names: NDArray[np.str_]
    time_s: Floats
    energy_j: Floats
    extra_bytes: Floats


def energies_j(data: DataSet) -> dict[str, Floats]:
    """Joules of every strategy at every row, and of `redundant` where both networks were measured."""
    sizes = data.numbers["size_bytes"].tolist()
    ways = ["up" if up else "down" for up in data.numbers["direction_up"]]
    found = {
        name: np.array(
            [
                transfer_energy_j(name, size, way, time_s)
                for size, way, time_s in zip(sizes, ways, times_s.tolist(), strict=True)
            ]
        )
        for name, times_s in data.times_s.items()
    }
    if can_be_redundant(data):
        # Nothing promises that the slower copy is called back: both are paid in full.
        found[REDUNDANT] = found["wifi"] + found["cellular"]
    return found


def can_be_redundant(data: DataSet) -> bool:
    return set(ROLES) <= set(data.strategies)


def policy_outcome(
    data: DataSet, names: Sequence[str], energy_j: Mapping[str, Floats]
) -> PolicyOutcome:
    """What choices of strategies, `redundant` among them, came to."""
    times_s = data.times_s
    if can_be_redundant(data):
        times_s[REDUNDANT] = np.minimum(*[times_s[role] for role in ROLES])
    chosen = np.array(names)
    size_bytes = data.numbers["size_bytes"]
    return PolicyOutcome(
        chosen,
        _picked(times_s, chosen),
        _picked(energy_j, chosen),
        np.where(chosen == REDUNDANT, size_bytes, 0.0),
    )


def with_late_copies(
    data: DataSet,
    names: Sequence[str],
    predicted: Sequence[Mapping[str, Distribution]],
    energy_j: Mapping[str, Floats],
) -> PolicyOutcome:
    """What choices came to where a transfer that is late starts again over the other network.

    Both copies run until the first one is complete; what the other one had carried by then, at a
    steady pace, is extra.
    """
    base = policy_outcome(data, names, energy_j)
    times_s, size_bytes = data.times_s, data.numbers["size_bytes"]
    other = np.array(
        ["cellular" if name.removeprefix("mptcp_") == "wifi" else "wifi" for name in names]
    )
    copy_s = _picked(times_s, other)
    late_s = np.array(
        [
            each[name].quantile(LATE_Q) + LATE_LEAST_S
            for each, name in zip(predicted, names, strict=True)
        ]
    )
    late = base.time_s > late_s
    both_s = np.minimum(base.time_s, late_s + copy_s)
    copy_won = late_s + copy_s < base.time_s
    lost_share = np.where(copy_won, both_s / base.time_s, (both_s - late_s) / copy_s)
    own_j = base.energy_j * np.minimum(both_s / base.time_s, 1.0)
    copy_j = _picked(energy_j, other) * np.clip((both_s - late_s) / copy_s, 0.0, 1.0)
    return PolicyOutcome(
        base.names,
        np.where(late, both_s, base.time_s),
        np.where(late, own_j + copy_j, base.energy_j),
        base.extra_bytes + np.where(late, np.clip(lost_share, 0.0, 1.0) * size_bytes, 0.0),
    )


def costs(data: DataSet, outcome: PolicyOutcome, objective: Objective) -> Floats:
    return np.array(
        [
            objective.cost(Outcome(time_s, energy_j, 0.0, size))
            for time_s, energy_j, size in zip(
                outcome.time_s.tolist(),
                outcome.energy_j.tolist(),
                data.numbers["size_bytes"].tolist(),
                strict=True,
            )
        ]
    )


def _picked(of: Mapping[str, Floats], names: NDArray[np.str_]) -> Floats:
    found = np.full(len(names), np.nan)
    for name in np.unique(names):
        found[names == name] = of[str(name)][names == name]
    return found

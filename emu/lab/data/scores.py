"""The figures by which choices are judged."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from emu.statistics import SLACK, Bootstrap, Floats, mean, quantile, ratio


@dataclass(frozen=True, slots=True)
class Outcomes:
    """What a policy's choices came to; one entry per row.

    `cost` is in the objective's unit (for Max(S) the time), `best_cost` and `best_time_s` are those
    of the oracle's choices, `extra_bytes` what was carried beyond the transfer's own.
    """

    cost: Floats
    best_cost: Floats
    time_s: Floats
    best_time_s: Floats
    matches: NDArray[np.bool_]
    extra_bytes: Floats
    size_bytes: Floats


def judged(outcomes: Outcomes, bootstrap: Bootstrap) -> dict[str, Any]:
    """The figures of one policy under one objective (DESIGN, "Bench files").

    Within 10 %, regret and match are about the objective's own cost, which for Max(S) is the time;
    `mean_s_over_oracle` is the sum of times over the sum of the oracle's.
    """
    regret = outcomes.cost / outcomes.best_cost - 1.0
    return {
        **bootstrap.figure("within10_share", mean(regret <= 0.1 * SLACK)),
        **bootstrap.figure("oracle_match", mean(outcomes.matches)),
        **bootstrap.figure("regret_mean", mean(regret)),
        **bootstrap.figure("regret_p95", quantile(regret, 0.95)),
        **bootstrap.figure("mean_s", mean(outcomes.time_s)),
        **bootstrap.figure("mean_s_over_oracle", ratio(outcomes.time_s, outcomes.best_time_s)),
        **bootstrap.figure("extra_bytes_share", ratio(outcomes.extra_bytes, outcomes.size_bytes)),
    }

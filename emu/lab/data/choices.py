"""What each policy would have chosen at every row of a transfer data set.

The rows hold what every strategy took from the same instant, so a choice can be judged without
emulating it again. `cedos` goes through the very decision that the daemon makes.
"""

from collections.abc import Callable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from cedos.model import (
    Context,
    Direction,
    Indicator,
    Network,
    NetworkKind,
    SizeEstimate,
    StrategyKind,
    Transfer,
)
from cedos.selector.decision.case import Case
from cedos.selector.decision.decide import decide
from cedos.selector.decision.rates import RATES, RECENT
from cedos.selector.decision.roles import USUAL_KINDS, Roles, role_strategy
from cedos.selector.objective import Objective
from cedos.selector.uncertainty.completion import CompletionModel
from emu.lab.data.datasets import DataSet

Names = NDArray[np.str_]

WIFI = Network("wlan0", "wlan0", 1, NetworkKind.WIFI, metered=False)
CELLULAR = Network("lte0", "lte0", 2, NetworkKind.CELLULAR, metered=True)
ROLES = Roles(WIFI, CELLULAR)
REDUNDANT = "redundant"
_OF_ROLE = {"wifi": WIFI.name, "cellular": CELLULAR.name}

SMALL_BYTES = 30_000
"""Up to here the rules of thumb take a transfer for one that latency decides."""


HEDGE_S_PER_MB = 1.0
"""What a second copy's bytes are worth: it must save a second per megabyte. With that, redundancy is
for the short transfers, where it is cheap, and for those whose network may well be gone."""


def cedos_choice(
    columns: Mapping[str, float],
    model: CompletionModel,
    objective: Objective,
    open_to_it: Sequence[str],
    *,
    hedged: bool = False,
) -> str:
    """The strategy that the daemon's decision prefers, of those that were measured (`open_to_it`).

    `columns` are a row's size, direction and known context; `hedged`: `redundant` is one more, if
    it saves `HEDGE_S_PER_MB`.
    """
    size_bytes = int(columns["size_bytes"])
    direction = Direction.UP if columns.get("direction_up") else Direction.DOWN
    transfer = Transfer(SizeEstimate(size_bytes, size_bytes, size_bytes, "hint"), direction)
    decision = decide(
        Case(
            transfer,
            context_of(columns),
            (WIFI, CELLULAR),
            model,
            objective,
            kinds=USUAL_KINDS | {StrategyKind.REDUNDANT} if hedged else USUAL_KINDS,
        )
    )
    known = {role_strategy(each.strategy, ROLES): each for each in decision.evaluations}
    twice = known.pop(REDUNDANT, None)
    if not known:
        return open_to_it[0]
    # Of equal costs, that of the decision's own choice and else the simplest comes first.
    own = decision.choice
    ranked = sorted(known, key=lambda name: (known[name].cost, known[name].strategy != own))
    best = next((name for name in ranked if name in open_to_it), open_to_it[0])
    if twice is not None and best in known:
        saved_s = known[best].time_s - twice.time_s
        if twice.cost < known[best].cost and saved_s > HEDGE_S_PER_MB * size_bytes / 1e6:
            return REDUNDANT
    return best


def cedos_choices(
    rows: Sequence[Mapping[str, float]],
    models: Sequence[CompletionModel],
    objective: Objective,
    strategies: Sequence[str],
    *,
    hedged: bool = False,
) -> list[str]:
    """Row by row, each with its own model; see `cedos_choice`."""
    return [
        cedos_choice(row, model, objective, strategies, hedged=hedged)
        for row, model in zip(rows, models, strict=True)
    ]


def context_of(columns: Mapping[str, float]) -> Context:
    """A row's indicators as the monitor would show them: measured this moment, or as old as it says."""
    networks: dict[str, dict[str, Indicator]] = {WIFI.name: {}, CELLULAR.name: {}}
    for column, value in columns.items():
        role, _, name = column.partition("_")
        if role in _OF_ROLE and not name.endswith("_age_s"):
            age_of = "rate" if name in RATES else "recent" if name in RECENT else None
            age_s = columns.get(f"{role}_{age_of}_age_s", 0.0)
            networks[_OF_ROLE[role]][name] = Indicator(value, -age_s)
        elif column == "speed_mps":
            networks[WIFI.name][column] = Indicator(value, 0.0)
    return Context(0.0, networks)


def rules(data: DataSet) -> dict[str, Names]:
    """The choices of the fixed policies and the naive rules, as far as their strategies were measured.

    `lower_ping` and `faster_5s` use plain TCP. `ping_then_rate` takes the lower ping for small
    transfers and the network that was faster over the last five seconds for large ones;
    `ping_then_mptcp` takes the lower ping, and above `SMALL_BYTES` MPTCP with that primary.
    """
    found = {name: np.full(len(data), name) for name in data.strategies}
    small = data.numbers["size_bytes"] <= SMALL_BYTES
    ping = _lower(data, "rtt_s")
    rate = np.where(_known(data, "wifi_past5_bps") >= _known(data, "cellular_past5_bps"), 0, 1)
    singles, multi = np.array(["wifi", "cellular"]), np.array(["mptcp_wifi", "mptcp_cellular"])
    made: dict[str, Callable[[], Names]] = {
        "lower_ping": lambda: singles[ping],
        "faster_5s": lambda: singles[rate],
        "ping_then_rate": lambda: np.where(small, singles[ping], singles[rate]),
        "ping_then_mptcp": lambda: np.where(small, singles[ping], multi[ping]),
    }
    for name, choose in made.items():
        choice = choose()
        if set(choice.tolist()) <= set(data.strategies):
            found[name] = choice
    return found


def _lower(data: DataSet, column: str) -> NDArray[np.intp]:
    """0 where Wi-Fi's value is lower (or both are unknown), 1 where cellular's is; unknown is worst."""
    wifi, cellular = (
        np.nan_to_num(_known(data, f"{name}_{column}"), nan=np.inf) for name in ("wifi", "cellular")
    )
    return np.where(wifi <= cellular, 0, 1)


def _known(data: DataSet, column: str) -> NDArray[np.float64]:
    return data.numbers.get(column, np.full(len(data), np.nan))

"""Choices that each policy would have made at every row of a transfer data set.

The rows hold what every strategy took from the same instant, so a choice can be judged without
emulating it again. `cedos` goes through the very decision that the daemon makes.

Outcomes are what each policy's choices came to at every row: seconds, joules, bytes. A redundant transfer
took what the faster of its two copies took.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

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
from cedos.selector.decision.case import ROLES, ROLES_OF, USUAL_KINDS, Case, Roles, role_strategy
from cedos.selector.decision.decide import decide
from cedos.selector.decision.features import RATES, RECENT
from cedos.selector.energy import DELPHI
from cedos.selector.objective import Objective, Outcome
from cedos.selector.uncertainty.times import CompletionModel
from emu.data.datasets import DataSet
from emu.statistics import Floats

Names = NDArray[np.str_]

WIFI = Network("wlan0", "wlan0", 1, NetworkKind.WIFI, metered=False)
CELLULAR = Network("lte0", "lte0", 2, NetworkKind.CELLULAR, metered=True)
BOTH = Roles(WIFI, CELLULAR)
REDUNDANT = "redundant"
_OF_ROLE = {"wifi": WIFI.name, "cellular": CELLULAR.name}

# The largest transfer that the rules of thumb choose by latency.
SMALL_BYTES = 30_000


# The seconds per megabyte that a second copy must save. With it, redundancy serves short
# transfers, where it is cheap, and those whose network may be gone.
HEDGE_S_PER_MB = 1.0


def cedos_choice(
    columns: Mapping[str, float],
    model: CompletionModel,
    objective: Objective,
    open_to_it: Sequence[str],
    *,
    hedged: bool = False,
) -> str:
    """Return the strategy that the daemon's decision prefers, of those that were measured (`open_to_it`).

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
    known = {role_strategy(each.strategy, BOTH): each for each in decision.evaluations}
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
    """Return a row's indicators as the monitor would show them, with the age that the row tells."""
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
    """Return the choices of fixed policies and naive rules, as far as their strategies were measured.

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
    """Return 0 where Wi-Fi's value is lower (or both are unknown), 1 where cellular's is."""
    wifi, cellular = (
        np.nan_to_num(_known(data, f"{name}_{column}"), nan=np.inf) for name in ("wifi", "cellular")
    )
    return np.where(wifi <= cellular, 0, 1)


def _known(data: DataSet, column: str) -> NDArray[np.float64]:
    return data.numbers.get(column, np.full(len(data), np.nan))


_KIND_OF_ROLE = {"wifi": NetworkKind.WIFI, "cellular": NetworkKind.CELLULAR}


def transfer_energy_j(
    role_strategy: str,  # `wifi`, `cellular`, `mptcp_wifi`, `mptcp_cellular` or `redundant`
    size_bytes: float,  # bytes carried; nothing is sent, and nothing paid, for none
    direction: Direction | str,  # `down` or `up`
    time_s: float,  # how long it took
) -> float:
    """Joules of one transfer of a data set, as in Delphi: the radios were last used long ago.

    KeyError: for an unknown strategy.
    """
    radios = [DELPHI.radios[_KIND_OF_ROLE[role]] for role in ROLES_OF[role_strategy]]
    if size_bytes <= 0:
        return 0.0
    active_w = sum(radio.active_w(Direction(direction)) for radio in radios)
    return active_w * time_s + sum(radio.added_tail_j(None) for radio in radios)


@dataclass(frozen=True, slots=True)
class PolicyOutcome:
    """Outcomes of one policy, one entry per row; `extra_bytes` are beyond the transfer's own."""

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
    """Return the outcomes of choices of strategies, `redundant` among them."""
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

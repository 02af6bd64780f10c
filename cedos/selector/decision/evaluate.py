"""What every strategy would cost: predictions, energy and metered bytes, in the objective's unit."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from typing import NamedTuple

from cedos.model import Evaluation, Strategy, StrategyKind
from cedos.selector.decision.case import Case
from cedos.selector.decision.features import features
from cedos.selector.decision.liveness import may_return
from cedos.selector.decision.roles import ROLES, ROLES_OF, Roles, strategies
from cedos.selector.decision.times import completion_times
from cedos.selector.decision.usage import second_share
from cedos.selector.objective import Outcome
from cedos.selector.uncertainty.completion import CompletionModel, Spread, spread_of
from cedos.selector.uncertainty.evaluator import SingleCandidate
from predictors.base import Distribution, minimum_of

# A second subflow's join where no round trip is known.
_UNKNOWN_RTT_S = 0.1
_MPTCP = ("mptcp_wifi", "mptcp_cellular")
_REDUNDANT = StrategyKind.REDUNDANT
_PRICE_PER_METERED_MB = 0.01
"""What a metered network's megabyte costs where nobody says; only ratios to other prices matter."""

Retime = Callable[
    [Mapping[Strategy, Distribution], Collection[Strategy]], Mapping[Strategy, Distribution]
]
"""Takes the times of all strategies, and those whose rates are old; gives the times as they are."""


class _Part(NamedTuple):
    """What a network costs while it plays a part: W while active, the tail's J, money per byte.

    `budgeted` is its name where a budget counts its bytes.
    """

    watts: float
    tail_j: float
    metered: bool
    price: float
    budgeted: str | None


def worth_s(time_s: float, high_s: float, deadline_s: float) -> float:
    """What a completion time counts for where the transfer is wanted within `deadline_s`.

    Sooner than wanted saves nothing; what may be late (`high_s`, the end of the 90 % interval) counts
    for as late as it may be.
    """
    return deadline_s if high_s <= deadline_s else max(time_s, high_s)


def evaluate(
    case: Case,
    roles: Roles,
    model: CompletionModel,
    dead: Collection[str],
    retime: Retime | None = None,
) -> tuple[Evaluation, ...]:
    """Evaluates every strategy that the roles and the model allow.

    `roles`: who plays Wi-Fi and cellular.
    `model`: the predictors, which need not be the case's.
    `dead`: networks that take no part while another one lives, but as one that joins a new
    connection later.
    `retime`: of a living flow, whose second subflow is there already: what is known of its
    strategies' times beside the predictions.

    Returns:
        One record per strategy in the order of `roles.strategies`; none where the model knows none.
    """
    transfer, context, objective = case.transfer, case.context, case.objective
    direction, joined = transfer.direction, retime is not None
    columns: Mapping[str, float] = features(context, transfer, roles, model.features)
    predicted = completion_times(columns, transfer, context, roles, model, joined=joined)
    sent = case.sent
    timed = dict(case.method.times(predicted))
    begun = None
    if sent is not None:
        begun = next((role for role, each in roles.players() if each.name == sent.network), None)
        if begun in timed:
            timed[begun] = timed[begun].left_after(sent.waited_s)
    predicted = _completed(timed, redundant=_REDUNDANT in case.kinds, joined=joined)
    # A living connection is joined by what lives again when it is looked at then; until that it must
    # not be counted on, for what is under way on it holds up the rest.
    awaited = () if joined else [name for name in dead if may_return(context, name)]
    available = strategies(roles, case.kinds, dead, awaited)
    if retime is not None:
        known: Mapping[Strategy, Distribution] = {
            strategy: predicted[name] for name, strategy in available if name in predicted
        }
        roles_of_old = {role for role in ROLES if f"{role}_rate_age_s" in columns}
        old = {
            strategy for name, strategy in available if not roles_of_old.isdisjoint(ROLES_OF[name])
        }
        known = retime(known, old)
        predicted = predicted | {name: known[each] for name, each in available if each in known}
    times = {name: spread_of(distribution) for name, distribution in predicted.items()}
    size_bytes = float(transfer.size.median_bytes)
    data = objective.prices.data
    parts = {}
    for role, network in roles.players():
        radio = case.power.radios[network.kind]
        tail_j = radio.added_tail_j(case.idle_s.get(network.name))
        per_mb = case.price_per_mb.get(
            network.name, _PRICE_PER_METERED_MB if network.metered else 0.0
        )
        budgeted = network.name if network.name in data else None
        parts[role] = _Part(
            radio.active_w(direction), tail_j, network.metered, per_mb / 1e6, budgeted
        )
        if role == begun:  # its bytes are spent
            parts[role] = _Part(radio.active_w(direction), tail_j, False, 0.0, None)
    found: list[Evaluation] = []
    outcomes: dict[str, Outcome] = {}
    for name, strategy in available:
        time = times.get(name)
        if time is None:
            continue
        used = ROLES_OF[name]
        first = parts[used[0]]
        data_s = 0.0
        if len(used) == 1:
            tails_j = first.tail_j
            energy_j = tails_j + first.watts * time.mean_s
            metered_bytes = size_bytes if first.metered else 0.0
            money = size_bytes * first.price
            if first.budgeted is not None:
                data_s = objective.prices.data_s(first.budgeted, size_bytes, time.mean_s)
        else:
            other = parts[used[1]]
            tails_j = first.tail_j + other.tail_j
            if strategy.kind == _REDUNDANT:
                # Nothing promises that the slower copy is called back, so both are paid in full.
                carried = second = 1.0
                energy_j = tails_j + sum([parts[role].watts * times[role].mean_s for role in used])
            else:
                second = 0.0
                if first[2:] != other[2:]:
                    second = _second_share(name, times, time, None if joined else columns)
                carried = 1.0 - second
                energy_j = tails_j + (first.watts + other.watts) * time.mean_s
            metered_bytes = size_bytes * (carried * first.metered + second * other.metered)
            money = size_bytes * (carried * first.price + second * other.price)
            for part, share in ((first, carried), (other, second)) if data else ():
                if part.budgeted is not None:
                    bytes_of_part = share * size_bytes
                    data_s += objective.prices.data_s(part.budgeted, bytes_of_part, time.mean_s)
        seconds, joules = time.mean_s, energy_j
        if objective.relative:
            seconds = time.usual_s
            joules = tails_j + (energy_j - tails_j) * seconds / time.mean_s
        if transfer.deadline_s is not None and not joined:
            seconds = worth_s(seconds, time.high_s, transfer.deadline_s)
        outcome = Outcome(seconds, joules, metered_bytes, size_bytes, money, data_s)
        outcomes[name] = outcome
        found.append(
            Evaluation(
                strategy=strategy,
                time_s=time.mean_s,
                time_low_s=time.low_s,
                time_high_s=time.high_s,
                energy_j=energy_j,
                metered_bytes=metered_bytes,
                cost=objective.cost(outcome),
            )
        )
    if "redundant" in outcomes:
        candidates = [
            SingleCandidate(outcomes[role], predicted[role], parts[role].watts)
            for role in ROLES
            if role in outcomes
        ]
        cost = case.method.cost_of_sending_twice(objective, candidates)
        if cost is not None:
            found = [
                replace(each, cost=cost) if each.strategy.kind == _REDUNDANT else each
                for each in found
            ]
    return tuple(found)


def _completed(
    predicted: Mapping[str, Distribution], *, redundant: bool, joined: bool
) -> dict[str, Distribution]:
    """The times of all strategies that the model knows, or that follow from those it knows."""
    times = dict(predicted)
    if redundant and all(role in predicted for role in ROLES):
        times["redundant"] = minimum_of(*[predicted[role] for role in ROLES])
    if joined and all(name in times for name in _MPTCP):
        # Once both subflows are there, the late start behind the worse primary is over.
        sooner = min([times[name] for name in _MPTCP], key=lambda time: time.mean)
        times.update(dict.fromkeys(_MPTCP, sooner))
    return times


def _second_share(
    name: str, times: Mapping[str, Spread], time: Spread, columns: Mapping[str, float] | None
) -> float:
    """The share of the bytes on MPTCP's second network; `columns` tell when it joins, None: it has."""
    primary, second = ROLES_OF[name]
    if primary not in times or second not in times:
        return 0.5
    join_s = 0.0
    if columns is not None:
        # It joins after the first one's handshake and its own.
        join_s += columns.get(f"{primary}_rtt_s", _UNKNOWN_RTT_S)
        join_s += 2.0 * columns.get(f"{second}_rtt_s", _UNKNOWN_RTT_S)
    return second_share(times[primary].mean_s, times[second].mean_s, time.mean_s, join_s)

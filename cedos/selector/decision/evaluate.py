"""Evaluate each strategy: predicted time, energy and metered bytes, combined into one cost.

The steps: predict the completion times, correct them by the state of the transfer, find the
strategies that the roles allow, add up the resources that each one uses, and let the objective
turn the outcome into one number.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import NamedTuple

from cedos.model import Evaluation, Strategy, StrategyKind, Transfer
from cedos.selector.budgets.prices import Prices
from cedos.selector.decision.case import ROLES, ROLES_OF, Case, Roles, strategies
from cedos.selector.decision.features import features
from cedos.selector.decision.liveness import is_captive
from cedos.selector.decision.times import completion_times
from cedos.selector.objective import Objective, Outcome
from cedos.selector.uncertainty.times import Spread, spread_of
from predictors.base import Distribution, minimum_of

# The round trip assumed for the join of a second subflow if none is known.
_UNKNOWN_RTT_S = 0.1
_MPTCP = ("mptcp_wifi", "mptcp_cellular")
_REDUNDANT = StrategyKind.REDUNDANT

# Pairs of a predictor's name and its strategy.
Named = Sequence[tuple[str, Strategy]]

# Corrects the times of a living flow's strategies.
#
# The arguments are the predicted times of all strategies, and the strategies whose rates are old.
Retime = Callable[
    [Mapping[Strategy, Distribution], Collection[Strategy]], Mapping[Strategy, Distribution]
]


class _Part(NamedTuple):
    """The costs of a role's network while a transfer uses it.

    `watts` are drawn while it is active, `tail_j` joules follow, `price` is money per byte.
    `budgeted` is the network's name if a budget counts its bytes.
    """

    watts: float
    tail_j: float
    metered: bool
    price: float
    budgeted: str | None


# The resources that a strategy uses: joules of radio tails, all joules (tails included), metered bytes,
# money, and the seconds that data budgets charge for its bytes.
_Use = tuple[float, float, float, float, float]


def evaluate(
    case: Case,
    roles: Roles,  # the networks that have the roles `wifi` and `cellular`
    # Networks that take no part while another one lives, except that a dead network may join a new
    # MPTCP connection later.
    dead: Collection[str],
    # Given for a living flow, which has its second subflow already: corrects the predicted times by
    # the flow's progress.
    retime: Retime | None = None,
) -> tuple[Evaluation, ...]:
    """Evaluate every strategy that the roles and the case's model allow.

    Returns:
        One record per strategy in the order of `roles.strategies`; none if the model knows none.
    """
    joined = retime is not None
    columns: Mapping[str, float] = features(case.context, case.transfer, roles, case.model.features)
    begun = _role_begun(case, roles)
    # 1. How long each strategy takes.
    available = _available(case, roles, dead, joined=joined)
    predicted = _predict(case, roles, columns, begun, available, joined=joined)
    if retime is not None:
        predicted |= _retime(retime, predicted, available, columns)
    times = {name: spread_of(distribution) for name, distribution in predicted.items()}
    # 2. What each strategy uses, and what that costs.
    parts = _parts(case, roles, begun)
    join_columns = None if joined else columns
    transfer, objective = case.transfer, case.objective
    size_bytes, prices = float(transfer.size.median_bytes), objective.prices
    found: list[Evaluation] = []
    for name, strategy in available:
        time = times.get(name)
        if time is None:
            continue
        use = _use(name, size_bytes, prices, times, parts, join_columns)
        outcome = _outcome(objective, transfer, time, use, joined=joined)
        found.append(
            Evaluation(
                strategy=strategy,
                time_s=time.mean_s,
                time_low_s=time.low_s,
                time_high_s=time.high_s,
                energy_j=use[1],
                metered_bytes=use[2],
                cost=objective.cost(outcome),
            )
        )
    return tuple(found)


def worth_s(time_s: float, high_s: float, deadline_s: float) -> float:
    """Return the seconds that the objective counts for the time of a transfer with a deadline.

    A transfer that surely meets its deadline counts as the deadline: being sooner saves nothing. One
    that may be late counts as `high_s`, the end of its 90 % interval.
    """
    return deadline_s if high_s <= deadline_s else max(time_s, high_s)


def second_share(
    primary_time_s: float,  # time of the transfer over the primary network alone
    second_time_s: float,  # time of the transfer over the second network alone
    mptcp_time_s: float,  # time of the transfer over both
    join_s: float,  # from the start until the second subflow can carry data
) -> float:
    """Return the expected share (0 to 1) of an MPTCP transfer that its second network carries.

    Assume that each subflow sends at the rate that its network gives the transfer alone, the second
    one only after its join. A request that ends before the join costs the second network nothing;
    a long download divides in proportion to the rates.
    """
    # Bytes of each network in units of the transfer: the seconds that it sends over those that it would
    # need alone.
    shared_s = max(mptcp_time_s - join_s, 0.0)
    second = shared_s / max(second_time_s, 1e-9)
    primary = mptcp_time_s / max(primary_time_s, 1e-9)
    return second / (second + primary) if second > 0.0 else 0.0


def _role_begun(case: Case, roles: Roles) -> str | None:
    """Return the role of the network over which the transfer was sent already."""
    sent = case.sent
    if sent is None:
        return None
    return next((role for role, network in roles.players() if network.name == sent.network), None)


def _predict(
    case: Case,
    roles: Roles,
    columns: Mapping[str, float],
    begun: str | None,
    available: Named,
    *,
    joined: bool,
) -> dict[str, Distribution]:
    """Return the completion times of networks alone and of what is available, as far as known."""
    needed = {*ROLES, *(name for name, _ in available)}
    predicted = completion_times(
        columns, case.transfer, case.context, roles, case.model, joined=joined, needed=needed
    )
    times = dict(predicted)
    if case.sent is not None and begun in times:
        # Without an answer so far, only the longer of the expected times are still possible.
        times[begun] = times[begun].left_after(case.sent.waited_s)
    singles = [times[role] for role in ROLES if role in times]
    if _REDUNDANT in case.kinds and len(singles) == len(ROLES):
        times["redundant"] = minimum_of(*singles)
    if joined and all(name in times for name in _MPTCP):
        # With both subflows open it no longer matters which one is the primary: both get the better time.
        sooner = min([times[name] for name in _MPTCP], key=lambda time: time.mean)
        times.update(dict.fromkeys(_MPTCP, sooner))
    return times


def _available(case: Case, roles: Roles, dead: Collection[str], *, joined: bool) -> Named:
    """Return the strategies that are open to the transfer."""
    # A living connection is not planned with a dead network, though that may come back: data in
    # flight on it would hold up the rest. The next look at the flow can still let it join.
    awaited = () if joined else [name for name in dead if not is_captive(case.context, name)]
    return strategies(roles, case.kinds, dead, awaited)


def _retime(
    retime: Retime,
    predicted: Mapping[str, Distribution],
    available: Named,
    columns: Mapping[str, float],
) -> dict[str, Distribution]:
    """Return the times of the available strategies, corrected by a living flow's progress."""
    known = {strategy: predicted[name] for name, strategy in available if name in predicted}
    aged_roles = {role for role in ROLES if f"{role}_rate_age_s" in columns}
    old = {strategy for name, strategy in available if not aged_roles.isdisjoint(ROLES_OF[name])}
    corrected = retime(known, old)
    return {name: corrected[strategy] for name, strategy in available if strategy in corrected}


def _parts(case: Case, roles: Roles, begun: str | None) -> dict[str, _Part]:
    """Return what each role's network costs while the transfer uses it."""
    counted = case.objective.prices.data
    parts = {}
    for role, network in roles.players():
        radio = case.power.radios[network.kind]
        watts = radio.active_w(case.transfer.direction)
        tail_j = radio.added_tail_j(case.idle_s.get(network.name))
        if role == begun:
            # The bytes of the copy that was sent are spent, whatever is chosen.
            parts[role] = _Part(watts, tail_j, False, 0.0, None)
            continue
        price = case.money_per_mb(network) / 1e6
        budgeted = network.name if network.name in counted else None
        parts[role] = _Part(watts, tail_j, network.metered, price, budgeted)
    return parts


def _use(
    name: str,
    size_bytes: float,
    prices: Prices,
    times: Mapping[str, Spread],
    parts: Mapping[str, _Part],
    join_columns: Mapping[str, float] | None,
) -> _Use:
    """Return the resources that a strategy uses, by the predictors' name for it.

    `join_columns` tell how long the second subflow takes to join; None: it has joined.
    """
    mean_s = times[name].mean_s
    used = ROLES_OF[name]
    first = parts[used[0]]
    data_s = 0.0
    if len(used) == 1:
        if first.budgeted is not None:
            data_s = prices.data_s(first.budgeted, size_bytes, mean_s)
        return (
            first.tail_j,
            first.tail_j + first.watts * mean_s,
            size_bytes if first.metered else 0.0,
            size_bytes * first.price,
            data_s,
        )
    other = parts[used[1]]
    tails_j = first.tail_j + other.tail_j
    if name == "redundant":
        # The slower copy may not be called off in time, so both copies are paid in full.
        carried = second = 1.0
        energy_j = tails_j + sum([parts[role].watts * times[role].mean_s for role in used])
    else:
        second = 0.0
        if first[2:] != other[2:]:  # equal networks cost the same however the bytes divide
            second = _second_share(name, times, join_columns)
        carried = 1.0 - second
        energy_j = tails_j + (first.watts + other.watts) * mean_s
    # Ask the budgets for the price of each network's bytes: a price may rise with the amount.
    for part, share in ((first, carried), (other, second)) if prices.data else ():
        if part.budgeted is not None:
            data_s += prices.data_s(part.budgeted, share * size_bytes, mean_s)
    return (
        tails_j,
        energy_j,
        size_bytes * (carried * first.metered + second * other.metered),
        size_bytes * (carried * first.price + second * other.price),
        data_s,
    )


def _second_share(
    name: str, times: Mapping[str, Spread], join_columns: Mapping[str, float] | None
) -> float:
    """Return the share of the bytes that MPTCP's second network carries."""
    primary, second = ROLES_OF[name]
    if primary not in times or second not in times:
        return 0.5
    join_s = 0.0
    if join_columns is not None:
        # The second subflow joins after the first one's handshake and its own.
        join_s += join_columns.get(f"{primary}_rtt_s", _UNKNOWN_RTT_S)
        join_s += 2.0 * join_columns.get(f"{second}_rtt_s", _UNKNOWN_RTT_S)
    return second_share(times[primary].mean_s, times[second].mean_s, times[name].mean_s, join_s)


def _outcome(
    objective: Objective, transfer: Transfer, time: Spread, use: _Use, *, joined: bool
) -> Outcome:
    """Return what the objective weighs."""
    tails_j, joules, metered_bytes, money, data_s = use
    seconds = time.mean_s
    if objective.relative:
        # Delphi's objectives compare ratios, so the geometric mean of the time counts. The energy of
        # the active radio follows the time; that of the tails does not.
        seconds = time.usual_s
        joules = tails_j + (joules - tails_j) * seconds / time.mean_s
    if transfer.deadline_s is not None and not joined:
        seconds = worth_s(seconds, time.high_s, transfer.deadline_s)
    size_bytes = float(transfer.size.median_bytes)
    return Outcome(seconds, joules, metered_bytes, size_bytes, money, data_s)

"""The one decision: which strategy carries out a transfer, for new flows and for living ones."""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from cedos.model import (
    Context,
    Decision,
    Evaluation,
    Network,
    SizeEstimate,
    Strategy,
    StrategyKind,
    Transfer,
)
from cedos.selector.decision import reason as words
from cedos.selector.decision.case import Case
from cedos.selector.decision.evaluate import NO_PRICES
from cedos.selector.decision.liveness import dead_networks
from cedos.selector.decision.roles import USUAL_KINDS, assign
from cedos.selector.decision.silent import longer_s, silences
from cedos.selector.energy.power_model import DELPHI, PowerModel
from cedos.selector.objective import MaxS, Objective
from cedos.selector.uncertainty.completion import CompletionModel
from cedos.selector.uncertainty.method import BRUTE_FORCE, Method
from predictors.base import Distribution

_DEFER = Strategy(StrategyKind.DEFER, ())
_MAX_S = MaxS()
_NEVER_USED: Mapping[str, float] = {}
# A living flow moves only for a gain of this share of what staying costs.
MARGIN = 0.1
# A flow that tries another network knows after so long what that is worth.
TRYING_S = 1.0
_LEAST_BPS = 1e3


def decide(
    transfer: Transfer,
    context: Context,
    networks: Sequence[Network],
    model: CompletionModel | None = None,
    objective: Objective = _MAX_S,
    power: PowerModel = DELPHI,
    *,
    number: int,
    made_unix_s: float,
    kinds: Collection[StrategyKind] = USUAL_KINDS,
    idle_s: Mapping[str, float] = _NEVER_USED,
    price_per_mb: Mapping[str, float] = NO_PRICES,
    method: Method = BRUTE_FORCE,
) -> Decision:
    """Chooses the strategy of least cost for a transfer that has not begun.

    A dead network carries nothing while another one lives, whatever the model says; an MPTCP
    connection that begins on the living one may have it join later. Where two strategies cost the
    same, the simpler one wins. Without any network that is up the choice is `defer`, without
    evaluations.

    Args:
        transfer: what is to be carried.
        context: what is known of the networks; `at_s` is now.
        networks: the networks of this host.
        model: predictors; None: the rule of thumb (`fallback`).
        objective: what is best.
        power: the radios' watts and tails.
        number: the decision's number in the records.
        made_unix_s: the decision's time in the records.
        kinds: strategies that can be carried out for this transfer: `redundant` needs a session,
            `mptcp` a program that opens MPTCP sockets.
        idle_s: network name -> seconds since its radio was last used; absent: long ago.
        price_per_mb: network name -> money per megabyte (see `evaluate`).
        method: how uncertainty is taken (`selector.method`).
    """
    case = Case(
        transfer=transfer,
        context=context,
        networks=networks,
        dead=dead_networks(context, networks),
        model=model,
        objective=objective,
        power=power,
        kinds=kinds,
        idle_s=idle_s,
        price_per_mb=price_per_mb,
        method=method,
    )
    evaluations, by_rule = case.evaluations()
    if not evaluations:
        choice, why = _DEFER, "no network is up"
    else:
        best = min(evaluations, key=_cost)
        choice = best.strategy
        why = case.reason(best, evaluations, by_rule)
    return Decision(
        number, made_unix_s, transfer, context, evaluations, choice, objective.name, why
    )


def decide_again(
    transfer: Transfer,
    context: Context,
    networks: Sequence[Network],
    model: CompletionModel | None = None,
    objective: Objective = _MAX_S,
    power: PowerModel = DELPHI,
    *,
    current: Strategy,
    bytes_remaining: int,
    switch_cost_s: float,
    number: int,
    made_unix_s: float,
    margin: float = MARGIN,
    observed_bps: float | None = None,
    stalled_s: float = 0.0,
    waited_s: float = 0.0,
    kinds: Collection[StrategyKind] = USUAL_KINDS,
    idle_s: Mapping[str, float] = _NEVER_USED,
    price_per_mb: Mapping[str, float] = NO_PRICES,
    method: Method = BRUTE_FORCE,
) -> Decision:
    """Chooses for a flow that is under way: stay, or move because that is clearly better.

    The rest of the transfer is evaluated like a new one. A strategy that shares no path with the
    current one pays the switch; one that keeps a path pays nothing for it, as the data flow on. A
    network whose rate was measured long ago may be tried: what that can cost is the time until the
    flow is back. The flow moves only if that saves `margin` of what staying costs, so that it does
    not flap; off a network that is gone or dead it moves at once. `mptcp` with either primary is the
    same thing for a connection that has both subflows, so only one of them takes part.

    Args:
        transfer: the transfer as it was decided on.
        context: what is known of the networks; `at_s` is now.
        networks: the networks of this host.
        model: predictors; None: the rule of thumb.
        objective: what is best.
        power: the radios' watts and tails.
        current: the strategy in force.
        bytes_remaining: what is still to be carried, as far as is known.
        switch_cost_s: measured seconds without data when a flow changes networks.
        number: the decision's number in the records.
        made_unix_s: the decision's time in the records.
        margin: the share of the staying cost that a move must save.
        observed_bps: the rate at which the flow has been going lately; it says more of the current
            path than any prediction. 0: stalled. None: unknown, or limited by the application.
        stalled_s: how long a stalled flow has stood still; it is expected to do so for as long again,
            or for as long as silences of its network last (`silent`).
        waited_s: how long the rest has been awaited without any of it: of the times that were expected
            only the longer ones are still possible (dissertation, 4.3.4).
        kinds: strategies that can be carried out for this flow.
        idle_s: as in `decide`; a network that this flow is using has 0.
        price_per_mb: as in `decide`.
        method: as in `decide`.

    Returns:
        A record whose `choice` is `current` if the flow stays. Its transfer has the remaining size,
        and the times of the strategies that need a switch contain it.
    """
    rest = max(bytes_remaining, 1)
    transfer = replace(transfer, size=SizeEstimate(rest, rest, rest, "progress"))
    dead = dead_networks(context, networks)
    roles = assign(networks, dead)
    used = [role for role, network in roles.players() if network.name in current.networks[:1]]
    silent = not silences(context, roles).keys().isdisjoint(used)

    def retime(
        times: Mapping[Strategy, Distribution], old: Collection[Strategy]
    ) -> Mapping[Strategy, Distribution]:
        found = dict(times)
        staying = found.get(current)
        if staying is not None and observed_bps:
            rest_s = 8.0 * rest / max(observed_bps, _LEAST_BPS)
            staying = found[current] = staying.scaled(rest_s / staying.mean)
        elif staying is not None and observed_bps is not None and not silent:
            wait_s = max([stalled_s, *(longer_s(role, stalled_s) for role in used)])
            staying = Distribution(tuple([sample + wait_s for sample in staying.samples]))
            found[current] = staying
        elif staying is not None and observed_bps is None and waited_s > 0.0:
            late = staying.known_above(waited_s).samples
            staying = Distribution(tuple([sample - waited_s for sample in late]))
            found[current] = staying
        for strategy, time in times.items():
            if strategy == current:
                continue
            shares_a_path = not set(strategy.networks).isdisjoint(current.networks)
            moving_s = 0.0 if shares_a_path else switch_cost_s
            # Whoever tries a network of which little is known can come back when it is bad.
            limit_s = math.inf
            if strategy in old and staying is not None:
                limit_s = staying.mean + TRYING_S + 2.0 * switch_cost_s
            found[strategy] = Distribution(
                tuple([min(sample + moving_s, limit_s) for sample in time.samples])
            )
        return found

    case = Case(
        transfer=transfer,
        context=context,
        networks=networks,
        dead=dead,
        model=model,
        objective=objective,
        power=power,
        kinds=kinds,
        idle_s=idle_s,
        price_per_mb=price_per_mb,
        method=method,
    )
    evaluations, by_rule = case.evaluations(retime)
    evaluations = tuple(each for each in evaluations if not _same_way(each.strategy, current))
    if not evaluations:
        choice, why = current, "no network is up; the flow waits where it is"
    else:
        best = min(evaluations, key=_cost)
        staying = next((each for each in evaluations if each.strategy == current), None)
        choice = best.strategy
        if staying is None:
            why = f"{words.left(current, dead)}; {case.reason(best, evaluations, by_rule)}"
        elif best.cost < staying.cost * (1.0 - margin):
            why = words.moved(best, staying, margin)
        else:
            choice = current
            rivals = [each for each in evaluations if each is not staying]
            why = words.stayed(staying, min(rivals, key=_cost) if rivals else None, margin)
    return Decision(
        number, made_unix_s, transfer, context, evaluations, choice, objective.name, why
    )


def _cost(evaluation: Evaluation) -> float:
    return evaluation.cost


def _same_way(strategy: Strategy, current: Strategy) -> bool:
    """Whether it is `mptcp` over paths that the flow has, with the other one called primary."""
    return (
        strategy.kind == StrategyKind.MPTCP
        and strategy.networks[:1] != current.networks[:1]
        and set(current.networks[:1]) <= set(strategy.networks)
    )

"""The one decision: choose the strategy of new flows and of living ones.

Dead networks take no part while another network lives. The predictors evaluate every strategy, and
the strategy of least cost wins. The record says why.
"""

from collections.abc import Mapping

from cedos.model import Decision, Evaluation, Strategy, StrategyKind
from cedos.selector.decision import reason
from cedos.selector.decision.case import Case, pairs
from cedos.selector.decision.evaluate import Retime, evaluate
from cedos.selector.decision.liveness import dead_networks, silent_s
from cedos.selector.decision.living import Living
from cedos.selector.objective import MaxS, MaxSPerE

_DEFER = Strategy(StrategyKind.DEFER, ())


def decide(case: Case) -> Decision:
    """Choose the strategy of least cost for a transfer that has not begun.

    A dead network is not used while another one lives, whatever the predictors say. But an MPTCP
    connection may begin on a living network with the dead one as its second: that joins once it lives
    again. Of strategies that cost the same, the one with fewer metered bytes wins, then the one with
    fewer joules, then the simpler one. If no network is up, the choice is `defer`, and the record has
    no evaluations.
    """
    # That a network is dead was observed. It is not left to the predictors.
    dead = dead_networks(case.context, case.networks)
    evaluations = _evaluations(case, dead)
    if not evaluations:
        return _record(case, evaluations, _DEFER, reason.nothing_works(case, dead))
    best = min(evaluations, key=_cost)
    why = reason.chosen(case, best, evaluations, dead) if case.worded else ""
    return _record(case, evaluations, best.strategy, why)


def decide_again(case: Case, living: Living) -> Decision:
    """Choose for a flow that is under way: stay, or move because that is clearly better.

    The rest of the transfer (`case.transfer`) is evaluated like a new transfer; then `living` corrects
    the times by the flow's progress. So that the flow does not flap, a move must save the share
    `margin` of the cost that can be saved at all: the time that the program itself takes cannot. If
    the flow's network is gone, or is dead while another one lives, the flow moves at once.

    A connection that has both subflows does not care which of them is the primary. So of the two `mptcp`
    strategies only the one that begins with the flow's present primary network takes part.

    Returns:
        A record. Its `choice` is the current strategy if the flow stays. The times of strategies that
        need a switch include the switch.
    """
    current = living.current
    dead = dead_networks(case.context, case.networks)
    size_bytes = case.transfer.size.median_bytes
    # The primary network's recent pauses tell how long a stalled flow may stand still.
    used = {
        network.kind: case.context.pauses.get(network.name, ())
        for network in case.networks
        if network.up and network.name in current.networks[:1]
    }
    silent = any(silent_s(case.context, name) > 0.0 for name in current.networks[:1])
    # Evaluate the rest of the transfer, with times that are corrected by the flow's progress.
    found = _evaluations(
        case, dead, lambda times, old: living.times(times, old, size_bytes, used, silent=silent)
    )
    # Of the two `mptcp` strategies over the flow's paths, drop the one that begins with the other
    # network.
    evaluations = tuple(each for each in found if not living.has_paths_of(each.strategy))
    if not evaluations:
        return _record(
            case, evaluations, current, "no network is usable: the flow waits where it is"
        )
    best = min(evaluations, key=_cost)
    # Without an evaluation the current strategy is not possible any more: its network is gone or dead.
    staying = next((each for each in evaluations if each.strategy == current), None)
    if staying is None:
        chosen = reason.chosen(case, best, evaluations, dead)
        why = reason.sentences(reason.describe_leaving(current, dead), chosen)
        return _record(case, evaluations, best.strategy, why)
    only_time = isinstance(case.objective, MaxS)
    # Costs of `MaxSPerE` are no seconds, so the program's own seconds are not a part of them.
    least_s = 0.0 if isinstance(case.objective, MaxSPerE) else living.least_s(size_bytes)
    # A move must save `margin` of `staying.cost - least_s`, the cost that can be saved at all.
    enough = min(staying.cost * (1.0 - living.margin) + living.margin * least_s, staying.cost)
    paced = reason.describe_pace(living.pace_bps)
    if best.cost < enough:
        why = reason.describe_move(
            best, staying, living.margin, least_s=least_s, only_time=only_time
        )
        return _record(case, evaluations, best.strategy, reason.sentences(why, *paced))
    if not case.worded:
        return _record(case, evaluations, current, "")
    rivals = [each for each in evaluations if each is not staying]
    rival = min(rivals, key=_cost, default=None)
    others = reason.others_alive(case, staying, dead)
    why = reason.describe_staying(
        staying, rival, living.margin, others, least_s=least_s, only_time=only_time
    )
    return _record(case, evaluations, current, reason.sentences(why, *paced))


def _evaluations(
    case: Case, dead: Mapping[str, str], retime: Retime | None = None
) -> tuple[Evaluation, ...]:
    first, *others = pairs(case.networks, dead)
    found = evaluate(case, first, dead, retime)
    # Further pairs of networks add the strategies that the first pair does not have.
    for roles in others:
        seen = {each.strategy for each in found}
        more = evaluate(case, roles, dead, retime)
        found += tuple(each for each in more if each.strategy not in seen)
    # The first one wins where all else is equal, so the simplest strategies come first.
    return tuple(sorted(found, key=lambda each: len(each.strategy.networks))) if others else found


def _record(
    case: Case, evaluations: tuple[Evaluation, ...], choice: Strategy, why: str
) -> Decision:
    return Decision(
        case.number,
        case.made_unix_s,
        case.transfer,
        case.context,
        evaluations,
        choice,
        case.objective.name,
        why,
    )


def _cost(evaluation: Evaluation) -> tuple[float, float, float]:
    """Return the sort key: cost, then metered bytes, then joules.

    Costs can be equal: where only time counts, all strategies that surely meet a deadline cost the same.
    """
    return evaluation.cost, evaluation.metered_bytes, evaluation.energy_j

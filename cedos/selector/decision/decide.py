"""The one decision: which strategy carries out a transfer, for new flows and for living ones."""

from collections.abc import Mapping

from cedos.model import Decision, Evaluation, Strategy, StrategyKind
from cedos.selector.decision import reason
from cedos.selector.decision.case import Case
from cedos.selector.decision.evaluate import Retime, evaluate
from cedos.selector.decision.fallback import RuleOfThumb
from cedos.selector.decision.liveness import dead_networks
from cedos.selector.decision.living import Living
from cedos.selector.decision.roles import pairs
from cedos.selector.decision.silences import silent_s
from cedos.selector.objective import MaxS, MaxSPerE

_DEFER = Strategy(StrategyKind.DEFER, ())
_RULE = RuleOfThumb()


def decide(case: Case) -> Decision:
    """Chooses the strategy of least cost for a transfer that has not begun.

    A dead network carries nothing while another one lives, whatever the model says; an MPTCP
    connection that begins on the living one may have it join later. Where two strategies cost the
    same, the simpler one wins. Without any network that is up the choice is `defer`, without
    evaluations.
    """
    dead = dead_networks(case.context, case.networks)
    evaluations, by_rule = _evaluations(case, dead)
    if not evaluations:
        return _record(case, evaluations, _DEFER, "no network is usable")
    best = min(evaluations, key=_cost)
    why = reason.chosen(case, best, evaluations, dead, by_rule=by_rule)
    return _record(case, evaluations, best.strategy, why)


def decide_again(case: Case, living: Living) -> Decision:
    """Chooses for a flow that is under way: stay, or move because that is clearly better.

    The rest of the transfer (`case.transfer`) is evaluated like a new one, as `living` changes its
    times. The flow moves only if that saves `margin` of what staying costs, so that it does not flap;
    off a network that is gone or dead it moves at once. `mptcp` with either primary is the same thing
    for a connection that has both subflows, so only one of them takes part.

    Returns:
        A record whose `choice` is the current strategy if the flow stays. The times of the strategies
        that need a switch contain it.
    """
    current = living.current
    dead = dead_networks(case.context, case.networks)
    size_bytes = case.transfer.size.median_bytes
    used = {
        network.kind: case.context.pauses.get(network.name, ())
        for network in case.networks
        if network.up and network.name in current.networks[:1]
    }
    silent = any(silent_s(case.context, name) > 0.0 for name in current.networks[:1])
    found, by_rule = _evaluations(
        case,
        dead,
        lambda times, old: living.times(times, old, size_bytes, used, silent=silent),
    )
    evaluations = tuple(each for each in found if not living.has_paths_of(each.strategy))
    if not evaluations:
        return _record(
            case, evaluations, current, "no network is usable: the flow waits where it is"
        )
    best = min(evaluations, key=_cost)
    staying = next((each for each in evaluations if each.strategy == current), None)
    if staying is None:
        why = reason.chosen(case, best, evaluations, dead, by_rule=by_rule)
        return _record(
            case, evaluations, best.strategy, reason.sentences(reason.left(current, dead), why)
        )
    paced = reason.paced(living.pace_bps)
    only_time = isinstance(case.objective, MaxS)
    # (The cost of the other one is no time.)
    least_s = 0.0 if isinstance(case.objective, MaxSPerE) else living.least_s(size_bytes)
    enough = min(staying.cost * (1.0 - living.margin) + living.margin * least_s, staying.cost)
    if best.cost < enough:
        why = reason.moved(best, staying, living.margin, least_s=least_s, only_time=only_time)
        return _record(case, evaluations, best.strategy, reason.sentences(why, *paced))
    rivals = [each for each in evaluations if each is not staying]
    rival = min(rivals, key=_cost, default=None)
    others = reason.unjudged(case, staying, dead)
    why = reason.stayed(staying, rival, living.margin, others, least_s=least_s, only_time=only_time)
    return _record(case, evaluations, current, reason.sentences(why, *paced))


def _evaluations(
    case: Case, dead: Mapping[str, str], retime: Retime | None = None
) -> tuple[tuple[Evaluation, ...], bool]:
    """The evaluations, and whether they come from the rule of thumb."""
    first, *others = pairs(case.networks, dead)
    # A model that knows none of the strategies at hand is as good as none.
    for model in (case.model, _RULE):
        if model is None:
            continue
        found = evaluate(case, first, model, dead, retime)
        for roles in others:
            seen = {each.strategy for each in found}
            more = evaluate(case, roles, model, dead, retime)
            found += tuple(each for each in more if each.strategy not in seen)
        if found:
            # Of equal costs the first one wins: the simplest.
            if others:
                found = tuple(sorted(found, key=lambda each: len(each.strategy.networks)))
            return found, model is _RULE
    return (), False


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
    """Of equal costs (both in time for a deadline, say) the one that spends least."""
    return evaluation.cost, evaluation.metered_bytes, evaluation.energy_j

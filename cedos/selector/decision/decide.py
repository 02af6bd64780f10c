"""The one decision: choose the strategy of new flows and of living ones.

Dead networks take no part while another network lives. The predictors evaluate every strategy, and
the strategy of least cost wins. The record says why.

`RuleOfThumb` takes the place of predictors where there are none. By it, small transfers go where the
round trip is shorter, and large ones where the recent rate is higher; a second subflow helps a little
once it has joined. Its constants were set on replayed traces of 38 places. There the sum of its
transfers' times was 1.19 times that of an oracle's.
"""

from collections.abc import Mapping
from math import isnan

from cedos.model import Decision, Evaluation, Strategy, StrategyKind
from cedos.selector.decision import reason
from cedos.selector.decision.case import ROLES, Case, pairs
from cedos.selector.decision.evaluate import Retime, evaluate
from cedos.selector.decision.liveness import dead_networks, silent_s
from cedos.selector.decision.living import Living
from cedos.selector.objective import MaxS, MaxSPerE
from predictors.base import Distribution
from predictors.inputs import SLOWEST_BPS, naive_time_s

# On real networks a second subflow adds only this share of its network's rate.
_SECOND_SHARE = 1.0 / 3.0
# Used where nothing was measured: a typical network of each kind.
_TYPICAL_RTT_S = {"wifi": 0.018, "cellular": 0.050}
_TYPICAL_BPS = {"wifi": 20e6, "cellular": 10e6}
_RATES = ("past1_bps", "past5_bps", "past10_bps")
# Quantiles, evenly spaced, of the real time over the rule's time, at the same places.
_ERRORS = (0.64, 0.92, 0.97, 0.99, 1.01, 1.03, 1.06, 1.11, 1.2, 1.41, 2.12)


class RuleOfThumb:
    """A model like the trained ones, which needs no training (see above)."""

    strategies = ("wifi", "cellular", "mptcp_wifi", "mptcp_cellular")
    features = ("size_bytes", *(f"{role}_{name}" for role in ROLES for name in ("rtt_s", *_RATES)))

    def predict(self, features: Mapping[str, float], /) -> dict[str, Distribution]:
        """Return the seconds to completion of each strategy from round trips and recent rates.

        Args:
            features: `size_bytes`, and per network what is known of `rtt_s` and `pastN_bps`.
        """
        size_bytes = features["size_bytes"]
        rtt_s, bps, times = {}, {}, {}
        for role in ROLES:
            rtt_s[role] = _known(features, f"{role}_rtt_s") or _TYPICAL_RTT_S[role]
            bps[role] = _recent_bps(features, role)
            times[role] = naive_time_s(size_bytes, rtt_s[role], bps[role])
        # MPTCP: the primary subflow is alone until the second one joins. The join takes the primary's
        # handshake and then two round trips of the second one.
        for primary, second in (ROLES, ROLES[::-1]):
            alone_s = times[primary]
            join_s = rtt_s[primary] + 2.0 * rtt_s[second]
            gain = 1.0 + _SECOND_SHARE * bps[second] / bps[primary]
            both_s = join_s + (alone_s - join_s) / gain
            times[f"mptcp_{primary}"] = alone_s if alone_s <= join_s else both_s
        return {
            name: Distribution(tuple(time_s * error for error in _ERRORS))
            for name, time_s in times.items()
        }


def _recent_bps(features: Mapping[str, float], role: str) -> float:
    # The shortest window comes first: it is the newest information.
    for name in _RATES:
        bps = _known(features, f"{role}_{name}")
        if bps is not None:
            return max(bps, SLOWEST_BPS)
    return _TYPICAL_BPS[role]


def _known(features: Mapping[str, float], column: str) -> float | None:
    value = features.get(column)
    return None if value is None or isnan(value) else value


_DEFER = Strategy(StrategyKind.DEFER, ())
_RULE = RuleOfThumb()


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
    evaluations, by_rule = _evaluations(case, dead)
    if not evaluations:
        return _record(case, evaluations, _DEFER, reason.nothing_works(case, dead))
    best = min(evaluations, key=_cost)
    why = reason.chosen(case, best, evaluations, dead, by_rule=by_rule) if case.worded else ""
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
    found, by_rule = _evaluations(
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
        chosen = reason.chosen(case, best, evaluations, dead, by_rule=by_rule)
        why = reason.sentences(reason.left(current, dead), chosen)
        return _record(case, evaluations, best.strategy, why)
    only_time = isinstance(case.objective, MaxS)
    # Costs of `MaxSPerE` are no seconds, so the program's own seconds are not a part of them.
    least_s = 0.0 if isinstance(case.objective, MaxSPerE) else living.least_s(size_bytes)
    # A move must save `margin` of `staying.cost - least_s`, the cost that can be saved at all.
    enough = min(staying.cost * (1.0 - living.margin) + living.margin * least_s, staying.cost)
    paced = reason.paced(living.pace_bps)
    if best.cost < enough:
        why = reason.moved(best, staying, living.margin, least_s=least_s, only_time=only_time)
        return _record(case, evaluations, best.strategy, reason.sentences(why, *paced))
    if not case.worded:
        return _record(case, evaluations, current, "")
    rivals = [each for each in evaluations if each is not staying]
    rival = min(rivals, key=_cost, default=None)
    others = reason.others_alive(case, staying, dead)
    why = reason.stayed(staying, rival, living.margin, others, least_s=least_s, only_time=only_time)
    return _record(case, evaluations, current, reason.sentences(why, *paced))


def _evaluations(
    case: Case, dead: Mapping[str, str], retime: Retime | None = None
) -> tuple[tuple[Evaluation, ...], bool]:
    """Return the evaluations, and whether they come from the rule of thumb."""
    first, *others = pairs(case.networks, dead)
    # The rule of thumb stands in where there is no model, or one that knows none of these strategies.
    for model in (case.model, _RULE):
        if model is None:
            continue
        found = evaluate(case, first, model, dead, retime)
        # Further pairs of networks add the strategies that the first pair does not have.
        for roles in others:
            seen = {each.strategy for each in found}
            more = evaluate(case, roles, model, dead, retime)
            found += tuple(each for each in more if each.strategy not in seen)
        if found:
            # The first one wins where all else is equal, so the simplest strategies come first.
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
    """Return the sort key: cost, then metered bytes, then joules.

    Costs can be equal: where only time counts, all strategies that surely meet a deadline cost the same.
    """
    return evaluation.cost, evaluation.metered_bytes, evaluation.energy_j

"""Why a strategy was chosen, in one sentence that a person understands (`cedos explain`)."""

from collections.abc import Mapping, Sequence

from cedos.model import Context, Evaluation, Indicator, Strategy, StrategyKind, Transfer
from cedos.selector.decision.case import Case
from cedos.selector.decision.liveness import GIVEN_UP_S
from cedos.selector.decision.rates import indicator_of
from cedos.selector.decision.roles import assign
from cedos.selector.decision.silent import longer_s, silences
from cedos.selector.objective import MaxS
from cedos.selector.uncertainty.brute_force import BruteForce

# Differences smaller than this are not worth a word.
_ALIKE = 1.05
# From here on the recent rate says more than the round trip.
_LARGE_BYTES = 100_000
# A rate as old as this has lost half of what it said, or more (`rates`).
_OLD_S = 7.0


def chosen(
    case: Case,
    choice: Evaluation,
    evaluations: Sequence[Evaluation],
    dead: Mapping[str, str],
    *,
    by_rule: bool = False,
) -> str:
    """The sentence for a new decision.

    `evaluations`: those of all strategies, the choice among them.
    `dead`: dead networks, each with the reason in words.
    `by_rule`: whether the rule of thumb stood in for the predictors.
    """
    context, transfer = case.context, case.transfer
    only_time = isinstance(case.objective, MaxS)
    parts = [
        f"{_verdict(choice, evaluations, only_time)}{_evidence(choice.strategy, context, transfer)}"
    ]
    if hedging := _hedging(choice, evaluations):
        parts.append(hedging)
    parts.extend(dead.values())
    first, *others = [name in dead for name in choice.strategy.networks] or [False]
    if first:
        parts.append("no network answers, so all may try")
    elif any(others):
        parts.append("it joins as soon as it answers again")
    if by_rule:
        parts.append("by rule of thumb, as there are no predictors")
    parts.extend(_notes(case, evaluations))
    return "; ".join(parts)


def moved(choice: Evaluation, current: Evaluation, margin: float) -> str:
    return (
        f"{label(choice.strategy)}: {seconds(choice.time_s)} to go with the move, against "
        f"{seconds(current.time_s)} on {label(current.strategy)}; saves more than {margin:.0%}"
    )


def left(current: Strategy, dead: Mapping[str, str]) -> str:
    gone = [name for name in current.networks if name in dead]
    return f"cannot stay on {label(current)}" + (f", as {gone[0]} is dead" if gone else "")


def stayed(current: Evaluation, rival: Evaluation | None, margin: float) -> str:
    lead = f"stays on {label(current.strategy)}: {seconds(current.time_s)} to go"
    if rival is None:
        return f"{lead}, the only way there is"
    return (
        f"{lead}, against {seconds(rival.time_s)} with a move to {label(rival.strategy)}, "
        f"which does not save {margin:.0%}"
    )


def label(strategy: Strategy) -> str:
    if strategy.kind == StrategyKind.SINGLE:
        return strategy.networks[0]
    if strategy.kind == StrategyKind.MPTCP:
        return f"{strategy.networks[0]} with {' and '.join(strategy.networks[1:])}"
    if strategy.kind == StrategyKind.REDUNDANT:
        return f"the same on {' and '.join(strategy.networks)}"
    return "not now"


def seconds(time_s: float) -> str:
    if time_s < 0.1:
        return f"{time_s * 1000:.0f} ms"
    if time_s < 10:
        return f"{time_s:.2f} s"
    return f"{time_s:.0f} s"


def _verdict(choice: Evaluation, evaluations: Sequence[Evaluation], only_time: bool) -> str:
    lead = f"{label(choice.strategy)}: {seconds(choice.time_s)} expected"
    others = [other for other in evaluations if other is not choice]
    if not others:
        return f"{lead}, the only way there is"
    fastest = min(others, key=lambda other: other.time_s)
    if fastest.time_s * _ALIKE < choice.time_s and only_time:
        return (
            f"{lead}, against {seconds(fastest.time_s)} on {label(fastest.strategy)}, but typically "
            f"{seconds(choice.cost)} against {seconds(fastest.cost)}"
        )
    if fastest.time_s * _ALIKE < choice.time_s:
        return (
            f"{lead}, slower than {label(fastest.strategy)} ({seconds(fastest.time_s)}) "
            f"but cheaper: {_savings(choice, fastest)}"
        )
    singles = [other for other in others if other.strategy.kind == StrategyKind.SINGLE]
    rival = min(singles or others, key=lambda other: other.time_s)
    named = f"{label(rival.strategy)} ({seconds(rival.time_s)})"
    if rival.time_s < choice.time_s * _ALIKE:
        return f"{lead}, as fast as {named}"
    return f"{lead}, {rival.time_s / choice.time_s:.1f} times faster than {named}"


def _hedging(choice: Evaluation, evaluations: Sequence[Evaluation]) -> str:
    """What sending the same twice saves and takes, where that was weighed and would be faster."""
    twice = [each for each in evaluations if each.strategy.kind == StrategyKind.REDUNDANT]
    once = [each for each in evaluations if each.strategy.kind != StrategyKind.REDUNDANT]
    if not twice or not once:
        return ""
    both = choice if choice in twice else min(twice, key=lambda each: each.cost)
    alone = choice if choice in once else min(once, key=lambda each: each.cost)
    saved_s = alone.time_s - both.time_s
    if both.time_s * _ALIKE > alone.time_s:
        return ""
    more = [f"{max(both.energy_j - alone.energy_j, 0.0):.2g} J"]
    if both.metered_bytes > alone.metered_bytes:
        more.append(f"{(both.metered_bytes - alone.metered_bytes) / 1e6:.2g} MB metered")
    price = " and ".join(more)
    if choice is both:
        return (
            f"hedged, as it is not certain which is faster: {seconds(saved_s)} sooner than"
            f" {label(alone.strategy)} alone, {seconds(both.time_high_s)} in place of"
            f" {seconds(alone.time_high_s)} once in twenty times, for {price} more"
        )
    return (
        f"{label(both.strategy)} would take {seconds(both.time_s)}, which is not worth {price} more"
    )


def _notes(case: Case, evaluations: Sequence[Evaluation]) -> list[str]:
    """What people should know beside the figures."""
    notes = []
    if any("silence_s" in known for known in case.context.networks.values()):
        roles = assign(case.networks)
        names = {role: network.name for role, network in roles.players()}
        notes = [
            f"{names[role]} has been silent for {silent_s:.1f} s while something was expected of it,"
            f" and may be for {longer_s(role, silent_s):.0f} s more"
            for role, silent_s in silences(case.context, roles).items()
            if silent_s <= GIVEN_UP_S
        ]
    twice = any(each.strategy.kind == StrategyKind.REDUNDANT for each in evaluations)
    if twice or case.method is not BruteForce:
        notes.append(case.method.words)
    learned = getattr(case.model, "note", "")
    return notes + [note for note in (case.objective.note, learned) if note]


def _savings(choice: Evaluation, fastest: Evaluation) -> str:
    if choice.metered_bytes < fastest.metered_bytes and choice.energy_j >= fastest.energy_j:
        return (
            f"{choice.metered_bytes / 1e6:.2g} MB metered in place of "
            f"{fastest.metered_bytes / 1e6:.2g} MB"
        )
    return f"{choice.energy_j:.2g} J in place of {fastest.energy_j:.2g} J"


def _evidence(strategy: Strategy, context: Context, transfer: Transfer) -> str:
    name = strategy.networks[0]
    indicators = context.networks.get(name, {})
    past = indicator_of(indicators, "past5_bps", transfer.direction)
    rtt = indicators.get("rtt_s")
    if past is not None and transfer.size.median_bytes >= _LARGE_BYTES:
        carried = f"; {name} carried {past.value / 1e6:.3g} Mbit/s {_ago(past, context)}"
        old = context.at_s - past.measured_at_s > _OLD_S
        return f"{carried}, which says little by now" if old else carried
    if rtt is None:
        return f"; nothing is known of {name}'s round trip"
    what = "answered pings in" if rtt.active else "had a round trip of"
    return f"; {name} {what} {rtt.value * 1000:.0f} ms {_ago(rtt, context)}"


def _ago(indicator: Indicator, context: Context) -> str:
    return f"{max(context.at_s - indicator.measured_at_s, 0.0):.1f} s ago"

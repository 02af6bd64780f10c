"""The reasons of decisions in short sentences (`cedos explain`); the last one has no full stop."""

from collections.abc import Mapping, Sequence

from cedos.model import Context, Evaluation, Indicator, Strategy, StrategyKind, Transfer
from cedos.plain_text import lasting, round_figures
from cedos.selector.decision.case import Case, assign
from cedos.selector.decision.features import indicator_of
from cedos.selector.decision.liveness import format_age, silences, silent_s, waits
from cedos.selector.objective import MaxS, WeightedCost

# A program that reads at a lower rate has paused.
_PAUSED_BPS = 1e4
# Smaller ratios are not mentioned.
_ALIKE = 1.05
# Smaller differences are not mentioned: a person does not notice them.
_UNNOTICED_S = 0.02
# From this size on the recent rate matters more than the round trip.
_LARGE_BYTES = 100_000
# A rate of this age has lost half of its information or more (docs/decisions/old-rates.md).
_OLD_S = 7.0


def chosen(
    case: Case,
    choice: Evaluation,
    evaluations: Sequence[Evaluation],
    dead: Mapping[str, str],
) -> str:
    """Return the sentences for a new decision.

    `evaluations`: those of all strategies, the choice among them.
    `dead`: dead networks, each with the reason in words.
    """
    context, transfer = case.context, case.transfer
    only_time = isinstance(case.objective, MaxS)
    if all(each.name in dead or silent_s(context, each.name) for each in case.networks if each.up):
        return nothing_works(case, dead)  # what else is known does not matter
    # The verdict and its evidence come first, then all that mattered besides.
    parts = [
        _verdict(
            choice,
            evaluations,
            amount(transfer.size.median_bytes),
            only_time,
            transfer.deadline_s,
            others_alive(case, choice, dead),
        ),
        _evidence(choice.strategy, context, transfer),
    ]
    if hedging := _hedging(choice, evaluations):
        parts.append(hedging)
    if case.sent is not None:
        parts.append(f"No answer over {case.sent.network} for {seconds(case.sent.waited_s)} so far")
    if transfer.deadline_s is not None:
        parts.append(_describe_wish(choice, transfer.deadline_s))
    parts.extend(dead.values())
    if joins := [name for name in choice.strategy.networks[1:] if name in dead]:
        parts.append(f"{joins[0]} joins as soon as it answers again")
    parts.extend(_notes(case, evaluations, dead))
    return sentences(*parts)


def nothing_works(case: Case, dead: Mapping[str, str]) -> str:
    """Return why no network carries anything now: each one is down, dead, silent, or barred."""
    silent = [
        f"{each.name} silent for {silence_s:.1f} s"
        for each in case.networks
        if each.up and each.name not in dead
        if (silence_s := silent_s(case.context, each.name))
    ]
    barred = [f"{why[:1].lower()}{why[1:]}" for why in case.barred.values()]
    whys = [*dead.values(), *silent, *barred]
    if not whys:
        return "no network is usable"
    return f"No network {'answers now' if silent else 'works'}: {'; '.join(whys)}"


def _describe_wish(choice: Evaluation, deadline_s: float) -> str:
    if choice.time_high_s <= deadline_s:
        return f"Wanted within {seconds(deadline_s)}: sooner saves nothing"
    sure = "unlikely" if choice.time_s > deadline_s else "not certain"
    may = f"it may take {seconds(choice.time_high_s)}"
    return f"Wanted within {seconds(deadline_s)}, which is {sure}: {may}"


def sentences(*parts: str) -> str:
    return ". ".join(parts)


def describe_move(
    choice: Evaluation,
    current: Evaluation,
    margin: float,
    *,
    least_s: float = 0.0,
    only_time: bool = False,
) -> str:
    lead = (
        f"moves to {label(choice.strategy)}: {seconds(choice.time_s)} left, the move included, against "
        f"{seconds(current.time_s)} on {label(current.strategy)}"
    )
    saved = _saved_share(choice.time_s, current.time_s, least_s)
    if saved > margin:
        beyond = f"Beyond the {seconds(least_s)} that the program itself takes, " if least_s else ""
        that = "that" if beyond else "That"
        return (
            f"{lead}. {beyond}{that} saves {_percent(saved)}, and a move must save"
            f" {_percent(margin)}"
        )
    return f"{lead}, {_describe_gain(choice, current, only_time)}"


def describe_leaving(current: Strategy, dead: Mapping[str, str]) -> str:
    gone = [name for name in current.networks if name in dead]
    why = f"{gone[0]} does not answer" if gone else "not usable any more"
    return f"leaves {label(current)}: {why}"


def describe_staying(
    current: Evaluation,
    rival: Evaluation | None,
    margin: float,
    others: Sequence[str] = (),
    *,
    least_s: float = 0.0,
    only_time: bool = False,
) -> str:
    """Return the sentences for a flow that stays.

    `rival`: the best other strategy; None: no other one was evaluated. `others`: other living networks.
    """
    lead = f"stays on {label(current.strategy)}"
    if rival is None and others:
        return f"{lead}: {seconds(current.time_s)} left. {_nothing_known(others)}"
    if rival is None:
        return f"{lead}, the only usable network: {seconds(current.time_s)} left"
    lead = (
        f"{lead}: {seconds(current.time_s)} left, against {seconds(rival.time_s)} with a move to"
        f" {label(rival.strategy)}"
    )
    saved = _saved_share(rival.time_s, current.time_s, least_s)
    # The rival is faster, but costs as much or more: say what makes it dearer.
    if saved > margin and rival.cost >= current.cost:
        return f"{lead}, {_describe_gain(current, rival, only_time)}"
    beside = ""
    # The rival is cheaper, but not by the margin. If joules and data make the difference, the percentage
    # of the cost says more than that of the time.
    if rival.cost < current.cost:
        counted = _saved_share(rival.cost, current.cost, least_s)
        if _percent(counted) != _percent(saved):
            saved, beside = counted, "Usually" if only_time else "Joules and data counted,"
    what = _percent(saved) if saved > 0.0 else "nothing"
    would = f"{beside} that would" if beside else "That would"
    return f"{lead}. {would} save {what}, and a move must save {_percent(margin)}"


def describe_pace(pace_bps: float | None) -> tuple[str, ...]:
    if pace_bps is None:
        return ()
    if pace_bps < _PAUSED_BPS:
        return ("The program itself does not read on at the moment",)
    return (
        f"The program itself reads {round_figures(pace_bps / 1e6)} Mbit/s, however fast the networks are",
    )


def _saved_share(less: float, more: float, least: float) -> float:
    """Return the share that is saved of the part that can be saved."""
    return (more - less) / (more - least) if more > max(less, least) else 0.0


def label(strategy: Strategy) -> str:
    if strategy.kind == StrategyKind.SINGLE:
        return strategy.networks[0]
    if strategy.kind == StrategyKind.MPTCP:
        return f"{' + '.join(strategy.networks)} (together)"
    if strategy.kind == StrategyKind.REDUNDANT:
        return f"{' + '.join(strategy.networks)} (sent twice)"
    return "later"


def _percent(share: float) -> str:
    return f"{share * 100:.0f} %"


def seconds(time_s: float) -> str:
    if time_s < 0.0005:
        return "under 1 ms"
    if time_s < 0.1:
        return f"{time_s * 1000:.0f} ms"
    return f"{time_s:.2f} s" if time_s < 10 else lasting(time_s)


def amount(count: float) -> str:
    for unit in ("B", "kB", "MB", "GB"):
        if count < 999.5:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{round_figures(count, 3)} TB"


def _verdict(
    choice: Evaluation,
    evaluations: Sequence[Evaluation],
    size: str,
    only_time: bool,
    deadline_s: float | None,
    others_up: Sequence[str],
) -> str:
    lead = f"{label(choice.strategy)}: {seconds(choice.time_s)} expected for {size}"
    others = [other for other in evaluations if other is not choice]
    # There is nothing to compare with: the others have no predictions, or there are none.
    if not others and others_up:
        return f"{lead}. {_nothing_known(others_up)}"
    if not others:
        time = f"{seconds(choice.time_s)} expected for {size}"
        return f"{label(choice.strategy)} is the only usable network: {time}"
    # A faster strategy exists: explain why it was not chosen.
    fastest = min(others, key=lambda other: other.time_s)
    if _noticeable(fastest, choice):
        other = f"slower than {label(fastest.strategy)} ({seconds(fastest.time_s)})"
        if only_time and deadline_s is None:
            other = f"against {seconds(fastest.time_s)} on {label(fastest.strategy)}"
        return f"{lead}, {other}, {_describe_gain(choice, fastest, only_time, deadline_s)}"
    # The choice is the fastest: compare it with a single network, which says most to people.
    singles = [other for other in others if other.strategy.kind == StrategyKind.SINGLE]
    rival = min(singles or others, key=lambda other: other.time_s)
    named = f"{label(rival.strategy)} ({seconds(rival.time_s)})"
    if not _noticeable(choice, rival):
        free = rival.metered_bytes and not choice.metered_bytes
        cheaper = choice.cost * _ALIKE < rival.cost
        better = ", and free" if free else ", and cheaper" if cheaper else ""
        return (
            f"{label(choice.strategy)}: as fast as {label(rival.strategy)}{better}"
            f" ({seconds(choice.time_s)} expected for {size})"
        )
    times = rival.time_s / choice.time_s
    return f"{lead}, {times:.{0 if times >= 10 else 1}f} times faster than {named}"


def _noticeable(faster: Evaluation, slower: Evaluation) -> bool:
    """Return whether a person may notice the difference of two times."""
    return faster.time_s * _ALIKE < slower.time_s and slower.time_s - faster.time_s > _UNNOTICED_S


def others_alive(case: Case, choice: Evaluation, dead: Mapping[str, str]) -> list[str]:
    """Return the networks that are up and alive and that the choice does not use, evaluated or not."""
    used = choice.strategy.networks
    return [
        each.name
        for each in case.networks
        if each.up and each.name not in dead and each.name not in used
    ]


def _nothing_known(networks: Sequence[str]) -> str:
    return f"The predictors know no times for {' and '.join(networks)}, which can therefore not be chosen"


def _hedging(choice: Evaluation, evaluations: Sequence[Evaluation]) -> str:
    """Return what sending twice saves and costs; "" unless it would be faster."""
    twice = [each for each in evaluations if each.strategy.kind == StrategyKind.REDUNDANT]
    once = [each for each in evaluations if each.strategy.kind != StrategyKind.REDUNDANT]
    if not twice or not once:
        return ""
    # Compare the best redundant strategy with the best other one. One of both is the choice itself.
    both = choice if choice in twice else min(twice, key=lambda each: each.cost)
    alone = choice if choice in once else min(once, key=lambda each: each.cost)
    saved_s = alone.time_s - both.time_s
    if both.time_s * _ALIKE > alone.time_s:
        return ""
    more = [f"{round_figures(max(both.energy_j - alone.energy_j, 0.0))} J"]
    if both.metered_bytes > alone.metered_bytes:
        more.append(f"{amount(both.metered_bytes - alone.metered_bytes)} of metered data")
    price = " and ".join(more)
    if choice is both:
        return (
            f"Sending twice saves {seconds(saved_s)} on average over {label(alone.strategy)} alone, and"
            f" costs {price} more. The slowest 5 % take {seconds(both.time_high_s)} or longer, instead of"
            f" {seconds(alone.time_high_s)}"
        )
    return (
        f"{label(both.strategy)} would take {seconds(both.time_s)}, but is not worth {price} more"
    )


def _notes(case: Case, evaluations: Sequence[Evaluation], dead: Mapping[str, str]) -> list[str]:
    """Return the notes that belong beside the figures."""
    notes = []
    # Silent networks that are not dead, and how long they probably stay silent.
    if any("silence_s" in known for known in case.context.networks.values()):
        roles = assign(case.networks)
        names = {role: network.name for role, network in roles.players()}
        waits_s = waits(case.context, roles)
        notes = [
            f"{names[role]}: no reply for {silent_s:.1f} s (probably another {waits_s[role]:.0f} s)"
            for role, silent_s in silences(case.context, roles).items()
            if names[role] not in dead
        ]
    objective, prices = case.objective, ""
    if isinstance(objective, WeightedCost) and len(evaluations) > 1:
        prices = _prices(objective)
    return notes + [note for note in (prices, objective.note) if note]


def _describe_gain(
    choice: Evaluation, faster: Evaluation, only_time: bool, deadline_s: float | None = None
) -> str:
    """Return why a strategy was chosen that takes longer in the mean, by the parts of its cost."""
    high_s, other_s = choice.time_high_s, faster.time_high_s
    # With a deadline, the upper ends of the intervals decide, not the means.
    if deadline_s is not None and high_s <= deadline_s < other_s:
        return f"but surely in time, where {label(faster.strategy)} may take {seconds(other_s)}"
    late = deadline_s is not None and deadline_s < high_s
    if late and high_s < other_s and seconds(high_s) != seconds(other_s):
        return f"but at worst {seconds(high_s)} instead of {seconds(other_s)}"
    median, other = seconds(choice.cost), seconds(faster.cost)
    # Max(S) goes by the usual time (its cost); the means may say the opposite.
    if deadline_s is None and only_time and median != other:
        return f"but usually faster (median {median} against {other})"
    if savings := _savings(choice, faster):
        return f"but cheaper: {savings}"
    cost, other = round_figures(choice.cost, 4), round_figures(faster.cost, 4)
    if cost == other:
        return "which costs as much"
    return f"but cheaper: a cost of {cost} instead of {other}"


def _savings(choice: Evaluation, fastest: Evaluation) -> str:
    """Return the resources that the choice uses less of; "": none."""
    parts = []
    less = f"{amount(choice.metered_bytes)} of" if choice.metered_bytes else "no"
    most = amount(fastest.metered_bytes)
    if choice.metered_bytes < fastest.metered_bytes and less != f"{most} of":
        parts.append(f"{less} metered data instead of {most}")
    joules, more = round_figures(choice.energy_j), round_figures(fastest.energy_j)
    if choice.energy_j < fastest.energy_j and joules != more:
        parts.append(f"{joules} J instead of {more} J")
    return " and ".join(parts)


def _prices(objective: WeightedCost) -> str:
    """Return the fixed prices of joules and metered bytes."""
    parts = []
    if objective.programs > 1:
        parts.append(f"the time counts for each of {objective.programs} programs")
    if objective.s_per_j:
        parts.append(f"a joule counts as {seconds(objective.s_per_j)}")
    if objective.s_per_metered_byte:
        parts.append(f"a metered megabyte as {seconds(1e6 * objective.s_per_metered_byte)}")
    if objective.noticeable_s:
        parts.append(f"any use of a metered network as {seconds(objective.noticeable_s)}")
    return f"Prices: {', '.join(parts)}" if parts else ""


def _evidence(strategy: Strategy, context: Context, transfer: Transfer) -> str:
    name = strategy.networks[0]
    indicators = context.networks.get(name, {})
    past = indicator_of(indicators, "past5_bps", transfer.direction)
    rtt = indicators.get("rtt_s")
    if past is not None and transfer.size.median_bytes >= _LARGE_BYTES:
        rate = round_figures(past.value / 1e6, 3)
        carried = f"{name} carried {rate} Mbit/s {_format_age(past, context)}"
        old = context.at_s - past.measured_at_s > _OLD_S
        return f"{carried}, too long ago to rely on" if old else carried
    if rtt is None:
        return f"No round-trip time of {name} is known yet"
    what = "ping" if rtt.active else "round trip"
    return (
        f"The last {what} over {name} took {rtt.value * 1000:.0f} ms, {_format_age(rtt, context)}"
    )


def _format_age(indicator: Indicator, context: Context) -> str:
    return format_age(context.at_s - indicator.measured_at_s)

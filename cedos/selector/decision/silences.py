"""How much longer a silent network will stay silent: what its silence adds to a transfer's time.

A silent Wi-Fi is mostly gone, a silent cellular network comes back; and one that has paused shortly
before does so again (`docs/decisions/silences.md`).
"""

from collections.abc import Mapping, Sequence

from cedos.model import Context, NetworkKind
from cedos.selector.decision.roles import Roles
from predictors.base import Distribution

_WAITS = {True: (0.8, 0.3), False: (4.7, 3.3)}
"""Whether it is cellular: seconds that a silence lasts longer, and how many more for each second that it
lasted."""

_HALF = 0.5
"""What a connection with both paths waits for: what is under way on the silent one blocks the rest
until it has been sent again."""


def longer_s(kind: NetworkKind, silent_s: float, pauses_s: Sequence[float] = ()) -> float:
    """What is usual for its kind counts like one of its own pauses that lasted longer than so far."""
    least_s, per_second = _WAITS[kind is NetworkKind.CELLULAR]
    rests_s = [each - silent_s for each in pauses_s if each > silent_s]
    return (least_s + per_second * silent_s + sum(rests_s)) / (1 + len(rests_s))


def silent_s(context: Context, network: str) -> float:
    """For how long a network has been silent though something was expected of it, s; 0: it is not."""
    silence = context.networks.get(network, {}).get("silence_s")
    return max(silence.value, 0.0) if silence is not None else 0.0


def silences(context: Context, roles: Roles) -> dict[str, float]:
    """The networks that are silent, by role, and for how many seconds so far."""
    by_role = {role: silent_s(context, network.name) for role, network in roles.players()}
    return {role: silence_s for role, silence_s in by_role.items() if silence_s > 0.0}


def waits(context: Context, roles: Roles) -> dict[str, float]:
    """The networks that are silent, by role, and for how many seconds more, whatever part they play."""
    silent = silences(context, roles)
    return {
        role: longer_s(network.kind, silent[role], context.pauses.get(network.name, ()))
        for role, network in (roles.players() if silent else ())
        if role in silent
    }


def delayed(
    strategy_roles: tuple[str, ...],
    time: Distribution,
    waits_s: Mapping[str, float],
    *,
    joined: bool,
) -> Distribution:
    """A completion time with what silence adds to it.

    Args:
        strategy_roles: the parts that the strategy uses, the primary one first.
        time: without the silence.
        waits_s: by role, from `waits`.
        joined: whether the strategy's second path is there already.
    """
    each_s = [waits_s.get(role, 0.0) for role in strategy_roles]
    wait_s = each_s[0]
    if joined and len(each_s) > 1:
        wait_s = _HALF * max(each_s) if min(each_s) == 0.0 else min(each_s)
    return time.later(wait_s) if wait_s > 0.0 else time

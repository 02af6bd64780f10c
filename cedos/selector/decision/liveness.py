"""Dead, silent and barred networks, and how long a silence will last.

**Dead** is a fact that no prediction overrules. A tree that never saw a dead network in training
extrapolates wildly there, and MPTCP whose primary is dead at the start never tries the other
network. So a dead network takes no part in a decision while another one lives. A network behind a
login page is dead, too, though it may answer pings.

**Silent** is a network that owes an answer. It is expected to answer again: a silent Wi-Fi is
mostly gone, a silent cellular network comes back, and a network that has paused shortly before will
do so again (`docs/decisions/silences.md`). The expected rest of the silence is added to the times.

**Barred** networks, which programs are kept off, count as down.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace

from cedos.model import Context, Indicator, Network, NetworkKind
from cedos.selector.decision.roles import Roles
from cedos.selector.rounded import lasting
from predictors.base import Distribution


def usable(networks: Sequence[Network], barred: Collection[str]) -> Sequence[Network]:
    """Return the networks with the barred ones marked as down.

    `barred`: names; those of networks that are not there do no harm.
    """
    if not barred:
        return networks
    return [replace(each, up=False) if each.name in barred else each for each in networks]


# Older evidence does not condemn a network: else one that is no longer probed stays dead for ever.
BELIEVED_S = 60.0
GIVEN_UP_S = 3.0
"""A network that owes an answer for longer is dead; until then its silence is a delay (`silent`)."""

_PORTAL, _AVAILABLE, _LOSS = "captive", "available", "ping_loss"
_SIGNS: tuple[tuple[str, Callable[[float], bool], str], ...] = (
    (_AVAILABLE, lambda value: value <= 0.0, "was not available"),
    (_LOSS, lambda value: value >= 1.0, "answered no ping"),
    ("silence_s", lambda value: value > GIVEN_UP_S, "did not reply for more than 3 s, until"),
    (_PORTAL, lambda value: value >= 1.0, "let no test page through (log-in needed?)"),
)


def why_dead(context: Context, network: str, believed_s: float = BELIEVED_S) -> str | None:
    """Say in words why a network is dead at the context's instant; None: it lives, or may live.

    Dead is a network whose `available` is 0 or whose pings are all lost (`ping_loss` is 1), without
    a round trip (`rtt_s`) measured after that, and one that is `captive`, whatever answers there: a
    portal answers, too. `available` tells of the second before, and a network that has just come
    back answers the pings of that second: some of them answered refute it.

    `believed_s`: evidence older than this is not used.
    """
    indicators = context.networks.get(network)
    if not indicators:
        return None
    rtt = indicators.get("rtt_s")
    for name, is_dead, words in _SIGNS:
        sign = indicators.get(name)
        if sign is None or not is_dead(sign.value):
            continue
        if name == _AVAILABLE and _some_answered(indicators.get(_LOSS), sign):
            continue
        age_s = max(context.at_s - sign.measured_at_s, 0.0)
        answered_since = rtt is not None and rtt.measured_at_s > sign.measured_at_s
        if age_s <= believed_s and (name == _PORTAL or not answered_since):
            return f"{network} {words} {ago(age_s)}"
    return None


def _some_answered(loss: Indicator | None, sign: Indicator) -> bool:
    return loss is not None and loss.value < 1.0 and loss.measured_at_s >= sign.measured_at_s


def may_return(context: Context, network: str) -> bool:
    """Return whether a dead network may live again by itself.

    One with a login page waits for a person.
    """
    portal = context.networks.get(network, {}).get(_PORTAL)
    return portal is None or portal.value < 1.0


def dead_networks(context: Context, networks: Iterable[Network]) -> dict[str, str]:
    """Return the networks that are up and dead, each with the reason in words."""
    found = {}
    for network in networks:
        if network.up:
            why = why_dead(context, network.name)
            if why is not None:
                found[network.name] = why
    return found


def ago(age_s: float) -> str:
    """Return an age such as `just now`, `0.4 s ago`, `14 s ago` or `20 minutes ago`."""
    if age_s < 0.05:
        return "just now"
    return f"{age_s:.1f} s ago" if age_s < 9.95 else f"{lasting(age_s)} ago"


_WAITS = {True: (0.8, 0.3), False: (4.7, 3.3)}
"""By whether the network is cellular: the rest of any silence, and more for each second so far, in s."""

_HALF = 0.5
"""The share of the wait that a connection with both paths has: data in flight blocks it until resent."""


def longer_s(kind: NetworkKind, silent_s: float, pauses_s: Sequence[float] = ()) -> float:
    """Return the expected rest of a silence.

    The mean of the kind's usual rest and of its longer pauses.
    """
    least_s, per_second = _WAITS[kind is NetworkKind.CELLULAR]
    rests_s = [each - silent_s for each in pauses_s if each > silent_s]
    return (least_s + per_second * silent_s + sum(rests_s)) / (1 + len(rests_s))


def silent_s(context: Context, network: str) -> float:
    """For how long a network has been silent though something was expected of it, s; 0: it is not."""
    silence = context.networks.get(network, {}).get("silence_s")
    return max(silence.value, 0.0) if silence is not None else 0.0


def silences(context: Context, roles: Roles) -> dict[str, float]:
    """Return the seconds of silence so far, by the role of each silent network."""
    by_role = {role: silent_s(context, network.name) for role, network in roles.players()}
    return {role: silence_s for role, silence_s in by_role.items() if silence_s > 0.0}


def waits(context: Context, roles: Roles) -> dict[str, float]:
    """Return the expected seconds of silence from now on, by the role of each silent network."""
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
    """Return a completion time, lengthened by the expected rest of the silence.

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

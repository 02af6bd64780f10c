"""Dead, silent and barred networks, and how long a silence will last.

**Dead** is a fact that no prediction overrules (`cedos/controller/networks/liveness.py` finds it). A tree
that never saw a dead network in training extrapolates wildly there, and MPTCP whose primary is dead at
the start never tries the other network. So a dead network takes no part in a decision while another
one lives. The same holds for a captive network.

**Silent** is a network that owes an answer. The expected rest of its silence is added to the times. It is
long on Wi-Fi, which is mostly gone then, and short on a cellular network, which mostly comes back. Recent
pauses of the same network tell how long its silences last (`docs/decisions/silences.md`).

**Barred** networks, which programs are kept off, count as down.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace

from cedos.model import Context, Network, NetworkKind, NetworkLife
from cedos.plain_text import lasting
from cedos.selector.decision.case import Roles
from predictors.base import Distribution


def usable(networks: Sequence[Network], barred: Collection[str]) -> Sequence[Network]:
    """Return all networks, the barred ones marked as down.

    `barred`: names, also of networks that this host does not have now.
    """
    if not barred:
        return networks
    return [replace(each, up=False) if each.name in barred else each for each in networks]


def having(networks: Sequence[Network], version: int) -> Sequence[Network]:
    """Return all networks, those that do not carry this IP version marked as down."""
    return [each if each.carries(version) else replace(each, up=False) for each in networks]


# In a context without verdicts (of a data set), a sign of a dead network is believed up to this age.
BELIEVED_S = 60.0
# A shorter silence is a delay. A longer one leaves pending connections without an answer.
GIVEN_UP_S = 3.0

_SIGNS = (("available", 0.0, "was not available"), ("ping_loss", 1.0, "answered no ping"))


def why_dead(context: Context, network: str) -> str | None:
    """Say in words why a network carries nothing at the context's instant; None: it may carry data.

    A context of a data set has no verdicts: there, two indicators count.
    """
    # The daemon's verdict counts. A network in doubt is not condemned, so it may carry data.
    verdict = context.verdicts.get(network)
    if verdict is not None:
        if not verdict.condemned:
            return None
        lasted = lasting(max(context.at_s - verdict.since_s, 0.0))
        if verdict.life is NetworkLife.CAPTIVE:
            return f"{network} has wanted a log-in for {lasted}"
        return f"{network}: {verdict.why} for {lasted}"
    known = context.networks.get(network, {})
    for name, value, words in _SIGNS:
        sign = known.get(name)
        age_s = max(context.at_s - sign.measured_at_s, 0.0) if sign is not None else 0.0
        if sign is not None and sign.value == value and age_s <= BELIEVED_S:
            return f"{network} {words} {format_age(age_s)}"
    return None


def is_captive(context: Context, network: str) -> bool:
    """Return whether a network waits for a person to log in."""
    verdict = context.verdicts.get(network)
    return verdict is not None and verdict.life is NetworkLife.CAPTIVE


def dead_networks(context: Context, networks: Iterable[Network]) -> dict[str, str]:
    """Return the networks that are up and dead, each with the reason in words."""
    found = {}
    for network in networks:
        if network.up:
            why = why_dead(context, network.name)
            if why is not None:
                found[network.name] = why
    return found


def format_age(age_s: float) -> str:
    """Return an age such as `just now`, `0.4 s ago`, `14 s ago` or `20 minutes ago`."""
    if age_s < 0.05:
        return "just now"
    return f"{age_s:.1f} s ago" if age_s < 9.95 else f"{lasting(age_s)} ago"


# The expected rest of a silence in seconds, and its growth per second so far; the key tells
# whether the network is cellular.
_WAITS = {True: (0.8, 0.3), False: (4.7, 3.3)}

# The share of one network's silence for which a connection over both networks stands still: its data in
# flight on the silent one block the rest until they are sent again on the other one.
_HALF = 0.5


def longer_s(kind: NetworkKind, silent_s: float, pauses_s: Sequence[float] = ()) -> float:
    """Return the expected rest of a silence, the mean of several values.

    One value is the usual rest of a silence on this kind of network. Each recent pause of this network
    that lasted longer than the silence so far adds one.
    """
    least_s, per_second = _WAITS[kind is NetworkKind.CELLULAR]
    rests_s = [each - silent_s for each in pauses_s if each > silent_s]
    return (least_s + per_second * silent_s + sum(rests_s)) / (1 + len(rests_s))


def silent_s(context: Context, network: str) -> float:
    """Return the seconds for which a network has owed an answer; 0: it owes none."""
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


def delay(
    strategy_roles: tuple[str, ...],  # the roles that the strategy uses, the primary one first
    time: Distribution,  # without the silence
    waits_s: Mapping[str, float],  # by role, from `waits`
    *,
    joined: bool,  # whether the strategy's second path is there already
) -> Distribution:
    """Return a completion time, lengthened by the expected rest of the silence."""
    each_s = [waits_s.get(role, 0.0) for role in strategy_roles]
    # A new connection must wait for its primary network. With both paths open, data goes on over the
    # one that answers first; if only one is silent, its data in flight delays the rest for a while.
    wait_s = each_s[0]
    if joined and len(each_s) > 1:
        wait_s = _HALF * max(each_s) if min(each_s) == 0.0 else min(each_s)
    return time.shift(wait_s) if wait_s > 0.0 else time

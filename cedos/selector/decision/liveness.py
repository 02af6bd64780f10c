"""Which networks are dead: a fact that no prediction may overrule.

A tree that never saw a dead network in training extrapolates wildly there, and MPTCP whose primary
is dead at the start never tries the other network. So a network that answers nothing takes no part
in a decision as long as another one lives; and neither does one that lets nothing through until
somebody has logged in, though it may answer pings.
"""

from collections.abc import Callable, Iterable

from cedos.model import Context, Indicator, Network
from cedos.selector.rounded import lasting

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
    """Says in words why a network is dead at the context's instant; None: it lives, or may live.

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
    """Whether a dead network may live again by itself; one with a portal waits for somebody."""
    portal = context.networks.get(network, {}).get(_PORTAL)
    return portal is None or portal.value < 1.0


def dead_networks(context: Context, networks: Iterable[Network]) -> dict[str, str]:
    """The dead ones among the networks that are up, with the reason in words."""
    found = {}
    for network in networks:
        if network.up:
            why = why_dead(context, network.name)
            if why is not None:
                found[network.name] = why
    return found


def ago(age_s: float) -> str:
    """`just now`, `0.4 s ago`, `14 s ago`, `20 minutes ago`."""
    if age_s < 0.05:
        return "just now"
    return f"{age_s:.1f} s ago" if age_s < 9.95 else f"{lasting(age_s)} ago"

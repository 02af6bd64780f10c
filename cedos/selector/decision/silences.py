"""How much longer a silent network will stay silent: what its silence adds to a transfer's time.

A silent Wi-Fi is gone, a silent cellular network comes back (`docs/decisions/silences.md`).
"""

from collections.abc import Mapping

from cedos.model import Context
from cedos.selector.decision.roles import Roles
from predictors.base import Distribution

_WAITS = {"wifi": (4.7, 3.3), "cellular": (0.8, 0.3)}
"""By role: seconds that a silence lasts longer, and how many more for each second that it lasted."""

_HALF = 0.5
"""What a connection with both paths waits for: what is under way on the silent one blocks the rest
until it has been sent again."""


def longer_s(role: str, silent_s: float) -> float:
    least_s, per_second = _WAITS[role]
    return least_s + per_second * silent_s


def silent_s(context: Context, network: str) -> float:
    """For how long a network has been silent though something was expected of it, s; 0: it is not."""
    silence = context.networks.get(network, {}).get("silence_s")
    return max(silence.value, 0.0) if silence is not None else 0.0


def silences(context: Context, roles: Roles) -> dict[str, float]:
    """The networks that are silent, by role, and for how many seconds so far."""
    by_role = {role: silent_s(context, network.name) for role, network in roles.players()}
    return {role: silence_s for role, silence_s in by_role.items() if silence_s > 0.0}


def delayed(
    strategy_roles: tuple[str, ...],
    time: Distribution,
    silent: Mapping[str, float],
    *,
    joined: bool,
) -> Distribution:
    """A completion time with what silence adds to it.

    Args:
        strategy_roles: the parts that the strategy uses, the primary one first.
        time: without the silence.
        silent: by role, from `silences`.
        joined: whether the strategy's second path is there already.
    """
    waits = [longer_s(role, silent[role]) if role in silent else 0.0 for role in strategy_roles]
    wait_s = waits[0]
    if joined and len(waits) > 1:
        wait_s = _HALF * max(waits) if min(waits) == 0.0 else min(waits)
    return time.later(wait_s) if wait_s > 0.0 else time

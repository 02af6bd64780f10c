"""What is known of networks' rates, how old it is, and what small transfers took since.

Models know how much an old rate still says: its age is one of their inputs, learned on rates that were
as old (`docs/decisions/old-rates.md`). So an old rate is handed on as it was measured.
"""

from collections.abc import Iterator, Mapping
from math import inf

from cedos.model import Context, Direction, Indicator
from cedos.selector.decision.roles import ROLES, Roles
from predictors.inputs import LARGEST_AGE_S

RATES = ("past1_bps", "past5_bps", "past10_bps")
"""What a network carried of late, towards the host; `_up_bps` in place of `_bps`: from it."""

DELIVERY = {Direction.DOWN: "delivery_down_bps", Direction.UP: "delivery_up_bps"}
"""What a network delivered of late, in each direction: it can do that at least."""

UPLINK = {name: name.replace("_bps", "_up_bps") for name in RATES} | {
    "udp_bps": "udp_up_bps",
    "udp_loss": "udp_up_loss",
}

RECENT = ("recent_bytes", "recent_s")
"""The last small download that ended: its bytes, and how long it took."""

FRESH_S = 1.5
"""Younger than this is as new as measurements get: flows are looked at once a second at least."""

_USUAL_BPS = {"wifi": 8.3e6, "cellular": 10.4e6}
"""Geometric means over all places: who did more than this, and was not measured, is better than most."""

COLUMNS = (*RATES, "rate_age_s", *RECENT, "recent_age_s")
"""The predictors' columns, by what they are of, that are read here alone."""

_COLUMN = {(role, name): f"{role}_{name}" for role in ROLES for name in COLUMNS}


def indicator_of(
    indicators: Mapping[str, Indicator], name: str, direction: Direction
) -> Indicator | None:
    """A network's indicator for a transfer in a direction; None where it is not known."""
    if direction == Direction.UP and name in UPLINK and (up := indicators.get(UPLINK[name])):
        return up
    return indicators.get(name)


def rates_of(context: Context, roles: Roles, direction: Direction) -> Iterator[tuple[str, float]]:
    """The predictors' columns of rates with their ages, and of the last small transfers.

    What was measured at another access point is as old as can be. Whoever delivered more since than it
    was measured to do can do that at least; an uplink does no better than a downlink that faded since.
    """
    for role, network in roles.players():
        indicators = context.networks.get(network.name)
        if not indicators:
            continue
        attached = context.attachments.get(network.name)
        attached_at_s = attached.since_s if attached else -inf
        rates, measured_at_s = _measured(indicators, direction)
        if context.at_s - measured_at_s > FRESH_S or measured_at_s < attached_at_s:
            rates, measured_at_s = _raised(
                role, indicators, direction, rates, measured_at_s, attached_at_s
            )
        for name, rate_bps in rates.items():
            yield _COLUMN[role, name], rate_bps
        if rates:
            age_s = inf if measured_at_s < attached_at_s else context.at_s - measured_at_s
            if age_s > FRESH_S:
                yield _COLUMN[role, "rate_age_s"], min(age_s, LARGEST_AGE_S)
        took, size = indicators.get("recent_s"), indicators.get("recent_bytes")
        if took is not None and size is not None and took.measured_at_s >= attached_at_s:
            yield _COLUMN[role, "recent_bytes"], size.value
            yield _COLUMN[role, "recent_s"], took.value
            age_s = max(context.at_s - took.measured_at_s, 0.0)
            yield _COLUMN[role, "recent_age_s"], min(age_s, LARGEST_AGE_S)


def _measured(
    indicators: Mapping[str, Indicator], direction: Direction
) -> tuple[dict[str, float], float]:
    """What was measured, by name, and when the newest of it was."""
    rates, newest_s = {}, -inf
    for name in RATES:
        measured = indicator_of(indicators, name, direction)
        if measured is None:
            continue
        down = indicators.get(name)
        if (
            down is not None
            and down.measured_at_s > measured.measured_at_s
            and down.value < measured.value
        ):
            measured = down
        rates[name] = measured.value
        newest_s = max(newest_s, measured.measured_at_s)
    return rates, newest_s


def _raised(
    role: str,
    indicators: Mapping[str, Indicator],
    direction: Direction,
    rates: dict[str, float],
    measured_at_s: float,
    attached_at_s: float,
) -> tuple[dict[str, float], float]:
    """The same, where more was delivered since than was measured."""
    least = indicators.get(DELIVERY[direction])
    # (A network that fades did more before than it was measured to do since.)
    if least is None or least.measured_at_s < max(attached_at_s, measured_at_s):
        return rates, measured_at_s
    if not rates:
        if least.value <= _USUAL_BPS[role]:
            return rates, measured_at_s
        return dict.fromkeys(RATES, least.value), least.measured_at_s
    if least.value <= next(iter(rates.values())):
        return rates, measured_at_s
    raised = {name: max(rate_bps, least.value) for name, rate_bps in rates.items()}
    return raised, least.measured_at_s

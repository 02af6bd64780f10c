"""What our own traffic adds to a network's round trip: it delays, and is no sign of trouble. Pure.

Models learn from networks on which nothing else is under way. There, a round trip of 130 ms and more
on a cellular network tells of an outage, and ten times the usual time is to be feared. But whoever
fills a network makes such a queue, too, and it drains. So while a host fills a network, models are
shown its round trip without the queue, and two round trips' worth of queue are added to what they say.
"""

from collections.abc import Mapping

from cedos.model import Context, Direction, Indicator
from cedos.selector.decision.rates import DELIVERY, FRESH_S
from cedos.selector.decision.roles import Roles
from predictors.base import Distribution

_FULL = 0.5
"""A network that delivers this share of what it could of late is filled."""

_LEAST_S = 0.02
"""Less is no queue."""

_ROUND_TRIPS = 2.0
"""A transfer waits for the queue with its first packet and with its request."""

_RATES = (("past1_bps", DELIVERY[Direction.DOWN]), ("past1_up_bps", DELIVERY[Direction.UP]))


def own_queues(context: Context, roles: Roles) -> dict[str, float]:
    """By role, how much longer than on an empty path a round trip takes for our own traffic, s."""
    found = {}
    for role, network in roles.players():
        known = context.networks.get(network.name, {})
        rtt, least = known.get("rtt_s"), known.get("rtt_min_s")
        if rtt is None or least is None or rtt.value < least.value + _LEAST_S:
            continue
        if any(_full(known, context.at_s, *names) for names in _RATES):
            found[role] = rtt.value - least.value
    return found


def _full(known: Mapping[str, Indicator], at_s: float, rate: str, delivery: str) -> bool:
    could, does = known.get(rate), known.get(delivery)
    if could is None or does is None or at_s - does.measured_at_s > FRESH_S:
        return False
    return does.value >= _FULL * could.value


def emptied(columns: Mapping[str, float], queues_s: Mapping[str, float]) -> Mapping[str, float]:
    """The predictors' columns, with the round trips of empty paths."""
    shorter = {
        f"{role}_rtt_s": columns[f"{role}_rtt_s"] - queue_s
        for role, queue_s in queues_s.items()
        if f"{role}_rtt_s" in columns
    }
    return {**columns, **shorter} if shorter else columns


def queued(
    strategy_roles: tuple[str, ...], time: Distribution, queues_s: Mapping[str, float]
) -> Distribution:
    """A completion time with what its primary network's queue adds to it."""
    wait_s = _ROUND_TRIPS * queues_s.get(strategy_roles[0], 0.0)
    return time.later(wait_s) if wait_s > 0.0 else time

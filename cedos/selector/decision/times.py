"""Completion times of strategies: the predictors', lengthened by sharing, queues and silences.

Models learn from networks that carry nothing else. Three corrections follow from what this host
does.

**Sharing.** Other transfers in the same direction share the network (processor sharing). Until this
transfer ends, each other one carries as many bytes as this one, unless it has fewer left, or its program
or server is slower. In fact the others take about half of that (docs/decisions/sharing.md).

**Own queues.** A round trip of 130 ms on a cellular network usually tells of an outage, but a host
that fills the network makes such a queue itself, and it drains. While this host fills a network,
models get its round trip without the queue, and the wait for the queue is added twice to the times.

**Silences.** A silent network delays a transfer by the expected rest of the silence (`liveness`).
"""

from collections.abc import Collection, Container, Iterable, Mapping

from cedos.model import CompetingTransfer, Context, Direction, Indicator, Transfer
from cedos.selector.decision.case import ROLES_OF, Roles
from cedos.selector.decision.features import DELIVERY, FRESH_S
from cedos.selector.decision.liveness import delay, waits
from cedos.selector.uncertainty.times import CompletionModel
from predictors.base import Distribution

# Transfers that together use a smaller share of their network's rate are limited elsewhere.
_FULL = 0.5

# Competitors carry this share of the bytes that they could: they end, lose packets, or use other
# networks.
_IN_FACT = 0.5

# The round trips in a transfer's time, whatever the rate.
_ROUND_TRIPS = 2.0

# By role: the competing transfers, whether they fill the network, and its round trip in seconds.
Competitors = dict[str, tuple[tuple[CompetingTransfer, ...], bool, float]]


def competitors(context: Context, roles: Roles, transfer: Transfer) -> Competitors:
    """Return the other transfers in the same direction over the networks that have a role."""
    found: Competitors = {}
    if not context.competing:
        return found
    for role, network in roles.players():
        those = context.competing.get(network.name, {}).get(transfer.direction, ())
        # The transfer itself does not compete with itself.
        others = tuple([each for each in those if each.flow != transfer.flow])
        if not others:
            continue
        known = context.networks.get(network.name, {})
        rate, rtt = known.get("past1_bps"), known.get("rtt_min_s")
        # Transfers that together use little of the network's rate are limited elsewhere, and leave room.
        fill = rate is None or sum(each.rate_bps for each in others) >= _FULL * rate.value
        found[role] = others, fill, rtt.value if rtt is not None else 0.0
    return found


def lengthen_by_sharing(
    strategy_roles: Collection[str], time: Distribution, size_bytes: int, competing: Competitors
) -> Distribution:
    """Return a completion time, lengthened by the bytes of competing transfers.

    `strategy_roles`: the roles that the strategy uses; of two, each carries about half of the bytes.
    """
    # Add up the bytes that the others carry meanwhile on each network of the strategy.
    part_bytes = size_bytes / len(strategy_roles)
    mean_s = time.mean
    bytes_of_others, way_s = 0.0, 0.0
    for role in strategy_roles:
        if role in competing:
            others, fill, rtt_s = competing[role]
            bytes_of_others += sum(_carried_bytes(others, part_bytes, mean_s, fill=fill))
            way_s = max(way_s, _ROUND_TRIPS * rtt_s)
    if not bytes_of_others:
        return time
    # Only the part of the time that depends on the rate grows, not the round trips (`way_s`).
    more = _IN_FACT * bytes_of_others / size_bytes
    return Distribution(
        tuple([sample + more * max(sample - way_s, 0.0) for sample in time.samples])
    )


def _carried_bytes(
    others: Iterable[CompetingTransfer], part_bytes: float, time_s: float, *, fill: bool
) -> Iterable[float]:
    # Processor sharing: while this transfer moves its part, each competitor moves as much, at most its
    # rest. If the network is not full, competitors go on at the rate that limits them elsewhere.
    for each in others:
        most = part_bytes if fill else min(part_bytes, each.rate_bps * time_s / 8.0)
        yield min(each.remaining_bytes, most)


# A network that delivers this share of its recent rate is full.
_FILLED = 0.5

# A round trip longer by less than this shows no queue.
_LEAST_S = 0.02

# How often a transfer waits for the queue: with its first packet and with its request.
_QUEUE_WAITS = 2.0

_RATES = (("past1_bps", DELIVERY[Direction.DOWN]), ("past1_up_bps", DELIVERY[Direction.UP]))


def own_queues(context: Context, roles: Roles) -> dict[str, float]:
    """Return by role the seconds that our own queue adds to a round trip."""
    found = {}
    for role, network in roles.players():
        known = context.networks.get(network.name, {})
        rtt, least = known.get("rtt_s"), known.get("rtt_min_s")
        if rtt is None or least is None or rtt.value < least.value + _LEAST_S:
            continue
        # A longer round trip is our own queue only while this host fills the network.
        if any(_is_full(known, context.at_s, *names) for names in _RATES):
            found[role] = rtt.value - least.value
    return found


def _is_full(known: Mapping[str, Indicator], at_s: float, rate: str, delivery: str) -> bool:
    could, does = known.get(rate), known.get(delivery)
    if could is None or does is None or at_s - does.measured_at_s > FRESH_S:
        return False
    return does.value >= _FILLED * could.value


def with_empty_paths(
    columns: Mapping[str, float], queues_s: Mapping[str, float]
) -> Mapping[str, float]:
    """Return the predictors' columns, with the round trips of empty paths."""
    shorter = {
        f"{role}_rtt_s": columns[f"{role}_rtt_s"] - queue_s
        for role, queue_s in queues_s.items()
        if f"{role}_rtt_s" in columns
    }
    return {**columns, **shorter} if shorter else columns


def lengthen_by_queue(
    strategy_roles: tuple[str, ...], time: Distribution, queues_s: Mapping[str, float]
) -> Distribution:
    """Return a completion time, lengthened by its primary network's queue."""
    wait_s = _QUEUE_WAITS * queues_s.get(strategy_roles[0], 0.0)
    return time.shift(wait_s) if wait_s > 0.0 else time


def completion_times(
    columns: Mapping[str, float],  # `features` of the same transfer and context
    transfer: Transfer,  # its size and direction
    context: Context,  # what is known of the networks
    roles: Roles,  # the networks that have the roles `wifi` and `cellular`
    model: CompletionModel,  # the predictors
    *,
    joined: bool,  # whether second subflows are open already
    needed: Container[str],  # the strategies, of those that the model knows
) -> Mapping[str, Distribution]:
    """Return the completion times of strategies in seconds."""
    # Models learnt from networks without our queue, so they get the round trip without it.
    queues_s = own_queues(context, roles)
    known = model.predict(with_empty_paths(columns, queues_s))
    predicted = {name: time for name, time in known.items() if name in needed}
    return lengthen_all(predicted, transfer, context, roles, queues_s, joined=joined)


def lengthen_all(
    predicted: Mapping[str, Distribution],
    transfer: Transfer,
    context: Context,
    roles: Roles,
    queues_s: Mapping[str, float],
    *,
    joined: bool,
) -> Mapping[str, Distribution]:
    """Return the predicted times, lengthened by sharing, `own_queues` and silences."""
    # Lengthen by sharing, then by queues, then by silences.
    if competing := competitors(context, roles, transfer):
        size_bytes = transfer.size.median_bytes
        predicted = {
            name: lengthen_by_sharing(ROLES_OF[name], time, size_bytes, competing)
            for name, time in predicted.items()
        }
    if queues_s:
        predicted = {
            name: lengthen_by_queue(ROLES_OF[name], time, queues_s)
            for name, time in predicted.items()
        }
    if waits_s := waits(context, roles):
        predicted = {
            name: delay(ROLES_OF[name], time, waits_s, joined=joined)
            for name, time in predicted.items()
        }
    return predicted

"""What a transfer loses to those that share its network with it. Pure.

Models learn of networks on which nothing else is under way. Where this host carries other transfers
over a network in the same direction, it is shared out among them (processor sharing): until a transfer
is over, each other one carries as much as it does, or all that it has left, or what its program or
server lets it. Of that it takes about a half in fact (docs/decisions/sharing.md).
"""

from collections.abc import Collection, Iterable

from cedos.model import CompetingTransfer, Context, Transfer
from cedos.selector.decision.roles import Roles
from predictors.base import Distribution

_FULL = 0.5
"""Transfers that together go slower than this share of what their network can are held back elsewhere."""

_IN_FACT = 0.5
"""Others carry so much of what they could: they end, lose packets, wait for their other network."""

_ROUND_TRIPS = 2.0
"""So much of a transfer's time is the way and not the bytes."""

Competitors = dict[str, tuple[tuple[CompetingTransfer, ...], bool, float]]
"""By role: who competes, whether they fill the network, and its round trip, s."""


def competitors(context: Context, roles: Roles, transfer: Transfer) -> Competitors:
    """Who else has bytes to carry in a transfer's direction over the networks that play."""
    found: Competitors = {}
    if not context.competing:
        return found
    for role, network in roles.players():
        those = context.competing.get(network.name, {}).get(transfer.direction, ())
        others = tuple([each for each in those if each.flow != transfer.flow])
        if not others:
            continue
        known = context.networks.get(network.name, {})
        rate, rtt = known.get("past1_bps"), known.get("rtt_min_s")
        fill = rate is None or sum(each.rate_bps for each in others) >= _FULL * rate.value
        found[role] = others, fill, rtt.value if rtt is not None else 0.0
    return found


def shared(
    strategy_roles: Collection[str],
    time: Distribution,
    size_bytes: int,
    competing: Competitors,
) -> Distribution:
    """A completion time with what the others take of it.

    `strategy_roles`: the parts that the strategy uses; over two each carries about a half.
    """
    part_bytes = size_bytes / len(strategy_roles)
    mean_s = time.mean
    bytes_of_others, way_s = 0.0, 0.0
    for role in strategy_roles:
        if role in competing:
            others, fill, rtt_s = competing[role]
            bytes_of_others += sum(_carried(others, part_bytes, mean_s, fill=fill))
            way_s = max(way_s, _ROUND_TRIPS * rtt_s)
    if not bytes_of_others:
        return time
    more = _IN_FACT * bytes_of_others / size_bytes
    return Distribution(
        tuple([sample + more * max(sample - way_s, 0.0) for sample in time.samples])
    )


def _carried(
    others: Iterable[CompetingTransfer], part_bytes: float, time_s: float, *, fill: bool
) -> Iterable[float]:
    for each in others:
        most = part_bytes if fill else min(part_bytes, each.rate_bps * time_s / 8.0)
        yield min(each.remaining_bytes, most)

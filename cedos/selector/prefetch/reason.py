"""Reasons why an item is prefetched, or not, in words for people (`cedos explain`)."""

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass

from cedos.selector.budgets.controller import PROHIBITIVE
from cedos.selector.budgets.prices import Prices
from cedos.selector.prefetch.outlook import Path
from cedos.selector.prefetch.queue import Item, Plan, Queue, State
from cedos.selector.prefetch.value import Candidate, Weighed, weighed

_LONG_S = 1e6
_OUT_OF_REACH = PROHIBITIVE / 2


@dataclass(frozen=True, slots=True)
class PrefetchVerdict:
    """The verdict on an item and its reason; `weighed` is by `network`, the best one for it."""

    item: Item
    likely: float
    left_bytes: float
    why: str
    network: str | None = None
    metered: bool = False
    weighed: Weighed | None = None


def verdicts(
    queue: Queue, now_s: float, paths: Sequence[Path], prices: Prices, plan: Plan, most: int
) -> list[PrefetchVerdict]:
    """Return the verdicts: items in progress, then waiting ones in the order of fetching.

    `plan`: what was decided about them at this instant, and carried out.
    """
    # Items that are being fetched come first.
    hazards = queue.hazards_per_s(now_s)
    under_way = [
        item
        for item in queue.items.values()
        if item.state is State.RUNNING and item.network is not None
    ]
    found = [_of(queue, item, hazards, paths, prices, _running(item)) for item in under_way]
    # Then the waiting ones by their rank in the queue: after a failure, with a turn in a batch, or left
    # out.
    turns = {key: turn for batch in plan.batches for turn, key in enumerate(batch.keys)}
    later = [item for item in queue.items.values() if item.state is State.WAITING]
    rank = {one.key: at for at, one in enumerate(queue.candidates(now_s))}
    later.sort(key=lambda item: rank.get(item.key, len(rank)))
    for item in later[: max(most - len(found), 0)]:
        if item.not_before_s > now_s:
            soon_s = item.not_before_s - now_s
            when = f"tried again in {soon_s:.0f} s" if soon_s < _LONG_S else "left to demand"
            found.append(
                _of(queue, item, hazards, paths, prices, f"failed {item.failures} times; {when}")
            )
        elif item.key in turns:
            before = turns[item.key]
            when = f"after {before} others" if before > 1 else "next"
            found.append(_of(queue, item, hazards, paths, prices, f"will be fetched {when}"))
        else:
            found.append(_of(queue, item, hazards, paths, prices, ""))
    return found[:most]


def _running(item: Item) -> str:
    return f"is being fetched over {item.network}: it saves more than it costs"


def _of(
    queue: Queue,
    item: Item,
    hazards: Mapping[Hashable, float],
    paths: Sequence[Path],
    prices: Prices,
    why: str,
) -> PrefetchVerdict:
    likely, left = queue.accuracy.of(item.cls), queue.left_bytes(item.key)
    candidate = Candidate(item.key, left, likely, hazards.get(item.key, 0.0))
    # The present network that gains most; for an item that is being fetched, its own network.
    best: tuple[Weighed, Path] | None = None
    for index, path in enumerate(paths):
        one = weighed(index, candidate, paths, prices) if path.present else None
        if item.network not in (None, path.name):
            continue
        if one is not None and (best is None or one.gain_s > best[0].gain_s):
            best = (one, path)
    if best is None:
        return PrefetchVerdict(item, likely, left, why or "waits: no network is there")
    one, path = best
    metered = prices.data_rate(path.name) > 0.0
    return PrefetchVerdict(
        item, likely, left, why or _left(one, path, prices), path.name, metered, one
    )


def _left(one: Weighed, path: Path, prices: Prices) -> str:
    """Return why an item is not fetched now, though it could be."""
    if prices.data_rate(path.name) >= _OUT_OF_REACH:
        return f"waits: the budget of {path.name} is spent"
    if prices.energy_rate() >= _OUT_OF_REACH:
        return "waits: the joules are spent"
    if one.gain_s < -_OUT_OF_REACH:
        return "waits: it is more than the budget has left"
    if one.gain_s > 0.0:
        wake_s = path.wake_j() * prices.energy_rate()
        if wake_s >= one.gain_s:
            return f"waits for others: alone it is not worth waking {path.name}'s radio"
        return "waits: what is left of the budget is kept for what is asked for"
    if one.gain_s + one.waiting_s > 0.0:
        return "waits for a better network, which should be there in time"
    return f"waits: over {path.name} it costs more than it saves"

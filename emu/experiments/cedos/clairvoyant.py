"""Who knows the future: the most that can come over Wi-Fi with every deadline met, exactly.

Bytes of transfers go into seconds of networks, each into one between its release and its deadline: a
bipartite matching. Augmenting it to a matching of all bytes never leaves a slot that was used: so where
all deadlines can be met at all, as many bytes as ever go over Wi-Fi go over it then, too. A slot takes
what is released and not due, and for such intervals the earliest deadline first matches most (Glover
1967). The same rule on both networks together says which deadlines can be met.
"""

from collections.abc import Sequence
from heapq import heappop, heappush

from emu.experiments.cedos.world import Wanted, World


def most_wifi_bytes(world: World) -> float:
    """Of all transfers together; where each can be met with both networks."""
    return sum(carried(world.wifi, world.flows))


def feasible(world: World) -> list[Wanted]:
    """The transfers that can all be in time, both networks together: the first ones by release come in.

    Each is taken where those taken before can still be met.
    """
    capacity = [w + c for w, c in zip(world.wifi, world.cellular, strict=True)]
    if _all_carried(capacity, world.flows):
        return list(world.flows)
    taken: list[Wanted] = []
    for flow in world.flows:
        if _all_carried(capacity, [*taken, flow]):
            taken.append(flow)
    return taken


def _all_carried(capacity: Sequence[float], flows: Sequence[Wanted]) -> bool:
    got = carried(capacity, flows)
    return all(each >= flow.size_bytes - 1e-3 for each, flow in zip(got, flows, strict=True))


def carried(capacity: Sequence[float], flows: Sequence[Wanted]) -> list[float]:
    """Bytes of each transfer that come in time, the earliest deadline first."""
    got = [0.0] * len(flows)
    arriving = sorted(range(len(flows)), key=lambda n: flows[n].released_s, reverse=True)
    waiting: list[tuple[float, int]] = []
    at_s, end_s = 0, len(capacity)
    while at_s < end_s and (arriving or waiting):
        while arriving and flows[arriving[-1]].released_s <= at_s:
            number = arriving.pop()
            heappush(waiting, (flows[number].deadline_s, number))
        if not waiting:
            at_s = max(at_s + 1, flows[arriving[-1]].released_s)
            continue
        left = capacity[at_s] / 8.0
        while left > 0.0 and waiting:
            deadline_s, number = waiting[0]
            wanted = flows[number].size_bytes - got[number]
            # Of the second in which it is due only what comes before counts.
            share = min(max(deadline_s - at_s, 0.0), 1.0)
            take = min(wanted, max(left - capacity[at_s] / 8.0 * (1.0 - share), 0.0))
            got[number] += take
            left -= take
            if take < wanted and share >= 1.0:
                break
            heappop(waiting)
        at_s += 1
    return got

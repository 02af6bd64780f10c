"""Schedulers compared: ours, the paper's, simple ones, and one that knows the future.

The clairvoyant sends the most bytes over Wi-Fi with every deadline met, exactly. Bytes of transfers go
into seconds of networks, each into one between its release and its deadline: a bipartite matching.
Augmenting it to a matching of all bytes never leaves a slot that was used, so where all deadlines can be
met, as many bytes as ever go over Wi-Fi go over it then, too. For such intervals the earliest deadline
first matches most (Glover 1967). The same rule on both networks says which deadlines can be met.
"""

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from math import isfinite
from typing import Any

import numpy as np

from cedos.selector.deadlines.chance import ChanceScheduler
from cedos.selector.deadlines.network_state import NetworkState
from cedos.selector.deadlines.plan import D2Sched, DeadlineFlow, DeadlinePlan, DeadlineScheduler
from emu.experiments.cedos.simulate import Host, simulate
from emu.experiments.cedos.world import Wanted, World
from emu.statistics import ci95, resampled


def most_wifi_bytes(world: World) -> float:
    """Return the most bytes of all transfers over Wi-Fi, if each can be met with both networks."""
    return sum(carried(world.wifi, world.flows))


def feasible(world: World) -> list[Wanted]:
    """Return the transfers that both networks together can finish in time, added by their release.

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
    """Return bytes of each transfer that come in time, the earliest deadline first."""
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


@dataclass(frozen=True, slots=True)
class AtOnce:
    """No delay: all are served, over Wi-Fi where there is any, else over the other.

    Figure 6a (i), called so there: blindly Wi-Fi; deadlines are not looked at.
    """

    name: str = "no-delay"

    def plan(
        self,
        flows: Sequence[DeadlineFlow],
        networks: Sequence[NetworkState],
        now: float,
        before: DeadlinePlan,
    ) -> DeadlinePlan:
        up = [each for each in networks if each.up]
        if not up or not flows:
            return DeadlinePlan()
        chosen = next((each for each in up if each.free), up[0])
        paid = () if chosen.free else (chosen.name,)
        return DeadlinePlan({flow.key: (chosen.name,) for flow in flows}, paid)


class EachAlone:
    """Figure 6b and c (i): each flow by Algorithm 1 as if it were the only one, all at the same time."""

    name = "each-alone"

    def plan(
        self,
        flows: Sequence[DeadlineFlow],
        networks: Sequence[NetworkState],
        now: float,
        before: DeadlinePlan,
    ) -> DeadlinePlan:
        served: dict[Hashable, tuple[str, ...]] = {}
        paid: set[str] = set()
        alone = D2Sched()
        for flow in flows:
            plan = alone.plan([flow], networks, now, before)
            served |= plan.served
            paid |= set(plan.paid)
        return DeadlinePlan(served, tuple(paid))


def schedulers() -> list[DeadlineScheduler]:
    """Without any delay, the paper's, ours."""
    return [AtOnce(), D2Sched(), ChanceScheduler()]


@dataclass(slots=True)
class Tally:
    """Sums of one group: a user's days, a place's runs. Only feasible transfers are counted.

    `wifi_bytes` and `met` are by scheduler; `late_s` are the misses of each.
    """

    flows: int = 0
    infeasible: int = 0
    total_bytes: float = 0.0
    most_wifi_bytes: float = 0.0
    met: dict[str, int] = field(default_factory=dict)
    wifi_bytes: dict[str, float] = field(default_factory=dict)
    late_s: dict[str, list[float]] = field(default_factory=dict)


def tally(
    worlds: Iterable[World],
    of: Sequence[DeadlineScheduler],
    *,
    one_host: bool,
) -> Tally:
    """Simulate one group; `one_host`: knowledge of one world is kept for the next."""
    found = Tally()
    hosts = {each.name: Host() for each in of}
    begin_s = 0.0
    for world in worlds:
        flows = feasible(world)
        found.infeasible += len(world.flows) - len(flows)
        found.flows += len(flows)
        can = World(world.wifi, world.cellular, flows, world.known_wifi, world.known_cellular)
        found.total_bytes += sum(flow.size_bytes for flow in flows)
        found.most_wifi_bytes += most_wifi_bytes(can)
        for each in of:
            host = hosts[each.name] if one_host else Host()
            done = simulate(can, each, host, begin_s=begin_s if one_host else 0.0)
            late = [
                one.done_s - flow.deadline_s
                for one, flow in zip(done, flows, strict=True)
                if one.done_s > flow.deadline_s + 1e-6
            ]
            found.late_s.setdefault(each.name, []).extend(late)
            found.met[each.name] = found.met.get(each.name, 0) + len(flows) - len(late)
            wifi = sum(one.wifi_bytes for one in done)
            found.wifi_bytes[each.name] = found.wifi_bytes.get(each.name, 0.0) + wifi
        begin_s += len(world.wifi)
    return found


def figures(tallies: Sequence[Tally]) -> dict[str, Any]:
    """Sum over all groups, the 95 % intervals by drawing groups.

    `missed_by_most_s` is None where a transfer was never done.
    """
    total = sum(each.total_bytes for each in tallies)
    most = sum(each.most_wifi_bytes for each in tallies)
    flows = sum(each.flows for each in tallies)
    found: dict[str, Any] = {
        "groups": len(tallies),
        "flows": flows,
        "infeasible": sum(each.infeasible for each in tallies),
        "clairvoyant_wifi_share": most / total if total else 0.0,
    }
    for name in tallies[0].met:
        late = [late_s for each in tallies for late_s in each.late_s[name]]
        most_s = max(late, default=0.0)
        wifi = sum(each.wifi_bytes[name] for each in tallies)
        found[name] = {
            "met_share": sum(each.met[name] for each in tallies) / flows if flows else 1.0,
            "missed": len(late),
            "missed_by_most_s": most_s if isfinite(most_s) else None,
            "wifi_share": wifi / total if total else 0.0,
            "wifi_share_gap": (most - wifi) / total if total else 0.0,
            "wifi_share_gap_ci95": _interval(tallies, name),
        }
    return found


def _interval(tallies: Sequence[Tally], name: str) -> list[float]:
    """Return the 95 % interval of the share over Wi-Fi that was missed, by drawing groups."""
    gap = np.array([each.most_wifi_bytes - each.wifi_bytes[name] for each in tallies])
    total = np.array([max(each.total_bytes, 1.0) for each in tallies])
    drawn = resampled(len(tallies), np.random.default_rng(1))
    return ci95(gap[drawn].sum(axis=1) / total[drawn].sum(axis=1))

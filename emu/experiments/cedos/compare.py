"""Schedulers on the same worlds: deadlines met, share over Wi-Fi, how far that is from the optimum."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from math import isfinite
from random import Random
from typing import Any

from cedos.selector.deadlines.chance import ChanceScheduler
from cedos.selector.deadlines.d2sched import D2Sched
from cedos.selector.deadlines.plan import DeadlineScheduler
from emu.experiments.cedos.clairvoyant import feasible, most_wifi_bytes
from emu.experiments.cedos.simulate import Host, simulate
from emu.experiments.cedos.strawmen import AtOnce
from emu.experiments.cedos.world import World

_DRAWS = 1000


def schedulers() -> list[DeadlineScheduler]:
    """Without any delay, the paper's, ours."""
    return [AtOnce(), D2Sched(), ChanceScheduler()]


@dataclass(slots=True)
class Tally:
    """One group's sums: a user's days, a place's runs. Only what can be met at all is counted.

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
    progress: Callable[[], None] = lambda: None,
) -> Tally:
    """One group; `one_host`: what was learned in one world is known in the next."""
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
        progress()
    return found


def figures(tallies: Sequence[Tally]) -> dict[str, Any]:
    """Sums over all groups, the 95 % intervals by drawing groups.

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
    random = Random(1)
    drawn = []
    for _ in range(_DRAWS):
        chosen = random.choices(tallies, k=len(tallies))
        total = sum(each.total_bytes for each in chosen)
        gap = sum(each.most_wifi_bytes - each.wifi_bytes[name] for each in chosen)
        drawn.append(gap / total if total else 0.0)
    drawn.sort()
    return [drawn[int(0.025 * _DRAWS)], drawn[int(0.975 * _DRAWS)]]
